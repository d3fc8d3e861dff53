"""The example's data: what a damaged cache does, which sources are asked, and what a training gets.

With arrays of a few images in MNIST's place, whose checksums stand in for the published ones.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.examples.mnist_samples import FOLDER, same


def offer(data: ModuleType, monkeypatch: pytest.MonkeyPatch, *results: Any) -> list[str]:
    """Make these arrays, or exceptions, the sources; gives the list of those that were asked, as they are."""
    asked: list[str] = []

    def source(number: int, result: Any) -> Any:
        def get() -> Any:
            asked.append(f"source {number}")
            if isinstance(result, Exception):
                raise result
            return result

        return data.sources.Source(f"source {number}", get)

    monkeypatch.setattr(
        data.sources, "in_order", lambda: [source(n, result) for n, result in enumerate(results)]
    )
    return asked


class TestCache:
    @pytest.mark.parametrize("damage", ["bit", "text", "folder"])
    def test_damage_is_found_and_mended(
        self,
        data: ModuleType,
        small: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        damage: str,
    ) -> None:
        file = tmp_path / data.CACHE_FILE
        data.write_cache(file, small)
        good = file.read_bytes()
        if damage == "bit":
            middle = len(good) // 3
            file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        elif damage == "text":
            file.write_text("404 not found")
        elif damage == "folder":
            file.unlink()
            file.mkdir()
        offer(data, monkeypatch, small)
        raw, where = data.fetch(tmp_path)
        assert same(raw, small) and where == "source 0"
        assert capsys.readouterr().err.count("is damaged and will be fetched anew") == 1
        if damage != "folder":  # can't be replaced by a file: a message, no failure
            assert same(data.read_cache(file), small)


class TestSources:
    def test_the_next_one_is_asked_when_one_fails_or_lies(
        self,
        data: ModuleType,
        small: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        wrong = small._replace(train_images=small.train_images ^ 1)
        asked = offer(data, monkeypatch, OSError("no route"), wrong, small, small)
        raw, where = data.fetch(tmp_path)
        assert same(raw, small) and where == "source 2"
        assert asked == ["source 0", "source 1", "source 2"]
        tries = [f"mnist: trying source {number} of 4: source {number - 1}" for number in (1, 2, 3)]
        assert capsys.readouterr().err.splitlines() == tries  # no failure that does no harm

    def test_none_at_all_says_what_was_tried_and_what_to_do(
        self, data: ModuleType, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        offer(data, monkeypatch, OSError("no route"), TimeoutError())
        with pytest.raises(data.DataError) as caught:
            data.load(tmp_path)
        text = str(caught.value)
        assert "source 0: no route" in text and "source 1: TimeoutError" in text
        assert "python data.py" in text and str(tmp_path / "mnist.npz") in text


@pytest.mark.parametrize("program", ["data.py", "mnist_dist.py", "mnist_sync.py"])
def test_programs_find_their_modules_from_anywhere(tmp_path: Path, program: str) -> None:
    argv = [sys.executable, str(FOLDER / program), "--help"]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "--data_dir" in ended.stdout
