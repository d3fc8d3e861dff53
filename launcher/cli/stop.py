"""``launch stop``: stop a run, or some of its tasks, from another terminal.

The launcher of the run stops the tasks and then exits. The command asks the launcher by a file in the folder
of the run and a SIGTERM. The command kills processes itself only if the launcher has died. Single tasks are
stopped by a request to the control socket, and the launcher goes on.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from launcher.backends.queued_runs import find, going, relay, shares_files, withdraw_run
from launcher.cli.follower import RunFollower
from launcher.cli.run_names import newest_tasks, run_argument
from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, InputError, LaunchError
from launcher.common.text import Waiting, escape_controls, join_names
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.values import duration
from launcher.job import STOP_NOW_MARK
from launcher.messages import say
from launcher.runs.client import RunSnapshot, ask, snapshot
from launcher.runs.end_command import run_left_commands
from launcher.runs.folder import kill_leftovers
from launcher.runs.history import remaining
from launcher.runs.run import (
    Run,
    RunState,
    all_runs,
    exit_code_of,
    is_pending,
    listing,
    open_pidfd,
    selected,
    send_sigterm,
)
from launcher.stop_requests import TIMED_OUT_EXIT_CODE

SUMMARY = "stop a run, or some of its tasks"
#: argparse would write that TASK may stand without RUN.
USAGE = "launch stop [-h] [--now] [--timeout S] [RUN [TASK ...]]"

EXAMPLES = """\
launch stop                   the run, if only one is running
launch stop k3f9m             a run by the last letters of its id
launch stop --now latest      without waiting for its --grace
launch stop k3f9m worker/2    one task for good; the others go on

