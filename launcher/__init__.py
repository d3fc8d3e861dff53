"""Launches distributed TensorFlow jobs.

The names in ``__all__`` are public. They are imported when they are first used: a launch imports this package
and must not pay for what it does not use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers look for; ``typing`` has it too, and costs 3 ms

if TYPE_CHECKING:
    from launcher.api.cluster import TFCluster
    from launcher.api.parallel import TFParallel
    from launcher.api.remote.node import InputMode, TFNode, TFNodeContext, compat
    from launcher.api.run import run
    from launcher.errors import (
        FeedError,
        FeedTimeout,
        HostfileError,
        InputError,
        JobError,
        JobFailed,
        LaunchError,
        TaskFailed,
    )
    from launcher.feed.files import CsvFiles, TextFiles, TFRecordFiles
    from launcher.feed.remote.data_feed import DataFeed
    from launcher.feed.sources import partitions, rows
    from launcher.job import TaskId
    from launcher.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState

__version__ = "0.1.0"

__all__ = [
    "CsvFiles",
    "DataFeed",
    "ExitStatus",
    "Failure",
    "FeedError",
    "FeedTimeout",
    "HostfileError",
    "InputError",
    "InputMode",
    "JobError",
    "JobFailed",
    "LaunchError",
    "Reason",
    "Report",
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
    "compat",
    "partitions",
    "rows",
    "run",
]

_HOMES = {
    "launcher.api.cluster": "TFCluster",
    "launcher.api.parallel": "TFParallel",
    "launcher.api.remote.node": "InputMode TFNode TFNodeContext compat",
    "launcher.api.run": "run",
    "launcher.errors": (
        "FeedError FeedTimeout HostfileError InputError JobError JobFailed LaunchError TaskFailed"
    ),
    "launcher.feed.files": "CsvFiles TFRecordFiles TextFiles",
    "launcher.feed.remote.data_feed": "DataFeed",
    "launcher.feed.sources": "partitions rows",
    "launcher.job": "TaskId",
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
