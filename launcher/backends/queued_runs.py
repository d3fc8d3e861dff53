"""Commands about runs whose launchers are in the queue of a cluster: pending, or on another machine.

``launch ps``, ``logs``, ``attach`` and ``stop`` call it. It lets the machine of the launcher do whatever
needs the launcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher import backends
from launcher.backends.batch_queue import OVER, RUNNING, BatchJobStatus, BatchQueue
from launcher.common.errors import LaunchError, TransportError
from launcher.common.text import escape_controls
from launcher.messages import say
from launcher.runs.run import Run, RunState, all_runs, exit_code_of, find

#: The exit code of a ``launch attach`` whose user left the run.
LEFT_EXIT_CODE = 130


def queue_of(run: Run) -> BatchQueue | None:
    """Return the queue that has started the launcher of a run, or will start it.

    Returns:
        The queue. None if no queue does, or if the launcher runs on this machine.
    """
    if run.batch is None or run.state not in (RunState.ELSEWHERE, RunState.ENDED):
        return None
    backend = backends.backends().get(run.batch.transport)
    return None if backend is None else backend.batch_queue()


def states(runs: Sequence[Run]) -> Mapping[str, BatchJobStatus]:
    """Return the states of those of these runs that are in a queue, by name. Each queue is asked once.

    A queue that does not answer is reported to the user, and its runs are left out.
    """
    found: dict[str, BatchJobStatus] = {}
    by_transport: dict[str, list[Run]] = {}
    for run in runs:
        if run.batch is not None and queue_of(run) is not None:
            by_transport.setdefault(run.batch.transport, []).append(run)
    for name, own in by_transport.items():
        queue = backends.backends()[name].batch_queue()
        try:
            found.update(queue.inspect(own) if queue else {})
        except TransportError as error:
            say(escape_controls(str(error)))
    return found


def going() -> list[Run]:
    """Return the runs of this user that run on this machine or are in a queue, the oldest first."""
    runs = [run for run in all_runs() if run.state in (RunState.RUNNING, RunState.ELSEWHERE)]
    known = states(runs)
    return [
        run
        for run in runs
        if run.state is RunState.RUNNING or (run.name in known and known[run.name].state != OVER)
    ]


def find_or_newest(name: str | None) -> Run:
    """Return the run of this name. Without a name, return the newest run that goes on, or else the newest."""
    return find(name) if name else (going() or [find()])[-1]


def _queue_of_unfinished(run: Run) -> BatchQueue | None:
    """Return the queue of a run that has not ended. None if it has ended, or is in no queue."""
    return None if run.state is RunState.ENDED else queue_of(run)


def relayed(run: Run, *words: str, quiet: bool = False) -> int | None:
    """Let the machine of a run's launcher run a command.

    Args:
        run: The run.
        words: The words of the command of launch.
        quiet: Whether to hide what it prints.

    Returns:
        The exit code. None if the launcher is not in a queue, or has ended and its files are on this machine.

    Raises:
        LaunchError: The launcher is pending, or has ended.
    """
    queue = _queue_of_unfinished(run)
    if queue is None or run.batch is None:
        return None
    now = queue.inspect([run]).get(run.name)
    if now is None:
        return None
    if now.state != RUNNING:
        raise LaunchError(f"{run.name}: {escape_controls(now.text)}")
    if not run.batch.node:
        raise LaunchError(f"{run.name}: {escape_controls(now.text)}, and its launcher has not begun yet")
    return queue.run_there(run, words, quiet)


def shares_files(run: Run) -> bool:
    """Return whether the files that a run's launcher writes are on this machine now."""
    queue = _queue_of_unfinished(run)
    return queue is None or queue.shares_files


def shown_there(run: Run, *words: str, follow: bool) -> int | None:
    """Let the machine of a run's launcher show a run whose files are not on this machine.

    Args:
        run: The run.
        words: The words of the command of launch.
        follow: Whether the command runs until the run has ended. Then the files are fetched.

    Returns:
        The exit code. None if the files are on this machine, perhaps only since now.

    Raises:
        LaunchError: The launcher is pending, has ended without a report, or the connection to it is lost.
    """
    if shares_files(run) or (code := relayed(run, *words)) is None:
        return None
    if not follow or code == LEFT_EXIT_CODE:
        return code
    found = states([run])  # This fetches the files.
    if run.state is RunState.ENDED:
        return exit_code_of(run.report())
    now = found.get(run.name)
    why = "the cluster does not answer" if now is None else escape_controls(now.text)
    raise LaunchError(f"{run.name} is no longer shown: {why}")


def withdrawn(run: Run) -> str:
    """Remove a run from its queue if it is pending.

    Returns:
        What was done, or how the run has ended. Empty if the run runs, or is in no queue.
    """
    queue = _queue_of_unfinished(run)
    if queue is None or run.batch is None:
        return ""
    now = queue.inspect([run]).get(run.name)
    if now is None:
        return ""
    if now.state == OVER:
        return f"{run.name} had already ended: {escape_controls(now.text)}"
    if now.state == RUNNING and run.batch.node:
        return ""
    queue.withdraw(run)
    return f"{run.name} is withdrawn: {escape_controls(now.text.partition(':')[0])}"
