"""Whether there is room in the folders that a run needs, tried by writing: rights know of no full disk."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from launcher.agent.probe_work import together

if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    Json = Dict[str, Any]

#: Bytes that are written to find out: a disk with less is full.
_TRIED = 64 * 1024


def look_at_folders(workdir: Optional[str], seconds: float) -> Json:
    """Each folder: ``path``, bytes ``free``, ``why`` it can't be written (empty: it can).

    Args:
        workdir: where tasks run, relative to where we were started; ``None``: nobody said.
        seconds: a file server may take to answer.
    """
    paths = {"home": os.path.expanduser("~"), "tmp": tempfile.gettempdir()}
    if workdir is not None:
        paths["workdir"] = os.path.abspath(os.path.expanduser(workdir))
    found = together([partial(_folder, path) for path in paths.values()], seconds)
    silent = "its file system does not answer"
    return {
        name: seen or {"path": path, "free": None, "why": silent}
        for (name, path), seen in zip(paths.items(), found)
    }


def _folder(path: str) -> Json:
    return {"path": path, "free": _free(path), "why": _why_not(path)}


def room_of(path: str) -> Optional[int]:
    """Bytes of a whole file system; ``None``: there is none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _free(path: str) -> Optional[int]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _why_not(path: str) -> str:
    """Write a file that nobody sees and that is gone at once; what the kernel says if that fails."""
    try:
        with tempfile.TemporaryFile(dir=path, prefix=".launch-check-", buffering=0) as file:
            file.write(bytes(_TRIED))
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""
