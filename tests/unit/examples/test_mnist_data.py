"""The data of the MNIST example: what a damaged cache does, the sources that are asked, and if none has it.

Arrays of a few images are in MNIST's place, and their checksums stand in for the published ones. Neither the
network nor TensorFlow is used.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "mnist_dist"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `data` of the example, without patches of other tests."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("data")
    for name in ("data", "sources", "idx"):
        del sys.modules[name]


@pytest.fixture
def small(data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seven and three images with labels, known to the modules as the real thing."""
    random, idx = np.random.RandomState(1), sys.modules["idx"]
    images = [random.randint(0, 256, (many, 28, 28)).astype(np.uint8) for many in (7, 3)]
    labels = [random.randint(0, 10, many).astype(np.uint8) for many in (7, 3)]
    raw = idx.Raw(images[0], labels[0], images[1], labels[1])
    for field, array in raw._asdict().items():
        content = idx.idx_header(array) + array.tobytes()
        checksums = (hashlib.sha256(each).hexdigest() for each in (gzip.compress(content, mtime=0), content))
        monkeypatch.setitem(idx.ORIGINALS, field, idx.Published(field, *checksums))
    return raw


def offer(data: ModuleType, monkeypatch: pytest.MonkeyPatch, *results: Any) -> None:
    """Let sources have these arrays, or raise these exceptions."""

    def source(number: int, result: Any) -> Any:
        def get() -> Any:
            if isinstance(result, Exception):
                raise result
            return result

        return data.sources.Source(f"source {number}", get)

    known = [source(number, result) for number, result in enumerate(results)]
    monkeypatch.setattr(data.sources, "in_order", lambda: known)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("damage", ["bit", "text", "folder"])
def test_a_damaged_cache_is_found_and_mended(
    data: ModuleType, small: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str,
) -> None:  # fmt: skip
    file = tmp_path / data.CACHE_FILE
    data.write_cache(file, small)
    if damage == "bit":
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 1
        file.write_bytes(content)
    elif damage == "text":
        file.write_text("404 not found")
    else:
        file.unlink()
        file.mkdir()
    offer(data, monkeypatch, small)
    raw, where = data.fetch(tmp_path)
    assert same(raw, small) and where == "source 0"
    assert capsys.readouterr().err.count("is damaged and will be fetched anew") == 1
    # A folder cannot be replaced by a file: that is a message, and no failure.
    assert damage == "folder" or same(data.read_cache(file), small)


def test_the_next_source_is_asked_when_one_fails_or_lies(
    data: ModuleType, small: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    wrong = small._replace(train_images=small.train_images ^ 1)
    offer(data, monkeypatch, OSError("no route"), wrong, small, small)
    raw, where = data.fetch(tmp_path)
    assert same(raw, small) and where == "source 2"
    tries = [f"mnist: trying source {number} of 4: source {number - 1}" for number in (1, 2, 3)]
    assert capsys.readouterr().err.splitlines() == tries, "no failure that does no harm"


def test_without_any_source_the_message_says_what_was_tried_and_what_to_do(
    data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(data, monkeypatch, OSError("no route"), TimeoutError())
    with pytest.raises(data.DataError) as caught:
        data.load(tmp_path)
    told = ("source 0: no route", "source 1: TimeoutError", "python data.py", str(tmp_path / "mnist.npz"))
    assert [text for text in told if text not in str(caught.value)] == []


@pytest.mark.parametrize("program", ["data.py", "mnist_dist.py", "mnist_sync.py"])
def test_programs_find_their_modules_from_anywhere(tmp_path: Path, program: str) -> None:
    argv = [sys.executable, str(FOLDER / program), "--help"]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "--data_dir" in ended.stdout
