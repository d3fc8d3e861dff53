"""Reads regular files, up to a size; tells whose they are, and which file a user may have meant.

Another user may have put a pipe, a device, a link or an endless file in the place of one.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from launcher.text import nearest

#: The size that is read of files which a person writes, in bytes.
MOST = 1 << 20


def open_regular(path: str, links: bool = True) -> BinaryIO:
    """Open a regular file for reading; refuse a pipe or a device in its place.

    Args:
        path: of the file.
        links: whether the last part of the path may be a link.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    mode = os.stat(path, follow_symlinks=links).st_mode
    if stat.S_ISREG(mode):  # opening some devices has effects
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
        file = os.fdopen(os.open(path, flags), "rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def read_regular(path: str, most: int = MOST) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.
        most: its largest size in bytes.

    Raises:
        OSError: as `open_regular`; or it is larger.
    """
    with open_regular(path) as file:
        return read_most(file, most)


def read_most(file: BinaryIO, most: int = MOST) -> bytes:
    """What is left of a file.

    Raises:
        OSError: it is more than ``most`` bytes.
    """
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1024} KiB")
    return data


def is_ours(user: int) -> bool:
    """Whether files of the user with this id can be trusted: it is this user, or root."""
    return user in (0, os.geteuid())


def similar_file(path: str) -> str:
    """The path of a file with a similar name in the same folder; empty if there is none."""
    folder, name = os.path.split(path)
    try:
        guess = nearest(name, os.listdir(os.path.expanduser(folder) or "."))
    except OSError:
        return ""
    return os.path.join(folder, guess) if guess else ""
