"""What counts as MNIST: the format of the original files, and the proof.

With arrays of a few images in MNIST's place, whose checksums stand in for the published ones.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


class TestIdx:
    def test_reads_what_the_header_describes(self, idx: ModuleType) -> None:
        array = idx.parse_idx(b"\0\0\x08\x02" + b"\0\0\0\x02" + b"\0\0\0\x03" + bytes(range(6)))
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]

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
    def test_refuses(self, idx: ModuleType, content: bytes, says: str) -> None:
        with pytest.raises(idx.DataError, match=says):
            idx.parse_idx(content)

    def test_one_pixel_matters(self, idx: ModuleType, small: Any) -> None:
        other = small.test_images.copy()
        other[2, 27, 27] ^= 1
        with pytest.raises(idx.DataError, match="test_images"):
            idx.prove(small._replace(test_images=other))
