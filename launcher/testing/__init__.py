"""The pytest plug-in: its fixture ``cluster`` starts real clusters, watches them and kills their tasks.

::

    def test_survives(cluster):
        job = cluster.start(["train.py"], ps=1, workers=2, flags=True)
        job.task("worker/0").until_prints("step 100")

See docs/testing.md. Names are imported when they are first used: pytest loads the plug-in in every project of
an environment.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True

if TYPE_CHECKING:
    from launcher.testing.cluster import Cluster
    from launcher.testing.job import CannotStart, ClusterError, Job, Task, WaitFailed

__all__ = ["CannotStart", "Cluster", "ClusterError", "Job", "Task", "WaitFailed"]


def __getattr__(name: str) -> object:
    """The public name, imported now and kept for the next time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "launcher.testing.cluster" if name == "Cluster" else "launcher.testing.job"
    value: object = getattr(__import__(home, fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