Exit code: 0 the run or the tasks have ended, now or before; 124 not within
--timeout; 2 there is no such run or task; 125 it cannot be stopped from here."""

#: Seconds between the two SIGTERM of ``--now``. Two of them mean "at once" to a launcher even if its folder
#: cannot be written. A launcher counts two SIGTERM within a second as one (`launcher.stop_requests`).
_SIGTERM_PAUSE_SECONDS = 1.2
#: Seconds between two checks whether the launcher has handled a signal, or has ended.
_POLL_SECONDS = 0.05
#: Seconds until a message names the tasks that the command waits for.
_NOTICE_AFTER_SECONDS = 2.0
#: The time limit for the agents of a killed launcher to stop its tasks and to exit.
_AGENTS_TIMEOUT_SECONDS = 8.0
#: The time limit of the same command on another machine if the files of the run are here, too. It only has to
#: send its signals there, because the command here waits for the report.
_RELAYED_SECONDS = 1.0


RUN = run_argument()
NOW = Setting("now", switch, "kill its tasks at once", default=False)
TASKS: Setting[tuple[str, ...]] = Setting(
    "tasks", str, "only these tasks, such as worker/0, or roles", metavar="TASK", default=(),
    positional="*", repeatable=True, complete=newest_tasks,
)  # fmt: skip
TIMEOUT = Setting(
    "timeout", duration, "time to wait for it: 90s, 5m (default: 60)", metavar="S", default=60.0
)
GROUPS = (Group("positional arguments", (RUN, TASKS)), Group("options", (NOW, TIMEOUT)))


def run(settings: Settings) -> int:
    """Stop the run that the user names, or the only one that is running, and print how it ended.

    If the user names tasks of the run, only these are stopped.

    Returns:
        0, or the exit code of a time limit if the run or the tasks have not ended in time.

    Raises:
        InputError: The name matches no run, or several; or the run has no such task.
        LaunchError: The run may be running on another machine, or belongs to another user.
    """
    target_run = find(settings[RUN]) if settings[RUN] else _only_one()
    if settings[TASKS]:
        return _stop_tasks(target_run, settings)
    # A launcher that is still pending in a queue is only taken out of it.
    if text := withdraw_run(target_run):
        print(text)
        return 0
    # If the launcher runs at a cluster, its machine runs this command, too (`relay`).
    if shares_files(target_run):
        # The report appears here, so this process waits for it. The command there only has to send signals.
        seconds_there, seconds_here = _RELAYED_SECONDS, settings[TIMEOUT]
    else:
        # The command there waits for the end of the run, so here the report only has to be fetched. If the
        # command there failed, the agents of a killed launcher may need this time to stop the tasks.
        seconds_there, seconds_here = settings[TIMEOUT], _AGENTS_TIMEOUT_SECONDS
    words = [*(["--now"] if settings[NOW] else []), "--timeout", f"{seconds_there:g}", target_run.paths.root]
    code = relay(target_run, "stop", *words, quiet=True)
    if code is not None:  # None means that there is nothing to relay: the run is handled here.
        return _await_report(target_run, code, settings, seconds_here)
    pidfd = launcher_of(target_run)
    if pidfd is None:
        return _kill_leftovers(target_run, settings)
    try:
        return _stop(target_run, pidfd, settings)
    finally:
        os.close(pidfd)


def _stop_tasks(run: Run, settings: Settings) -> int:
    """Let the launcher of a run stop the tasks that the user names, and print how each has ended.

    Returns:
        The exit code of the command.

    Raises:
        InputError: The run has no such task, or the tasks are to be killed at once.
        LaunchError: The launcher cannot be asked, or does not stop single tasks now.
    """
    names, limit = settings[TASKS], settings[TIMEOUT]
    if settings[NOW]:
        expected = "single tasks are killed when the --grace of the run is over"
        raise InputError([Fault("--now", f"it cannot be used with {names[0]}", expected)])
    # If the launcher runs at a cluster, its machine runs this command, and returns the exit code.
    if (code := relay(run, "stop", "--timeout", f"{limit:g}", run.paths.root, *names)) is not None:
        return code
    state, waiting = snapshot(run), Waiting()
    tasks = selected([task.task for task in state.report.tasks], names)
    if not state.ended:
        with suppress(ConnectionError):  # The job is over, so its report says how the tasks have ended.
            ask(run, {"request": "stop", "tasks": names})
    while left := _unfinished(state := snapshot(run), tasks):
        if message := waiting.due():
            say(f"{message} {join_names(left)} to end")
        if waiting.seconds >= limit:
            say(f"{join_names(left)} did not end within {limit:g}s")
            return TIMED_OUT_EXIT_CODE
        # Each answer contains all tasks, so the launcher is asked less and less often.
        time.sleep(max(_POLL_SECONDS, waiting.seconds / 10))
    for task in state.report.tasks:
        if task.task in tasks:
            detail = f" ({task.detail})" if task.detail else ""
            print(f"{task.task}: {task.state.value} on {escape_controls(task.host)}{escape_controls(detail)}")
    return 0


def _unfinished(state: RunSnapshot, tasks: Collection[TaskId]) -> list[TaskId]:
    """Return the tasks among these that have not ended, or are to start again."""
    over = {task.task for task in state.report.tasks if task.state.is_over} - {*state.restarting}
    return [task for task in tasks if task not in over]


def launcher_of(run: Run) -> int | None:
    """Open a pidfd of the launcher of a run, which the caller closes.

    Returns:
        The pidfd, or None if the launcher has ended.

    Raises:
        LaunchError: The launcher may be running on another machine, or belongs to another user.
    """
    run.check_seen()  # It raises if the launcher was started on another machine.
    run.check_trusted()  # It raises if another user could have named any process as the launcher.
    return open_pidfd(run.owner) if run.owner else None


def _only_one() -> Run:
    """Return the run that is running, if there is exactly one.

    Raises:
        InputError: No run is running, or several are.
    """
    runs = going(all_runs())
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise InputError([Fault("", "nothing is running", "`launch ps --all` lists earlier runs")])
    raise InputError([Fault("", f"{len(runs)} runs are running", f"expected one of{listing(runs)}")])


def _await_report(run: Run, code: int, settings: Settings, seconds: float) -> int:
    """Wait for the end of a run on another machine, and print how it ended.

    Args:
        run: The run, whose files are on this machine, too.
        code: The exit code of the ``launch stop`` that has asked its launcher on the other machine.
        settings: The settings of the command.
        seconds: How long to wait for the end.

    Returns:
        The exit code of the command.

    Raises:
        LaunchError: The launcher could not be asked.
    """
    waiting, follower = Waiting(), RunFollower(run)
    while run.state is not RunState.ENDED:
        # If the command there failed, the launcher may have died. Its agents get time to stop the tasks.
        if code not in (0, TIMED_OUT_EXIT_CODE) and waiting.seconds >= _AGENTS_TIMEOUT_SECONDS:
            raise LaunchError(f"the launcher of {run.called} could not be asked to stop ({code})")
        if waiting.seconds >= seconds:
            say(f"{run.called} has not ended within {settings[TIMEOUT]:g}s")
            return TIMED_OUT_EXIT_CODE
        if follower.is_over():  # There will be no report, for example because the launcher was killed.
            break
        time.sleep(_POLL_SECONDS)
    print(f"{run.title} {_described_end(run, 'ended')}")
    return 0


def _kill_leftovers(run: Run, settings: Settings) -> int:
    """Kill what is left of a run whose launcher has ended, and print how the run ended.

    Agents that still run first have time to stop the tasks themselves, unless the user says ``--now``.

    Returns:
        The exit code of the command.

    Raises:
        LaunchError: Some processes still run, or belong to another user.
    """
    # Another user could have named any process as an agent, so nothing is killed by such a record.
    if run.state is RunState.DIED and run.agents and not run.is_ours:
        text = f"its record belongs to user {run.written_by}: only that user or root can stop its processes"
        raise LaunchError(f"the launcher of {run.called} died; {text}")
    swept = kill_leftovers([run], 0.0 if settings[NOW] else min(_AGENTS_TIMEOUT_SECONDS, settings[TIMEOUT]))
    if swept.left:
        raise LaunchError(swept.text)
    if swept.text:
        say(swept.text)
    if run.has_left_command:
        run_left_commands([run])
    print(f"{run.title} {_described_end(run, 'had already ended')}")
    return 0


def _stop(run: Run, pidfd: int, settings: Settings) -> int:
    """Ask the launcher of a run to stop it, wait for its end, and print how it ended.

    Args:
        run: The run.
        pidfd: A pidfd of its launcher.
        settings: The settings of the command.

    Returns:
        The exit code of the command.
    """
    deadline = time.monotonic() + settings[TIMEOUT]
    # The file must exist before the signal comes, which lets the launcher look for it.
    # The file tells the launcher that the user stops the run, and whether at once. On a full disk it cannot
    # be written. Then the second SIGTERM asks for the same.
    with suppress(OSError):
        # A task may have put a named pipe there, and without O_NONBLOCK this process would wait for a reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(run.paths.stop_asked, flags, 0o600)
        with open(fd, "wb") as file:
            file.write(STOP_NOW_MARK if settings[NOW] else b"")
    send_sigterm(pidfd)
    if settings[NOW]:
        # A second SIGTERM counts only after the launcher has handled the first.
        wait = _SIGTERM_PAUSE_SECONDS
        while not _wait_for_end(pidfd, wait, deadline) and is_pending(pidfd, signal.SIGTERM):
            if time.monotonic() >= deadline:
                break
            wait = _POLL_SECONDS
        send_sigterm(pidfd)
    if not _wait_for_end(pidfd, _NOTICE_AFTER_SECONDS, deadline):
        names = join_names(remaining(run)) or f"the launcher of {run.called}"
        say(f"waiting for {names}")
    if not _wait_for_end(pidfd, settings[TIMEOUT], deadline):
        advice = "" if settings[NOW] else "; `launch stop --now` does not wait for its --grace"
        say(f"{run.called} has not ended within {settings[TIMEOUT]:g}s{advice}")
        return TIMED_OUT_EXIT_CODE
    print(f"{run.title} {_described_end(run, 'ended')}")
    return 0


def _wait_for_end(pidfd: int, seconds: float, deadline: float) -> bool:
    """Wait for the end of a process, and return whether it has ended.

    Args:
        pidfd: A pidfd of the process.
        seconds: How long to wait at most.
        deadline: When the wait ends in any case, by the monotonic clock.
    """
    wait_seconds = max(0.0, min(seconds, deadline - time.monotonic()))
    # A pidfd becomes readable when its process exits.
    return bool(select.select([pidfd], [], [], wait_seconds)[0])


def _described_end(run: Run, verb: str) -> str:
    """Return how a run ended, according to its report, after a verb such as ``ended``."""
    code = exit_code_of(run.report())
    return f"{verb} without a report: its launcher died" if code is None else f"{verb} with exit code {code}"
