"""The fields of what a host sends: their types, ranges and lengths, checked where they are read.

A record's annotations are the types. The tables below have the limits, by the name of a field: a number that
is in no table is an error of this program. Hosts with Python 3.8 import this module.

A message that is wrong here, that comes at the wrong moment (`launcher.supervisor.machine`), or that is about
a task of another host, ends nothing but the host that sent it: it is lost. An impossible change of a state
after these checks is a bug of launch. All texts of hosts become one line without control characters, so that
no host can forge lines of launch.
"""

from enum import EnumMeta
from functools import lru_cache
from typing import Any, Collection, Dict, Mapping, Optional, Sequence, Tuple, get_type_hints

from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.common.record import Record
from launcher.common.text import sanitize_host_text

#: Limits of numbers of processes, of bytes, and of what counts messages.
_PROCESS_RANGE = (0, 1 << 22)
_BYTE_RANGE = (0, 1 << 62)
_COUNT_RANGE = (0, 1 << 62)
#: The smallest and the largest value of each number. Times are in seconds: up to the year 2286.
RANGES: Mapping[str, Tuple[float, float]] = {
    "at": (0, 1e10),
    "attempt": _COUNT_RANGE,
    "available": _BYTE_RANGE,
    "code": (0, 255),
    "command": _COUNT_RANGE,
    "count": _COUNT_RANGE,
    "cpu_s": (0, 1e10),
    "cpus": (1, 1 << 20),
    "first": _COUNT_RANGE,
    "free": _BYTE_RANGE,
    "leftovers": _PROCESS_RANGE,
    "memory": _BYTE_RANGE,
    "mode": (0, 0o777),
    "mtime_ns": (-(1 << 62), 1 << 62),
    "peak_rss": _BYTE_RANGE,
    "pid": (1, 1 << 22),
    "port": (0, 65535),
    "ports": (1, 65535),
    "processes": _PROCESS_RANGE,
    "received": _COUNT_RANGE,
    "signal": (0, 64),  # `SignalTask` may ask for 0
    "size": _BYTE_RANGE,
    "status": (-64, 255),
    "unkillable": (1, 1 << 22),
    "user": (0, 1 << 32),
}
#: The most items of a list or an object; `_MAX_ITEMS` of any other.
MAX_LENGTHS: Mapping[str, int] = {"ports": 1 << 16, "memory": 1 << 16, "unreachable": 16}
_MAX_ITEMS = 1000
#: The most characters of texts that programs use as they are; any other is for users: see
#: `sanitize_host_text`.
MAX_EXACT_CHARACTERS: Mapping[str, int] = {
    "output": 2000,
    "path": 4096,
    "paths": 4096,
    "session": 64,
    "states": 1 << 20,
    "stderr": 1 << 16,
    "target": 4096,
}
_TRUSTED_RANGE = (-(2**63), 2**63 - 1)


class FieldReader(Record):
    """Reads fields from JSON.

    Args:
        trusted: our launcher has written them: only types are checked, unknown fields are left out.
        tasks: the tasks that they may name; ``None``: any.
    """

    trusted: bool = False
    tasks: Optional[Collection[str]] = None

    def read(self, record: Any, given: Any) -> Tuple[Any, ...]:
        """The values of a record's fields (but ``data``) in order, converted and checked.

        Raises:
            ProtocolError: a field is missing, unknown, of another type, or outside its limits.
            ValueError: an enum has no such value.
        """
        if not isinstance(given, dict):
            raise ProtocolError("the fields are not a JSON object")
        hints = _hints(record)
        defaults = record._field_defaults
        if given.keys() != hints.keys():
            missing = hints.keys() - given.keys() - defaults.keys()
            unknown = given.keys() - hints.keys()
            if missing or (unknown and not self.trusted):
                raise ProtocolError(f"missing fields {sorted(missing)}, unknown fields {sorted(unknown)[:5]}")
        return tuple(
            self._value(name, hint, given[name]) if name in given else defaults[name]
            for name, hint in hints.items()
        )

    def _value(self, name: str, hint: Any, value: Any) -> Any:
        """A JSON value, converted to the type of an annotation."""
        given = type(value)
        if hint is str and given is str:
            return self._text(name, value)
        if hint is Any or (hint is bool and given is bool):
            return value
        if (hint is int or hint is float) and given in (int, hint):
            low, high = _TRUSTED_RANGE if self.trusted else RANGES[name]
            if low <= value <= high:  # NaN is not
                return hint(value)
            raise ProtocolError(f"{name} is not from {low:.10g} to {high:.10g}")
        if hint is TaskId and given is str:
            if self.tasks is not None and value not in self.tasks:
                raise ProtocolError(f"{name} names {value[:100]!r}, which is not a task of this host")
            return TaskId(value)
        if isinstance(hint, EnumMeta):
            return hint(value)
        if isinstance(hint, type) and hasattr(hint, "_fields"):  # the second is slow for types of `typing`
            return hint(*self.read(hint, value))
        return self._values(name, hint, value)

    def _text(self, name: str, text: str) -> str:
        if self.trusted:
            return text
        if name not in MAX_EXACT_CHARACTERS:
            return sanitize_host_text(text)
        if len(text) > MAX_EXACT_CHARACTERS[name]:
            raise ProtocolError(f"{name} is longer than {MAX_EXACT_CHARACTERS[name]} characters")
        text.encode("utf-8", "surrogateescape")  # a path is bytes: ValueError
        return text

    def _values(self, name: str, hint: Any, value: Any) -> Any:
        """The same for ``Optional``, ``Tuple`` and ``Mapping``."""
        given = type(value)
        origin: Any = getattr(hint, "__origin__", None)
        arguments: Sequence[Any] = getattr(hint, "__args__", ())
        if type(None) in arguments:
            return None if value is None else self._value(name, arguments[0], value)
        if given in (list, dict) and not self.trusted and len(value) > MAX_LENGTHS.get(name, _MAX_ITEMS):
            raise ProtocolError(
                f"{name} has {len(value)} items, more than {MAX_LENGTHS.get(name, _MAX_ITEMS)}"
            )
        if origin is tuple and given is list:
            if arguments[-1] is Ellipsis:
                return tuple(self._value(name, arguments[0], item) for item in value)
            if len(value) == len(arguments):
                return tuple(self._value(name, *pair) for pair in zip(arguments, value))
        elif origin not in (None, tuple) and given is dict:
            key, item = arguments
            return {self._value(name, key, k): self._value(name, item, v) for k, v in value.items()}
        raise ProtocolError(f"{name} is not {getattr(hint, '__name__', hint)} but {given.__name__}")


@lru_cache(maxsize=None)
def _hints(record: Any) -> Dict[str, Any]:
    hints, names = get_type_hints(record), record._fields
    # The host is not part of a message: a connection belongs to one host.
    return {name: hints[name] for name in names[names[:1] == ("host",) :] if name != "data"}
