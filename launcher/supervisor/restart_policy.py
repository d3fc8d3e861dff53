"""The policy of restarts: whether a failed task starts again, which tasks with it, and after which pause.

`launcher.supervisor.restarting` asks it after each failure, and does what it says. The policy itself starts
and stops nothing.

``--restart auto`` knows what TensorFlow's strategies can recover from:

=====================  ====================================================================================
ps, no chief           (classic) every task alone
ps and chief           (ParameterServerStrategy) a worker alone; a ps or the chief: chief and all ps
no ps                  (MultiWorkerMirroredStrategy) chief and all workers together
other roles            an evaluator, a tf.data service, roles of the user's own: every task alone
exit code 42           (PreemptionCheckpointHandler) the whole job; not counted
after a lost ps        every task that fails because of it; not counted
after another task     a task that starts alone, and whose exception names the lost one; not counted
=====================  ====================================================================================

`MAX_ALIKE_FAILURES` failures in a row with one cause (task, exit code or signal, exception), without progress
of the job between them, are the last. The job has made progress if the number of a step, an epoch or the like
that a task printed last is larger than the one that it had printed last at the failure before. Only the last
numbers are compared, because programs print their target (``epochs=100``) before they train.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from launcher.common.cluster import TaskId
from launcher.common.report import ExitStatus, Reason
from launcher.job import CHIEF_ROLES, JobSpec, Placement, Role
from launcher.supervisor.records import Restart, Stage, TaskRecord

#: Exit code of ``tf.distribute.experimental.PreemptionCheckpointHandler``.
PREEMPTED_EXIT_CODE = 42
#: An exit with that code after fewer seconds counts as a failure.
_MIN_PREEMPTION_SECONDS = 10.0
#: When a task has run for this long, its earlier restarts no longer count.
_FORGIVEN_AFTER_SECONDS = 600.0
#: The pause between the first two starts of a task. Each later pause is twice as long.
FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
#: The part of a pause that is added at random, so that tasks do not start at the same moment.
_PAUSE_JITTER = 0.25
#: Exit codes of a program that cannot be run, or is not found.
_NO_PROGRAM_EXIT_CODES = (126, 127)
#: After this many failures with one cause, and no progress between them, a task does not start again.
MAX_ALIKE_FAILURES = 3
#: Signals that come from outside: the cause is neither in the program nor in what it waits for.
OUTSIDE_SIGNALS = (1, 2, 9, 15)
_STEP_WORDS = (b"step", b"epoch", b"round", b"iteration", b"batch")
#: How many bytes at the end of a piece of output are searched for the number of a step.
_SEARCHED_BYTES = 200
_STEP_PATTERNS = {word: word + rb"s?\W{1,4}(\d{1,18})" for word in _STEP_WORDS}
#: The last line of a Python traceback, and the parts of it that vary.
_EXCEPTION = rb"(?m)^[ \t].*\n([A-Za-z_][\w.]*(?::.*)?)$"
_NUMBER = rb"0x[0-9a-f]+|\d+"
_IMPORT_FAILED = (
    rb"(?m)^(ModuleNotFoundError|ImportError|SyntaxError|IndentationError)\b|^\S+: No module named "
)


def _random() -> float:
    """Return a random number from 0 to 1."""
    from random import random  # noqa: PLC0415 - 3 ms, for a restart only

    return random()


class RestartPolicy:
    """The policy of restarts of one job, and the restarts that it has used up.

    A restart counts against ``--restarts`` if a task has failed by itself. It does not if the task was
    preempted, or has failed only because another task was lost.

    Args:
        spec: The roles and the policy of the job.
        placement: The tasks of the job.
        jitter: Returns random numbers from 0 to 1, which spread the starts of tasks.
    """

    def __init__(self, spec: JobSpec, placement: Placement, jitter: Callable[[], float] = _random) -> None:
        self._policy = spec.policy
        self._jitter = jitter
        #: The number of restarts that count which the user allows (``--restarts``). 0: nothing starts again.
        self.max_restarts = spec.policy.restarts
        #: The role of each task.
        self._roles = {placed.task: placed.role for placed in placement.tasks}
        #: The names of all roles, which show the strategy of TensorFlow that the job uses.
        self._role_names = {role.name for role in self._roles.values()}
        #: How often each task was started again by a restart that counts.
        self._counts_by_task: dict[TaskId, int] = {}
        #: How often each task was started again at all. The pauses between its starts grow with this number.
        self._restarts_by_task: dict[TaskId, int] = {}
        #: The cause of each task's last failure, and how many failures in a row since the last progress had
        #: this cause.
        self._last_causes: dict[TaskId, tuple[str, int]] = {}
        #: The numbers of steps, epochs and the like that each task had printed last at the last failure that
        #: counts. A key is a task and the word before the number, such as ``b"step"``.
        self._last_steps: dict[tuple[TaskId, bytes], int] = {}
        #: The numbers that each task has printed since then, with the same keys.
        self._new_steps: dict[tuple[TaskId, bytes], int] = {}

    @property
    def has_restarts_left(self) -> bool:
        """Whether one more failure may lead to a restart that counts."""
        return self._counted_restarts < self.max_restarts

    @property
    def _counted_restarts(self) -> int:
        """The number of restarts of the run that count against ``--restarts``, also by earlier launchers."""
        return self._policy.restarts_before + sum(self._counts_by_task.values())

    def allows_restart(self, tasks: Iterable[TaskId]) -> bool:
        """Return whether the user wants restarts, and excludes none of these tasks from them.

        Sidecars, such as TensorBoard, are always excluded, because the job does not depend on them.
        """
        roles = [self._roles[task] for task in tasks]
        return self.max_restarts > 0 and not any(role.sidecar or role.restart == "never" for role in roles)

    def refusal(self, task: TaskId, status: ExitStatus) -> str:
        """Return why a task does not start again, for the user.

        Call it when `restart_after` has returned None.

        Args:
            task: The task.
            status: How it ended.

        Returns:
            The reason. Empty if the user asked for no restart, so there is nothing to explain.
        """
        if not self.max_restarts or self._roles[task].restart == "never":
            return ""
        if status.code in _NO_PROGRAM_EXIT_CODES:
            return "not started again: its program is missing or cannot be run"
        if not self.has_restarts_left:
            return f"no restart is left of {self.max_restarts}"
        code = f"exit code {status.shell}"
        return f"not started again: {code} is not retryable" if self.is_permanent(task, status) else ""

    def is_permanent(self, task: TaskId, status: ExitStatus) -> bool:
        """Return whether the role of a task has ``retryable:``, and this exit code is not among its codes."""
        ranges = self._roles[task].retryable
        return ranges is not None and not any(status.shell in codes for codes in ranges)

    def observe_output(self, task: TaskId, data: bytes) -> None:
        """Note the numbers of steps, epochs and the like at the end of a piece of output of a task."""
        end = data[-_SEARCHED_BYTES:].lower()
        # The word is looked for first, because that is much faster than the search for the pattern.
        for word, pattern in _STEP_PATTERNS.items():
            if word in end and (numbers := re.findall(pattern, end)):
                self._new_steps[task, word] = int(numbers[-1])

    def _note_progress(self) -> None:
        """Forget the causes of earlier failures if the job has made progress since the last call.

        It has if some task has printed a larger number of a step, an epoch or the like than at that call.
        """
        last = self._last_steps
        # The first number of its kind is progress, too, even a 0.
        if any(number > last.get(key, -1) for key, number in self._new_steps.items()):
            self._last_causes.clear()
        last.update(self._new_steps)
        self._new_steps.clear()

    def futility(self, record: TaskRecord, *, counts: bool) -> str:
        """Return why another attempt of a task that failed is useless.

        It is if an import failed at the first attempt, or if the task has failed several times in a row with
        the same exit code or signal and exception, while no task of the job has made progress.

        Call it once for each failure, when all output of the task has arrived.

        Args:
            record: The task.
            counts: Whether the restart counts against ``--restarts``.

        Returns:
            The reason. Empty if another attempt may help.
        """
        attempt = record.current
        ended_by_itself = not attempt.has_stalled and attempt.status.signal is None
        # Later attempts have imported their modules before, so an import may succeed again.
        if record.attempt == 1 and ended_by_itself and record.runs_python and cannot_import(attempt.tail):
            return "an import failed"
        is_from_outside = attempt.reason is Reason.SIGNAL and attempt.status.signal in OUTSIDE_SIGNALS
        if not counts or is_from_outside:  # The program did not cause this failure.
            return ""
        self._note_progress()
        cause = _failure_cause(record)
        last_cause, times = self._last_causes.get(record.task, ("", 0))
        times = times + 1 if cause == last_cause else 1
        self._last_causes[record.task] = cause, times
        if times < MAX_ALIKE_FAILURES:
            return ""
        return f"it failed {MAX_ALIKE_FAILURES} times in the same way without progress (docs/restarts.md)"

    def restart_after(
        self,
        task: TaskId,
        status: ExitStatus,
        seconds_run: float,
        others: Sequence[TaskId] = (),
        *,
        counted: bool = True,
    ) -> Restart | None:
        """Decide what starts again after the failure of a task, and count the restart.

        - Nothing does if the user wants no restarts of the task, its program cannot be run, or none is left.
        - If the task was preempted (exit code 42 of TensorFlow's checkpoint handler), all tasks do, after
          they had time to save their state. That does not count against ``--restarts``.
        - Otherwise the task does, with those that the rule of its role (``--restart``) names.

        Args:
            task: The task that failed.
            status: How it ended.
            seconds_run: How many seconds it ran. 0 if it never started.
            others: Tasks that have failed together with it.
            counted: Whether the failure is one of its own, and not a consequence of another failure or a
                preemption.

        Returns:
            The restart. None if nothing starts again, so the job fails.
        """
        failed = {task, *others}
        if not self.allows_restart(failed) or status.code in _NO_PROGRAM_EXIT_CODES:
            return None
        if seconds_run >= _FORGIVEN_AFTER_SECONDS:  # Its earlier failures no longer count.
            self._counts_by_task.pop(task, None)
            self._restarts_by_task.pop(task, None)
        # An exit with this code shortly after the start is an ordinary failure.
        is_preempted = status.code == PREEMPTED_EXIT_CODE and seconds_run >= _MIN_PREEMPTION_SECONDS
        counts = counted and not is_preempted
        if counts and not self.has_restarts_left:
            return None
        # A restart that does not count makes the next pause longer, too.
        self._restarts_by_task[task] = self._restarts_by_task.get(task, 0) + 1
        number = self.count_restart(task) if counts else 0
        tasks, includes_succeeded = failed, False
        failed_roles = {self._roles[each].name: self._roles[each] for each in failed}
        for role in failed_roles.values():
            group, group_includes_succeeded = self._group(role, is_preempted=is_preempted)
            tasks, includes_succeeded = tasks | group, includes_succeeded or group_includes_succeeded
        return Restart(
            tasks,
            includes_succeeded=includes_succeeded,
            pause_seconds=self._pause(self._restarts_by_task[task], seconds_run),
            number=number,
            stage=Stage.ENDING if is_preempted else Stage.WAITING,
        )

    def count_restart(self, task: TaskId) -> int:
        """Count a restart of a task. Call it for a restart that `restart_after` did not count.

        Returns:
            The number of restarts of the job that count.
        """
        self._counts_by_task[task] = self._counts_by_task.get(task, 0) + 1
        return self._counted_restarts

    def restarts_alone(self, task: TaskId) -> bool:
        """Return whether the task starts again alone after a failure, without other tasks."""
        return not self._group(self._roles[task], is_preempted=False)[0]

    def _pause(self, restart: int, seconds_run: float) -> float:
        """Return how many seconds to wait before a restart of a task.

        Args:
            restart: The number of this restart of the task. The pause doubles with each one.
            seconds_run: How many seconds the task ran before it failed, which are part of the pause.
        """
        doublings = min(restart - 1, 10)  # More would only make numbers above the longest pause.
        pause: float = FIRST_PAUSE_SECONDS * 2**doublings * (1 + _PAUSE_JITTER * self._jitter())
        return max(0.0, min(_MAX_PAUSE_SECONDS, pause) - seconds_run)

    def _group(self, role: Role, *, is_preempted: bool) -> tuple[frozenset[TaskId], bool]:
        """Return the tasks that start again when a task of this role fails.

        Args:
            role: The role of the failed task.
            is_preempted: Whether the task has saved its state and exited, because the job is preempted.

        Returns:
            The tasks, empty if only the failed task starts again. Whether tasks of this group that have
            succeeded start again, too.
        """
        rule = role.restart or self._policy.restart
        if is_preempted or rule == "job":
            return self._tasks_whose_role(lambda other: not other.sidecar), True
        chiefs = self._role_names.intersection(CHIEF_ROLES)
        # MultiWorkerMirroredStrategy: its collectives need all workers at once.
        if rule == "auto" and "ps" not in self._role_names and role.name in {"worker", *chiefs}:
            return self._tasks_whose_role(lambda other: other.name in {"worker", *chiefs}), True
        # ParameterServerStrategy: the variables on the ps and the chief that uses them start again together.
        if rule == "auto" and chiefs and role.name in {"ps", *chiefs}:
            return self._tasks_whose_role(lambda other: other.name in {"ps", *chiefs}), False
        return frozenset(), False

    def _tasks_whose_role(self, is_chosen: Callable[[Role], bool]) -> frozenset[TaskId]:
        """Return the tasks of the job whose role fulfils a condition."""
        return frozenset(task for task, role in self._roles.items() if is_chosen(role))


def _failure_cause(record: TaskRecord) -> str:
    """Return a text that is equal for failures with one cause.

    It contains the reason, the status, and the last exception without its numbers, which vary.
    """
    attempt = record.current
    exceptions = re.findall(_EXCEPTION, attempt.tail)
    exception = re.sub(_NUMBER, b"#", exceptions[-1]).decode(errors="replace") if exceptions else ""
    return f"{attempt.reason} {attempt.status} {exception}"


def cannot_import(tail: bytes) -> bool:
    """Return whether a Python program ended because it, or a module that it imports, cannot be imported.

    Args:
        tail: The end of its output.
    """
    return re.search(_IMPORT_FAILED, tail) is not None
