"""Launches distributed TensorFlow jobs.

The names in ``__all__`` are public. They are imported when they are first used: a launch imports this package
and must not pay for what it does not use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers look for; ``typing`` has it too, and costs 3 ms

if TYPE_CHECKING:
    from launcher.api.cluster import TFCluster as TFCluster
    from launcher.api.parallel import TFParallel as TFParallel
    from launcher.api.remote.node import InputMode as InputMode
    from launcher.api.remote.node import TFNode as TFNode
    from launcher.api.remote.node import TFNodeContext as TFNodeContext
    from launcher.api.remote.node import compat as compat
    from launcher.api.run import run as run
    from launcher.errors import FeedError as FeedError
    from launcher.errors import FeedTimeout as FeedTimeout
    from launcher.errors import HostfileError as HostfileError
    from launcher.errors import InputError as InputError
    from launcher.errors import JobError as JobError
    from launcher.errors import JobFailed as JobFailed
    from launcher.errors import LaunchError as LaunchError
    from launcher.errors import TaskFailed as TaskFailed
    from launcher.feed.files import CsvFiles as CsvFiles
    from launcher.feed.files import TextFiles as TextFiles
    from launcher.feed.files import TFRecordFiles as TFRecordFiles
    from launcher.feed.remote.data_feed import DataFeed as DataFeed
    from launcher.feed.sources import partitions as partitions
    from launcher.feed.sources import rows as rows
    from launcher.job import TaskId as TaskId
    from launcher.report import ExitStatus as ExitStatus
    from launcher.report import Failure as Failure
    from launcher.report import Reason as Reason
    from launcher.report import Report as Report
    from launcher.report import TaskReport as TaskReport
    from launcher.report import TaskState as TaskState

__version__ = "0.1.0"

#: Module -> its public names, which ``TYPE_CHECKING`` above has, too.
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
    "launcher.task_id": "TaskId",
    "launcher.report": "ExitStatus Failure Reason Report TaskReport TaskState",
}

__all__ = sorted(" ".join(_HOMES.values()).split())


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
