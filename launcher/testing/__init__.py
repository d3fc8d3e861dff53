"""For tests: of jobs without a process, and of real clusters.

What supervision makes of recorded facts::

    played = play(job, hosts, [AgentReady("node1", 0.0, 1, {}), PortsHeld("node1", 0.1, ports), ...])
    assert played.exit_code == 7

A whole run, with agents that only pretend::

    fake = FakeTransport({"worker/1": exits(7), "ps/0": runs()})
    report = Orchestrator(job, place(job, hosts), lambda host: fake, renderers, opening).run()

A real cluster, started, watched and hurt by a test of yours: the fixture ``cluster`` of the pytest plug-in
(`launcher.testing.plugin`, docs/testing.md)::

    def test_survives(cluster):
        job = cluster.start(["train.py"], ps=1, workers=2, flags=True)
        job.task("worker/0").until_prints("step 100")

Names are fetched when they are first asked for: pytest loads the plug-in in every project of an environment,
and whoever does not use it must not pay for it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers look for

if TYPE_CHECKING:
    from launcher.testing.clock import FakeClock
    from launcher.testing.cluster import Cluster
    from launcher.testing.fakes import (
        SIGKILL,
        SIGTERM,
        Agent,
        Answer,
        End,
        FakeAgent,
        FakeLink,
        FakeTransport,
        exits,
        killed,
        missing,
        runs,
    )
    from launcher.testing.job import Job
    from launcher.testing.rehearsal import OrderKind, Played, Rehearsal, Step, Where, play
    from launcher.testing.task import Task
    from launcher.testing.trouble import CannotStart, ClusterError, WaitFailed

__all__ = [
    "SIGKILL",
    "SIGTERM",
    "Agent",
    "Answer",
    "CannotStart",
    "Cluster",
    "ClusterError",
    "End",
    "FakeAgent",
    "FakeClock",
    "FakeLink",
    "FakeTransport",
    "Job",
    "OrderKind",
    "Played",
    "Rehearsal",
    "Step",
    "Task",
    "WaitFailed",
    "Where",
    "exits",
    "killed",
    "missing",
    "play",
    "runs",
]

_HOMES = {
    "launcher.testing.clock": "FakeClock",
    "launcher.testing.cluster": "Cluster",
    "launcher.testing.fakes": (
        "SIGKILL SIGTERM Agent Answer End FakeAgent FakeLink FakeTransport exits killed missing runs"
    ),
    "launcher.testing.job": "Job",
    "launcher.testing.rehearsal": "OrderKind Played Rehearsal Step Where play",
    "launcher.testing.task": "Task",
    "launcher.testing.trouble": "CannotStart ClusterError WaitFailed",
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
    return list(__all__)
