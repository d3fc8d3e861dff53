"""Events and the report as plain JSON values: what ``events.jsonl``, ``report.json`` and ``--json`` hold."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.events import Tell
from launcher.output.base import Shown
from launcher.report import Report

if TYPE_CHECKING:
    from typing import Any


def report_as_dict(report: Report) -> dict[str, Any]:
    """The report field by field: an enum is its value, a record an object, a tuple a list."""
    return _record(report)


def event_as_dict(event: Shown, now: float) -> dict[str, Any]:
    """``{"event": "TaskExited", "at": ..., ...}``; ``now`` (epoch seconds) dates a remark."""
    fields = _record(event)
    if isinstance(event, Tell):
        fields["at"] = now
    return {"event": type(event).__name__, "at": fields.pop("at", now), **fields}


def _record(record: Any) -> dict[str, Any]:
    return {name: _value(value) for name, value in zip(record._fields, record, strict=True)}


def _value(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "_fields"):
        return _record(value)
    if isinstance(value, Mapping):
        return {str(key): _value(each) for key, each in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_value(each) for each in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
