"""The policy of restarts: whether a failed task starts again, which tasks with it, and after how long.

``--restart auto`` knows what TensorFlow's strategies can take back:

=====================  ====================================================================================
ps, no chief           (classic) every task alone
ps and chief           (ParameterServerStrategy) a worker alone; a ps or the chief: chief and all ps
no ps                  (MultiWorkerMirroredStrategy) chief and all workers together
other roles            an evaluator, a tf.data service, roles of the user's own: every task alone
exit code 42           (PreemptionCheckpointHandler) the whole job; not counted
=====================  ====================================================================================
"""

from __future__ import annotations

import enum
import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.job import CHIEF_ROLES, JobSpec, Placement, Role
from launcher.report import ExitStatus, Failure
from launcher.task_id import TaskId

#: Exit code of ``tf.distribute.experimental.PreemptionCheckpointHandler``.
PREEMPTED = 42
#: An exit with `PREEMPTED` after fewer seconds counts as a failure. When a task has run for more seconds, its
#: earlier restarts no longer count.
_PREEMPTED_AFTER, _FORGIVEN_AFTER = 10.0, 600.0
#: Seconds between two starts of a task that fails: the first time (each later time is twice as long), and at
#: most; the part that is added at random, so that tasks do not start at the same moment.
FIRST, _LONGEST, _JITTER = 1.0, 30.0, 0.25
#: Exit codes of a program that can't be run, or is not found.
_NO_PROGRAM = (126, 127)
_IMPORT_FAILED = re.compile(
    rb"(?m)^(ModuleNotFoundError|ImportError|SyntaxError|IndentationError)\b|^\S+: No module named "
)


class Decision(NamedTuple):
    """What starts again after a failure."""

    tasks: frozenset[TaskId]
    #: Tasks that ended well start again, too.
    all: bool
    #: Seconds until they start.
    wait: float
    #: The number of this restart among those that count; 0: it does not count.
    number: int
    #: The tasks end by themselves: they are not stopped at once.
    ending: bool = False


class Stage(enum.Enum):
    """The stage of a restart."""

    ENDING = "ending"  #: its tasks end by themselves
    WAITING = "waiting"  #: its tasks are stopped, and the time until the start is not over
    DUE = "due"  #: its tasks start when the last of them is gone


class Restart:
    """Tasks that start again together.

    Args:
        number: of this restart of the job, also one that does not count.
        tasks: that start again.
        all: also those of them that end well meanwhile.
        wait: seconds.
        cause: the failure; ``None``: the user asked for it.
    """

    def __init__(
        self, number: int, tasks: set[TaskId], all: bool, wait: float, cause: Failure | None
    ) -> None:
        self.timer = f"restart {number}"
        self.tasks = tasks
        self.all = all
        self.wait = wait
        self.cause = cause
        #: The message about it that is not shown yet: after a failure that may be of an import, the output of
        #: the task comes first. Empty: it was shown.
        self.notice = ""
        self.stage = Stage.WAITING


class Restarts:
    """The policy of one job, and what it has used of its restarts.

    Args:
        job: roles and policy.
        placement: its tasks.
        jitter: gives random numbers from 0 to 1.
    """

    def __init__(
        self, job: JobSpec, placement: Placement, jitter: Callable[[], float] = random.random
    ) -> None:
        self._policy = job.policy
        self.limit = job.policy.restarts
        self._roles = {placed.task: placed.role for placed in placement.tasks}
        self._names = {role.name for role in self._roles.values()}
        self._jitter = jitter
        #: Restarts that count, and all, by the task that failed.
        self._counted: dict[TaskId, int] = {}
        self._restarted: dict[TaskId, int] = {}

    @property
    def left(self) -> bool:
        """Whether one more failure may lead to a restart."""
        return sum(self._counted.values()) < self.limit

    def why_not(self, task: TaskId, status: ExitStatus) -> str:
        """The reason for the user why `after` returned ``None``; empty if the user asked for no restart."""
        if not self.limit or self._roles[task].restart == "never":
            return ""
        if status.code in _NO_PROGRAM:
            return "not started again: its program is missing or can't be run"
        return "" if self.left else f"no restart is left of {self.limit}"

    def after(
        self, task: TaskId, status: ExitStatus, ran: float, others: Sequence[TaskId] = ()
    ) -> Decision | None:
        """What starts again after the failure of a task; ``None``: nothing does.

        Args:
            task: that failed.
            status: how it ended.
            ran: seconds; 0: it never started.
            others: tasks that have failed together with it.
        """
        roles = {each: self._roles[each] for each in (task, *others)}
        never = any(role.sidecar or role.restart == "never" for role in roles.values())
        if not self.limit or never or status.code in _NO_PROGRAM:
            return None
        if ran >= _FORGIVEN_AFTER:
            self._counted.pop(task, None)
            self._restarted.pop(task, None)
        preempted = status.code == PREEMPTED and ran >= _PREEMPTED_AFTER
        if not preempted and not self.left:
            return None
        self._restarted[task] = self._restarted.get(task, 0) + 1
        if not preempted:
            self._counted[task] = self._counted.get(task, 0) + 1
        groups = [self._group(role, each, preempted) for each, role in roles.items()]
        tasks = frozenset().union(*(group for group, _ in groups))
        everything = any(each for _, each in groups)
        number = 0 if preempted else sum(self._counted.values())
        return Decision(tasks, everything, self._wait(self._restarted[task], ran), number, preempted)

    def _wait(self, restart: int, ran: float) -> float:
        pause: float = FIRST * 2 ** min(restart - 1, 10) * (1 + _JITTER * self._jitter())
        return max(0.0, min(_LONGEST, pause) - ran)

    def _group(self, role: Role, task: TaskId, preempted: bool) -> tuple[frozenset[TaskId], bool]:
        """The tasks that start again together; whether those that ended well do, too."""
        rule = role.restart or self._policy.restart
        if preempted or rule == "job":
            return self._of(lambda other: not other.sidecar), True
        chiefs = self._names.intersection(CHIEF_ROLES)
        if rule == "auto" and "ps" not in self._names and role.name in {"worker", *chiefs}:
            return self._of(lambda other: other.name in {"worker", *chiefs}), True
        if rule == "auto" and chiefs and role.name in {"ps", *chiefs}:
            return self._of(lambda other: other.name in {"ps", *chiefs}), False
        return frozenset([task]), False

    def _of(self, chosen: Callable[[Role], bool]) -> frozenset[TaskId]:
        return frozenset(task for task, role in self._roles.items() if chosen(role))


def cannot_import(tail: bytes) -> bool:
    """Whether a Python program has ended because it, or a module that it imports, can't be imported.

    Args:
        tail: the end of its output.
    """
    return _IMPORT_FAILED.search(tail) is not None
