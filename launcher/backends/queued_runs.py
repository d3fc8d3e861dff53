"""Finds the run that a user means, also if its launcher is in the queue of a cluster or on another machine.

``launch ps``, ``logs``, ``attach`` and ``stop`` call it. It lets the machine of the launcher do whatever
needs the launcher.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from launcher import backends
from launcher.backends.batch_queue import BatchJobStatus, BatchQueue, JobPhase
from launcher.common.errors import Fault, InputError, LaunchError, TransportError
from launcher.common.record import replace
from launcher.common.text import escape_controls
from launcher.job import LATEST
from launcher.messages import say
from launcher.runs.end_command import run_left_commands
from launcher.runs.folder import create, locked_names
from launcher.runs.run import BatchJob, Origin, Run, RunState, all_runs, exit_code_of, listing, load, running

#: The exit code of a ``launch attach`` whose user left the run.
LEFT_EXIT_CODE = 130


def queue_of(run: Run) -> BatchQueue | None:
    """Return the queue that has started the launcher of a run, or will start it.

    Returns:
        The queue. None if no queue does, or if the launcher runs on this machine, which then knows more.
    """
    # For a run with a batch job, the only other state is RUNNING: the launcher is a process of this machine.
    if run.batch is None or run.state not in (RunState.ELSEWHERE, RunState.ENDED):
        return None
    backend = backends.backends().get(run.batch.transport)
    return None if backend is None else backend.batch_queue()


def states(runs: Sequence[Run]) -> Mapping[str, BatchJobStatus]:
    """Return the states of the runs that are in the queue of a cluster, by their names.

    Each queue is asked once. A queue that does not answer is reported to the user, and its runs are left out.
    """
    status_by_run: dict[str, BatchJobStatus] = {}
    runs_by_backend: dict[str, list[Run]] = {}
    for run in runs:
        if run.batch is not None and queue_of(run) is not None:
            runs_by_backend.setdefault(run.batch.transport, []).append(run)
    for backend_name, queued_runs in runs_by_backend.items():
        queue = backends.backends()[backend_name].batch_queue()
        try:
            # `queue` is never None here, because `queue_of` has returned it for these runs.
            status_by_run.update(queue.inspect(queued_runs) if queue else {})
        except TransportError as error:
            say(escape_controls(str(error)))
    return status_by_run


def going(runs: Sequence[Run]) -> list[Run]:
    """Return those of some runs that run on this machine or are in a queue, in the same order."""
    runs = [run for run in runs if run.state in (RunState.RUNNING, RunState.ELSEWHERE)]
    status_by_run = states(runs)
    queued = {name for name, status in status_by_run.items() if status.phase is not JobPhase.OVER}
    return [run for run in runs if run.state is RunState.RUNNING or run.name in queued]


def find(text: str | None = None, *, by_path: bool = True) -> Run:
    """Find the run that a user means.

    Args:
        text: What the user typed. None and ``latest`` mean the newest run that goes on, or else the newest.
            Otherwise it is the name of the launcher for the run; the name of the user, of which again the
            newest run that goes on counts, or else the newest; the start or the last letters of the
            launcher's name, if no other run has them; or the path of the run's folder. Names are stronger
            than a folder, unless the text contains a slash.
        by_path: Whether it may be the path of a folder.

    Raises:
        InputError: No run matches, or several do.
    """
    runs = all_runs()
    if text is None or text == LATEST:
        if runs:
            return (going(runs) or runs)[-1]
        expected = "expected one started before, or the path of its folder"
        raise InputError([Fault("", "there are no runs", expected)])
    matching = _matching(text, runs)
    if len(matching) == 1:
        return matching[0]
    if by_path and os.path.isdir(text):
        if run := load(text):
            return run
        expected = "expected one that holds launcher.json or plan.json"
        raise InputError([Fault("", f"{text!r} is not the folder of a run", expected)])
    if matching:
        problem = f"{text!r} may be {len(matching)} runs"
        raise InputError([Fault("", problem, f"the newest of them:{listing(matching)}")])
    names = ", ".join(run.called for run in running(runs)[-5:])
    known = f"running: {names or 'none'} (`launch ps --all` lists all)"
    raise InputError([Fault("RUN", f"no run {text!r}", known)])


def _matching(text: str, runs: Sequence[Run]) -> Sequence[Run]:
    """Return the run with this name, or else all runs that the text may mean.

    A run has a name that launch has made, and perhaps one of the user. The text may be one of them, or the
    start or the last letters of the one that launch has made.
    """
    if not text or "/" in text:  # Only the path of a folder has a slash.
        return []
    of_launcher = [run for run in runs if run.name == text]
    of_user = [run for run in runs if run.origin.name == text]
    # Of the runs to which the user gave this name, the newest one that goes on counts, or else the newest.
    if of_launcher or of_user:
        return of_launcher or (going(of_user) or of_user)[-1:]
    return [run for run in runs if run.name.startswith(text) or run.name.endswith(f"-{text}")]


def create_named(
    run_dir: str | None, run_name: str, agents: Sequence[int], batch: BatchJob | None, origin: Origin
) -> Run:
    """Make the folder of a new run, and add a number to its name while another run of this name goes on.

    The arguments and the result are those of `launcher.runs.folder.create`.
    """
    if not origin.name:
        return create(run_dir, run_name, agents, batch, origin)
    with locked_names():
        same = [run for run in all_runs() if run.origin.name.startswith(origin.name)]
        taken = {run.origin.name for run in same if run.state is RunState.ELSEWHERE and run.batch is None}
        taken |= {run.origin.name for run in going(same)}
        # One of these numbers is free, because there are more of them than names that are taken.
        numbered = (f"{origin.name}-{number}" for number in range(2, len(taken) + 3))
        name = next(name for name in (origin.name, *numbered) if name not in taken)
        return create(run_dir, run_name, agents, batch, replace(origin, name=name))


def _queue_of_unfinished(run: Run) -> BatchQueue | None:
    """Return the queue of a run. None if the run has ended, or its launcher is in no queue."""
    return None if run.state is RunState.ENDED else queue_of(run)


def relay(run: Run, *words: str, quiet: bool = False) -> int | None:
    """Let the machine on which the launcher of a run runs execute a command of launch, and show its output.

    Args:
        run: The run.
        words: The words of the command.
        quiet: Whether to hide the output.

    Returns:
        The exit code. None if the launcher is not in a queue, or has ended and its files are on this machine.
        Then the caller can execute the command here.

    Raises:
        LaunchError: The launcher is pending, or has ended.
    """
    queue = _queue_of_unfinished(run)
    if queue is None or run.batch is None:
        return None
    status = queue.inspect([run]).get(run.name)
    if status is None:  # The launcher has ended, and its files are on this machine now.
        return None
    if status.phase is not JobPhase.RUNNING:
        raise LaunchError(f"{run.called}: {escape_controls(status.text)}")
    if not run.batch.node:  # The record of the run names the node only when the launcher has begun.
        raise LaunchError(f"{run.called}: {escape_controls(status.text)}, and its launcher has not begun yet")
    return queue.run_there(run, words, quiet)


def shares_files(run: Run) -> bool:
    """Return whether the files that a run's launcher writes are on this machine now."""
    queue = _queue_of_unfinished(run)
    return queue is None or queue.shares_files


