"""What an earlier launch has made of our modules, kept beside them as Python keeps what it has compiled.

A bundle takes 15 ms to make, of the few hundred that a launch on other machines takes. What is kept counts
as long as each file it was made of, and each folder that those are in, is as it was: time and size.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from collections.abc import Iterable

_MAGIC = importlib.util.MAGIC_NUMBER


def recall(place: str, root: str) -> tuple[bytes, tuple[str, ...]] | None:
    """The bundle that is kept at ``place``, of files below ``root``, and the names of its modules.

    Returns:
        ``None``: there is none that counts.
    """
    try:
        with open(place, "rb") as file:
            data = file.read()
        if data[: len(_MAGIC)] != _MAGIC:
            return None
        stamps, names, made = marshal.loads(memoryview(data)[len(_MAGIC) :])
        if all(_stamp(os.path.join(root, path)) == stamp for path, stamp in stamps):
            return made, names
    except (OSError, EOFError, ValueError, TypeError):  # there is none, or it is damaged, or a file is gone
        return None
    return None


def keep(place: str, root: str, made: bytes, names: tuple[str, ...], files: Iterable[str]) -> None:
    """Keep a bundle, if files may be written there; it is there whole or not at all.

    Paths are kept as seen from ``root``: a copy of the folder is asked about its own files.
    """
    if sys.dont_write_bytecode:
        return
    paths = {os.path.relpath(path, root) for path in files}
    temporary = f"{place}.{os.getpid()}"
    try:
        folders = set(map(os.path.dirname, paths))
        stamps = tuple((path, _stamp(os.path.join(root, path))) for path in sorted(paths | folders))
        with open(temporary, "xb") as file:
            file.write(_MAGIC + marshal.dumps((stamps, names, made)))
        os.replace(temporary, place)
    except OSError:  # somebody else's folder: the next launch makes it again
        return


def _stamp(path: str) -> tuple[int, int]:
    """What changes with a file; of a folder, when something is added or taken away."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size
