"""What one task's end means for the job."""

from __future__ import annotations

import enum

from launcher.job import OnFailure, Placement, TaskId


class Verdict(enum.Enum):
    """What is to be done now."""

    GO_ON = "go on"
    DONE = "done"  #: everything that had to end has ended: stop the rest, it counts as success
    STOP = "stop"  #: something failed: stop the rest


def deciders(placement: Placement) -> frozenset[TaskId]:
    """The tasks whose ends end the job: the chief; without one, all that are no service.

    A ps or evaluator never ends by itself (``server.join()`` blocks for ever), so it is not waited for,
    unless there is nothing else. A sidecar is nothing of the job's at all.
    """
    tasks = [placed for placed in placement.tasks if not placed.role.sidecar] or placement.tasks
    chief = [placed.task for placed in tasks if placed.role.name == "chief"]
    working = [placed.task for placed in tasks if not placed.role.service]
    return frozenset(chief or working or [placed.task for placed in tasks])


def verdict(on_failure: OnFailure, failed: bool, undecided: int) -> Verdict:
    """What the job does after a task has ended.

    Args:
        on_failure: what was asked for.
        failed: whether any task has failed by itself so far.
        undecided: how many `deciders` have not ended.
    """
    if failed and on_failure is OnFailure.STOP:
        return Verdict.STOP
    return Verdict.GO_ON if undecided else Verdict.DONE
