"""The pytest plug-in: its fixture ``cluster`` starts real clusters, watches them and kills their tasks.

::

    def test_survives(cluster):
        job = cluster.start(["train.py"], ps=1, workers=2, flags=True)
        job.task("worker/0").until_prints("step 100")

Tests of user programs use it (docs/testing.md). pytest loads the plug-in in every project of an environment,
so this module must import nothing until one of its names is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers read it as True.

if TYPE_CHECKING:
    from launcher.testing.cluster import Cluster
    from launcher.testing.job import CannotStart, ClusterError, Job, Task, WaitFailed

__all__ = ["CannotStart", "Cluster", "ClusterError", "Job", "Task", "WaitFailed"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used.

    Raises:
        AttributeError: The name is not public.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher.testing import cluster, job  # noqa: PLC0415 - the plugin imports this package in every pytest

    return getattr(cluster if name == "Cluster" else job, name)