def show_there(run: Run, *words: str, follow: bool) -> int | None:
    """Show a run whose files are not on this machine: the machine of its launcher executes the command.

    Args:
        run: The run.
        words: The words of the command of launch, as in ``logs RUN``.
        follow: Whether the command runs until the run has ended. Then the files are fetched.

    Returns:
        The exit code. None if the files are on this machine, perhaps only since now.

    Raises:
        LaunchError: The launcher is pending, has ended without a report, or the connection to it is lost.
    """
    code = None if shares_files(run) else relay(run, *words)
    # A command that follows the run ends with the run, unless the user leaves it or its connection is lost.
    if code is None or not follow or code == LEFT_EXIT_CODE:
        return code
    status = states([run]).get(run.name)  # Asking the queue fetches the files of a run that has ended.
    if run.state is RunState.ENDED:
        return exit_code_of(run.report())
    reason = "the cluster does not answer" if status is None else escape_controls(status.text)
    raise LaunchError(f"{run.called} is no longer shown: {reason}")


def withdraw_run(run: Run) -> str:
    """Remove a run from the queue of its cluster if its launcher has not begun.

    Returns:
        What was done, or how the run has ended, for the user. Empty if the run runs, or is in no queue.
    """
    queue = _queue_of_unfinished(run)
    if queue is None or run.batch is None:
        return ""
    status = queue.inspect([run]).get(run.name)
    if status is None:  # The launcher has ended, and its files are on this machine now.
        return ""
    if status.phase is JobPhase.OVER:
        run_left_commands([run])
        return f"{run.title} had already ended: {escape_controls(status.text)}"
    # The record of a run names the node of its launcher only when the launcher has begun.
    if status.phase is JobPhase.RUNNING and run.batch.node:
        return ""
    queue.withdraw(run)
    run_left_commands([run], "stopped")
    # The text is like ``Slurm's job 12 is pending: Priority``, of which the reason no longer matters.
    return f"{run.title} is withdrawn: {escape_controls(status.text.partition(':')[0])}"
