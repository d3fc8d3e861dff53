"""The public API of the launcher for distributed TensorFlow jobs.

The names in ``__all__`` are public. Each is imported when it is first used, so that a launch imports only the
modules that it needs. This module must not import any other module of the package by itself.
"""

from __future__ import annotations

# Type checkers know this name by itself. Importing it from ``typing`` takes 3 ms.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from launcher.api.cluster import TFCluster as TFCluster
    from launcher.api.parallel import TFParallel as TFParallel
    from launcher.api.remote.node import InputMode as InputMode
    from launcher.api.remote.node import TFNode as TFNode
    from launcher.api.remote.node import TFNodeContext as TFNodeContext
    from launcher.api.remote.node import compat as compat
    from launcher.api.run import run as run
    from launcher.common.cluster import TaskId as TaskId
    from launcher.common.errors import FeedError as FeedError
    from launcher.common.errors import FeedTimeout as FeedTimeout
    from launcher.common.errors import HostfileError as HostfileError
    from launcher.common.errors import InputError as InputError
    from launcher.common.errors import JobError as JobError
    from launcher.common.errors import JobFailed as JobFailed
    from launcher.common.errors import LaunchError as LaunchError
    from launcher.common.errors import TaskFailed as TaskFailed
    from launcher.common.report import ExitStatus as ExitStatus
    from launcher.common.report import Failure as Failure
    from launcher.common.report import Reason as Reason
    from launcher.common.report import Report as Report
    from launcher.common.report import TaskReport as TaskReport
    from launcher.common.report import TaskState as TaskState
    from launcher.feed.files import CsvFiles as CsvFiles
    from launcher.feed.files import ParquetFiles as ParquetFiles
    from launcher.feed.files import TextFiles as TextFiles
    from launcher.feed.files import TFRecordFiles as TFRecordFiles
    from launcher.feed.remote.data_feed import DataFeed as DataFeed
    from launcher.feed.sources import partitions as partitions
    from launcher.feed.sources import rows as rows
    from launcher.storage.store import StorageError as StorageError

__version__ = "0.1.0"

#: The public names by module. They are the same as under ``TYPE_CHECKING`` above.
_MODULES = {
    "launcher.api.cluster": "TFCluster",
    "launcher.api.parallel": "TFParallel",
    "launcher.api.remote.node": "InputMode TFNode TFNodeContext compat",
    "launcher.api.run": "run",
    "launcher.common.errors": (
        "FeedError FeedTimeout HostfileError InputError JobError JobFailed LaunchError TaskFailed"
    ),
    "launcher.feed.files": "CsvFiles ParquetFiles TFRecordFiles TextFiles",
    "launcher.feed.remote.data_feed": "DataFeed",
    "launcher.feed.sources": "partitions rows",
    "launcher.common.cluster": "TaskId",
    "launcher.common.report": "ExitStatus Failure Reason Report TaskReport TaskState",
    "launcher.storage.store": "StorageError",
}

__all__ = sorted(" ".join(_MODULES.values()).split())


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    for module, names in _MODULES.items():
        if name in names.split():
            value: object = getattr(__import__(module, fromlist=[name]), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that were not used yet, for completion in an interpreter."""
    return [*__all__, "__version__"]
