"""Pickles that contain the code of functions, by cloudpickle: its tracebacks show file, line and source."""

from __future__ import annotations

import io
import linecache
import pickle
from types import CodeType
from typing import Any, Callable

import cloudpickle

#: Characters of a source file; the source of a longer one does not travel.
_LONGEST = 1 << 20


def dumps(
    value: object,
    protocol: int | None = None,
    keep: Callable[[pickle.PickleBuffer], Any] | None = None,
    *,
    sources: bool = False,
) -> bytes:
    """Pickle a value.

    Args:
        keep: takes the buffers, which are not part of the pickle then (``buffer_callback`` of `pickle`).
        sources: the source files of the functions travel, too: they may not exist where the pickle is loaded.

    Raises:
        Exception: whatever an object of the program raises when it is pickled.
    """
    with io.BytesIO() as file:
        _Pickler(file, protocol, keep, sources).dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """cloudpickle since 3.1.3 replaces the file name of all code by ``<dynamic-code>``; this one keeps it."""

    def __init__(self, file: io.BytesIO, protocol: int | None, keep: Any, sources: bool) -> None:
        self._sources: dict[str, str] | None = {} if sources else None
        table = cloudpickle.Pickler.dispatch_table
        self._reduce = table[CodeType]
        self.dispatch_table = table.new_child({CodeType: self._code})  # before __init__, which reads it
        super().__init__(file, protocol, keep)

    def _code(self, code: CodeType) -> Any:
        name = code.co_filename
        return _restore, (*self._reduce(code)[:2], name, self._source(name))

    def _source(self, name: str) -> str:
        """The text of a file, the same object each time: pickle writes an object once."""
        if self._sources is None:
            return ""
        if name not in self._sources:
            source = "".join(linecache.getlines(name))
            self._sources[name] = source if len(source) <= _LONGEST else ""
        return self._sources[name]


def _restore(kind: Callable[..., CodeType], values: Any, name: str, source: str) -> CodeType:
    """Make a code object of what cloudpickle wrote of it, with the name and the source of its file."""
    if source:
        # No time of modification: linecache does not compare it with a file of that name.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return kind(*values).replace(co_filename=name)
