"""Reads the small text files users write: hostfiles and job files."""

from __future__ import annotations

from launcher.errors import Fault, InputError

#: Bytes; a hostfile of ten thousand hosts is a tenth of it.
_MOST = 4 * 1024 * 1024


def read_text(path: str, what: str, error: type[InputError]) -> str:
    """The text of a file that may be a pipe (``<(...)`` of a shell), and never more than enough.

    Args:
        path: the file.
        what: what it was meant to be, for messages: ``hostfile``.
        error: the class of what is raised.

    Raises:
        InputError: of class ``error``: it can't be read, is too large, or is no text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except OSError as fault:
        raise error([Fault(shown(path), f"can't read the {what}: {fault.strerror}")]) from fault
    if len(data) > _MOST:
        raise error([Fault(shown(path), f"too large for a {what}: more than {_MOST // 1024 // 1024} MB")])
    return _decoded(path, data, error)


def _decoded(path: str, data: bytes, error: type[InputError]) -> str:
    """A byte order mark, as some editors write it, is not part of the text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        where = f"{shown(path)}:{data.count(10, 0, fault.start) + 1}"
        what = f"not UTF-8 text: byte 0x{data[fault.start]:02x}"
        raise error([Fault(where, what, "expected a text file")]) from fault
    if "\0" in text:
        where = f"{shown(path)}:{text.count(chr(10), 0, text.index(chr(0))) + 1}"
        raise error([Fault(where, "a NUL byte", "expected a text file")])
    return text


def shown(path: str) -> str:
    """A path as a message can show it, on one line."""
    return path if path.isprintable() else repr(path)
