"""Launches distributed TensorFlow jobs.

The front door: what is listed in ``__all__`` is public, everything below is the house. Names are
fetched when they are first asked for, because a launch imports this package on its way and must
not pay for what it does not use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers look for; ``typing`` has it too, and costs 3 ms

if TYPE_CHECKING:
    from launcher.errors import (
        HostfileError,
        InputError,
        JobError,
        LaunchError,
        PlacementError,
        TransportError,
        WireError,
    )
    from launcher.model.host import Host
    from launcher.model.job import JobSpec, OnFailure, Policy, Program, Role
    from launcher.model.report import Failure, Report, TaskReport
    from launcher.model.status import ExitStatus, Reason, TaskState
    from launcher.model.task import TaskId

__version__ = "0.1.0"

__all__ = [
    "ExitStatus",
    "Failure",
    "Host",
    "HostfileError",
    "InputError",
    "JobError",
    "JobSpec",
    "LaunchError",
    "OnFailure",
    "PlacementError",
    "Policy",
    "Program",
    "Reason",
    "Report",
    "Role",
    "TaskId",
    "TaskReport",
    "TaskState",
    "TransportError",
    "WireError",
]

_HOMES = {
    "launcher.errors": (
        "HostfileError InputError JobError LaunchError PlacementError TransportError WireError"
    ),
    "launcher.model.host": "Host",
    "launcher.model.job": "JobSpec OnFailure Policy Program Role",
    "launcher.model.report": "Failure Report TaskReport",
    "launcher.model.status": "ExitStatus Reason TaskState",
    "launcher.model.task": "TaskId",
}


def __getattr__(name: str) -> object:
    """The public name, imported now and kept for the next time."""
    for home, names in _HOMES.items():
        if name in names.split():
            value: object = getattr(__import__(home, fromlist=[name]), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
