"""The sockets of tmux servers: tmux leaves them behind when a server ends."""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from collections.abc import Iterator

#: What the names of ours begin with.
PREFIX = "launch-"
#: Seconds a server may take to end, and the age before which one may be about to listen.
_LIMIT, _YOUNG = 5.0, 60.0
#: So many are looked at: others have their turn with the next session.
_MOST = 1000


def remove(path: str, server: int) -> None:
    """Remove the socket of a server that is about to end.

    Args:
        path: the socket; nothing else is removed.
        server: a handle of its process: as long as that lives, somebody may be on the way to it.
    """
    ended, _, _ = select.select([server], [], [], _LIMIT)
    if ended and os.path.basename(path).startswith(PREFIX):
        _unlink(path)


def sweep(folder: str) -> None:
    """Remove the sockets of sessions whose launchers were killed: nobody listens there any more."""
    for path in _old(folder):
        if _is_dead(path):
            _unlink(path)


def _old(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        ours = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in ours[:_MOST]:
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:  # somebody else has just removed it
            continue
        mine = stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid()
        if mine and time.time() - found.st_mtime > _YOUNG:
            yield entry.path


def _is_dead(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a server that hangs is one
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone, or not ours to remove: it takes no room
