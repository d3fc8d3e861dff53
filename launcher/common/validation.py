"""Checks the types, ranges and lengths of the fields that hosts send, before anything else uses them.

`launcher.common.protocol` calls `FieldReader` for every message. The types are the annotations of the
records. The limits are in the tables below, by the name of a field, and a number that no table contains is an
error of this program. Hosts with Python 3.8 import this module.

No message may harm more than the host that sent it. If it is wrong here, comes at the wrong moment
(`launcher.supervisor.machine`) or is about a task of another host, then its host counts as lost. An
impossible change of a state after these checks is a bug of launch. All texts of hosts become one line without
control characters, so that no host can forge lines of launch.
"""

from enum import EnumMeta
from functools import lru_cache
from typing import Any, Collection, Dict, Mapping, Optional, Sequence, Tuple, get_type_hints

from launcher.common.cluster import TaskId, is_task_name
from launcher.common.errors import ProtocolError
from launcher.common.record import Record
from launcher.common.text import sanitize_host_text

#: Linux has at most this number of processes.
_PROCESS_RANGE = (0, 1 << 22)
_BYTE_RANGE = (0, 1 << 62)
#: For numbers that count messages or attempts.
_COUNT_RANGE = (0, 1 << 62)
#: The smallest and the largest value of each number, by the name of its field. Times, which are in seconds,
#: reach to the year 2286.
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
    "gpu": (0, 100),
    "gpu_memory": _BYTE_RANGE,
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
    "signal": (0, 64),  # `SignalTask` may ask for 0, which only checks the processes.
    "size": _BYTE_RANGE,
    "status": (-64, 255),
    "unkillable": (1, 1 << 22),
    "user": (0, 1 << 32),
}
#: The largest number of items in a list or an object, by the name of its field.
MAX_LENGTHS: Mapping[str, int] = {
    **dict.fromkeys(("cpu_s", "gpu", "gpu_memory", "memory", "ports"), 1 << 16),
    "unreachable": 16,
}
#: The largest number of items in any other list or object.
_MAX_ITEMS = 1000
#: The largest number of characters in texts that programs use as they are, by the name of the field. All
#: other texts are for users and pass `sanitize_host_text`.
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
    """A reader that converts JSON to the values of records, and checks them.

    Args:
        trusted: Whether our launcher has written the JSON. Then only types are checked, and unknown fields
            are ignored.
        tasks: The tasks that the fields may name. None means any task.
    """

    trusted: bool = False
    tasks: Optional[Collection[str]] = None

    def read(self, record: Any, fields: Any) -> Tuple[Any, ...]:
        """Return the values of the fields of a record, converted and checked.

        Args:
            record: The class of the record.
            fields: The JSON object with the fields. It contains neither ``data``, which is sent as raw bytes,
                nor a first field ``host``.

        Returns:
            The values in the order of the fields.

        Raises:
            ProtocolError: A field is missing or unknown, or its value has another type or is outside its
                limits.
            ValueError: An enum has no such value.
        """
        if not isinstance(fields, dict):
            raise ProtocolError("the fields are not a JSON object")
        hints = _hints(record)
        defaults = record._field_defaults
        # Almost always the fields are just those of the record.
        if fields.keys() != hints.keys():
            missing = hints.keys() - fields.keys() - defaults.keys()
            unknown = fields.keys() - hints.keys()
            # A newer version of our launcher may write fields that this one does not know.
            if missing or (unknown and not self.trusted):
                raise ProtocolError(f"missing fields {sorted(missing)}, unknown fields {sorted(unknown)[:5]}")
        return tuple(
            self._value(name, hint, fields[name]) if name in fields else defaults[name]
            for name, hint in hints.items()
        )

    def _value(self, name: str, hint: Any, value: Any) -> Any:
        """Return a JSON value, converted to the type of an annotation and checked.

        - A text, a bool, a number or the name of a task is checked against its limits.
        - The value of an enum becomes a member of it.
        - A JSON object becomes a record, whose fields are converted in the same way.
        - Everything else is left to `_values`: None, lists and other JSON objects.

        Args:
            name: The name of the field, by which the tables list limits.
            hint: The annotation of the field, or of an item in it.
            value: The value.

        Raises:
            ProtocolError: The value has another type, or is outside its limits.
            ValueError: An enum has no such value.
        """
        # `type`, because `isinstance` would accept True for an int.
        kind = type(value)
        if hint is str and kind is str:
            return self._text(name, value)
        if hint is Any or (hint is bool and kind is bool):
            return value
        # JSON writes a float without decimals as a whole number. A bool is no int here.
        if (hint is int or hint is float) and kind in (int, hint):
            low, high = _TRUSTED_RANGE if self.trusted else RANGES[name]
            if low <= value <= high:  # This is false for NaN.
                return hint(value)
            raise ProtocolError(f"{name} is not from {low:.10g} to {high:.10g}")
        if hint is TaskId and kind is str:
            # A host may speak only about its own tasks.
            if self.tasks is not None and value not in self.tasks:
                raise ProtocolError(f"{name} names {value[:100]!r}, which is not a task of this host")
            if self.tasks is None and not is_task_name(value):
                raise ProtocolError(f"{name} names {value[:100]!r}, which is no task")
            return TaskId(value)
        if isinstance(hint, EnumMeta):
            return hint(value)
        # `hasattr` is slow for types of `typing`, which `isinstance` excludes first.
        if isinstance(hint, type) and hasattr(hint, "_fields"):
            return hint(*self.read(hint, value))
        return self._values(name, hint, value)

    def _text(self, name: str, text: str) -> str:
        """Return the text of a field: exactly as it was sent, or on one safe line if it is for users.

        Args:
            name: The name of the field, which decides about that.
            text: The text.

        Raises:
            ProtocolError: The text is too long for this field.
            ValueError: The text cannot be converted to bytes.
        """
        if self.trusted:
            return text
        if name not in MAX_EXACT_CHARACTERS:
            return sanitize_host_text(text)
        if len(text) > MAX_EXACT_CHARACTERS[name]:
            raise ProtocolError(f"{name} is longer than {MAX_EXACT_CHARACTERS[name]} characters")
        # A path must be convertible to bytes.
        text.encode("utf-8", "surrogateescape")
        return text

    def _values(self, name: str, hint: Any, value: Any) -> Any:
        """Convert a value as `_value` does, for the annotations ``Optional``, ``Tuple`` and ``Mapping``.

        A JSON list becomes a tuple, whose annotation has one type for all items or one for each. A JSON
        object becomes a dict. From a host, neither may have more items than its limit.

        Args:
            name: The name of the field, by which the tables list limits.
            hint: The annotation of the field, or of an item in it.
            value: The value.

        Raises:
            ProtocolError: The value has another type, or too many items.
        """
        kind = type(value)
        # Of Tuple[int, ...], the origin is tuple and the arguments are (int, Ellipsis).
        origin: Any = getattr(hint, "__origin__", None)
        arguments: Sequence[Any] = getattr(hint, "__args__", ())
        # Optional[X] is Union[X, None].
        if type(None) in arguments:
            return None if value is None else self._value(name, arguments[0], value)
        max_items = MAX_LENGTHS.get(name, _MAX_ITEMS)
        if kind in (list, dict) and not self.trusted and len(value) > max_items:
            raise ProtocolError(f"{name} has {len(value)} items, more than {max_items}")
        if origin is tuple and kind is list:
            if arguments[-1] is Ellipsis:
                return tuple(self._value(name, arguments[0], item) for item in value)
            if len(value) == len(arguments):
                return tuple(self._value(name, *pair) for pair in zip(arguments, value))
        # Only a mapping is left. An annotation without ``[]`` has no origin.
        elif origin not in (None, tuple) and kind is dict:
            key_hint, item_hint = arguments
            keys = [self._value(name, key_hint, key) for key in value]
            items = [self._value(name, item_hint, item) for item in value.values()]
            return dict(zip(keys, items))
        raise ProtocolError(f"{name} is not {getattr(hint, '__name__', hint)} but {kind.__name__}")


@lru_cache(maxsize=None)
def _hints(record: Any) -> Dict[str, Any]:
    """Return the annotations of those fields of a record class that JSON contains.

    They are cached for each class, because finding them out takes longer than reading a message.
    """
    hints, names = get_type_hints(record), record._fields
    # A message does not contain its host, the first field, because a connection belongs to one host.
    if names[:1] == ("host",):
        names = names[1:]
    return {name: hints[name] for name in names if name != "data"}
