"""Images that no registry has: made of a few files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping

#: The beginning of an executable of another kind of machine: 64-bit, little-endian, SPARC.
FOREIGN = b"\x7fELF\2\1\1".ljust(16, b"\0") + bytes([2, 0, 43, 0, 1, 0, 0, 0]).ljust(48, b"\0")


def tar(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of executables, for ``docker import``."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return into.getvalue()
