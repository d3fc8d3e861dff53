"""No source is trusted blindly, and none is waited for without an end. No network."""

from __future__ import annotations

import io
import os
import pickle
import socket
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.examples.mnist_samples import packed, same


class TestSources:
    def test_a_mirror_serves_the_four_files(self, idx: ModuleType, sources: ModuleType, small: Any) -> None:
        files = {
            f"https://mirror/{field}.gz": packed(idx.idx_header(array) + array.tobytes())
            for field, array in small._asdict().items()
        }
        assert same(sources._from_mirror(SimpleNamespace(get=files.__getitem__), "https://mirror/"), small)

    def test_a_file_with_another_checksum_is_not_even_unpacked(
        self, sources: ModuleType, small: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sources.gzip, "decompress", lambda content: pytest.fail("was unpacked"))
        with pytest.raises(sources.DataError, match="train_images.gz .* has the checksum"):
            sources._from_mirror(SimpleNamespace(get=lambda url: b"what a portal answers"), "https://mirror/")


class TestNetwork:
    def test_a_server_that_never_answers_costs_little(
        self, sources: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(sources, "ANSWER_S", 0.2)
        monkeypatch.setattr(sources, "SILENCE_S", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            network, start = sources._Network(), time.monotonic()
            for _ in range(5):
                with pytest.raises((sources.DataError, OSError)):
                    network.get(url)
            assert time.monotonic() - start < 40
            with pytest.raises(sources.DataError, match="given up"):
                network.get(url)


class TestPickle:
    def pairs(self, raw: Any) -> Any:
        """The same data as the package has it: three pairs, pixels divided by 256, labels int64."""

        def pair(images: Any, labels: Any) -> Any:
            return (images.reshape(-1, 784) / np.float32(256)).astype(np.float32), labels.astype(np.int64)

        return (
            pair(raw.train_images[:5], raw.train_labels[:5]),
            pair(raw.train_images[5:], raw.train_labels[5:]),
            pair(raw.test_images, raw.test_labels),
        )

    def test_gives_back_the_original_bytes(self, idx: ModuleType, sources: ModuleType, small: Any) -> None:
        content = pickle.dumps(self.pairs(small), protocol=4)
        assert same(idx.prove(sources.unpickle_floats(io.BytesIO(content))), small)

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_calls_no_function(self, sources: ModuleType, tmp_path: Path, protocol: int) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "evil"),)

        content = pickle.dumps((Evil(), 2, 3), protocol=protocol)
        with pytest.raises(sources.DataError, match="mkdir, which no array needs"):
            sources.unpickle_floats(io.BytesIO(content))
        assert not (tmp_path / "evil").exists()
