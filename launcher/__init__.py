"""Launches distributed TensorFlow jobs.

The front door: what is listed in ``__all__`` is public, everything below is the house. Names are
fetched when they are first asked for, because a launch imports this package on its way and must
not pay for what it does not use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers look for; ``typing`` has it too, and costs 3 ms

if TYPE_CHECKING:
    from launcher.api.compat import compat
    from launcher.api.context import TFNodeContext
    from launcher.api.inputmode import InputMode
    from launcher.api.tfcluster import TFCluster
    from launcher.api.tfnode import TFNode
    from launcher.api.tfparallel import TFParallel
    from launcher.errors import (
        FeedError,
        FeedTimeout,
        HostfileError,
        InputError,
        JobError,
        JobFailed,
        LaunchError,
        PlacementError,
        TaskFailed,
        TransportError,
        WireError,
    )
    from launcher.feed.files import CsvFiles, TextFiles, TFRecordFiles
    from launcher.feed.partitions import partitions, rows
    from launcher.feed.remote.data_feed import DataFeed
    from launcher.job import Host, JobSpec, OnFailure, Policy, Program, Role, TaskId
    from launcher.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState

__version__ = "0.1.0"

__all__ = [
    "CsvFiles",
    "DataFeed",
    "ExitStatus",
    "Failure",
    "FeedError",
    "FeedTimeout",
    "Host",
    "HostfileError",
    "InputError",
    "InputMode",
    "JobError",
    "JobFailed",
    "JobSpec",
    "LaunchError",
    "OnFailure",
    "PlacementError",
    "Policy",
    "Program",
    "Reason",
    "Report",
    "Role",
    "TFCluster",
    "TFNode",
    "TFNodeContext",
    "TFParallel",
    "TFRecordFiles",
    "TaskFailed",
    "TaskId",
    "TaskReport",
    "TaskState",
    "TextFiles",
    "TransportError",
    "WireError",
    "compat",
    "partitions",
    "rows",
]

_HOMES = {
    "launcher.api.compat": "compat",
    "launcher.api.context": "TFNodeContext",
    "launcher.api.inputmode": "InputMode",
    "launcher.api.tfcluster": "TFCluster",
    "launcher.api.tfnode": "TFNode",
    "launcher.api.tfparallel": "TFParallel",
    "launcher.errors": (
        "FeedError FeedTimeout HostfileError InputError JobError JobFailed LaunchError PlacementError "
        "TaskFailed TransportError WireError"
    ),
    "launcher.feed.remote.data_feed": "DataFeed",
    "launcher.feed.files": "CsvFiles TFRecordFiles TextFiles",
    "launcher.feed.partitions": "partitions rows",
    "launcher.job": "Host JobSpec OnFailure Policy Program Role TaskId",
    "launcher.report": "ExitStatus Failure Reason Report TaskReport TaskState",
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
