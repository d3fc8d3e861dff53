"""Whether a folder may be other machines' as well: then what is not to be seen here may be there."""

from __future__ import annotations

import functools
import os
import re

#: Kinds of file systems that machines share; FUSE has more, sshfs and the clouds' among them.
_NETWORK = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
))  # fmt: skip


@functools.cache
def is_shared(folder: str) -> bool:
    """Whether other machines may see the folder, by the kind of its file system; unknown: they may not."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            kind = kind_at(os.path.realpath(folder), file.read())
    except OSError:
        return False
    return kind in _NETWORK or kind.startswith("fuse.")


def kind_at(path: str, mounts: str) -> str:
    """The kind of file system that a path is on; empty: nothing is mounted there.

    Args:
        path: without links.
        mounts: what ``/proc/self/mounts`` holds; of two at one place the later hides the other.
    """
    best, found = -1, ""
    for line in mounts.splitlines():
        _, point, kind, *_ = map(_unescaped, line.split(" "))
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), kind
    return found


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
