"""``launch stop``: end a run from another terminal."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from launcher.backends.queued_runs import going, relayed, shares_files, withdrawn
from launcher.cli.follower import RunFollower
from launcher.cli.run_names import run_argument
from launcher.common.errors import Fault, InputError, LaunchError
from launcher.common.text import Waiting, join_names
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.values import duration
from launcher.job import STOP_NOW_MARK
from launcher.messages import say
from launcher.runs.folder import kill_leftovers
from launcher.runs.run import (
    Run,
    RunState,
    exit_code_of,
    find,
    is_pending,
    listing,
    open_pidfd,
    remaining,
    send_sigterm,
)
from launcher.stop_requests import TIMED_OUT_EXIT_CODE

SUMMARY = "stop a run: its tasks first, then its launcher"

EXAMPLES = """\
launch stop                   the run, if only one is running
launch stop k3f9m             a run by the last letters of its name
launch stop --now latest      without waiting for its --grace

Exit code: 0 the run has ended, now or before; 124 it has not ended within
--timeout; 2 there is no such run; 125 it can't be stopped from here."""

#: Seconds between two SIGTERM, which mean "at once" to a launcher whose folder can't be written (the kernel
#: merges equal pending signals), and between two looks at whether the launcher has handled the first one.
_SIGTERM_PAUSE_SECONDS = 1.2
_POLL_SECONDS = 0.05
#: Seconds until a message names the tasks that it waits for.
_NOTICE_AFTER_SECONDS = 2.0
#: Seconds for the agents of a killed launcher to end its tasks and themselves.
_AGENTS_TIMEOUT_SECONDS = 8.0
#: Seconds that the same command on another machine may take: between its two signals.
_RELAYED_SECONDS = 1.0


RUN = run_argument("its name, a part of it, `latest`, or its folder")
NOW = Setting("now", switch, "kill its tasks at once", default=False)
TIMEOUT = Setting(
    "timeout", duration, "time to wait for it: 90s, 5m (default: 60)", metavar="S", default=60.0
)
GROUPS = (Group("positional arguments", (RUN,)), Group("options", (NOW, TIMEOUT)))


def run(settings: Settings) -> int:
    """Stop the run and print how it ended.

    Raises:
        InputError: the name matches no run, or several.
        LaunchError: it may run on another machine, or belongs to another user.
    """
    found = find(settings[RUN]) if settings[RUN] else _only_one()
    if text := withdrawn(found):
        print(text)
        return 0
    now = ["--now"] if settings[NOW] else []
    shared = shares_files(found)
    seconds = _RELAYED_SECONDS if shared else settings[TIMEOUT]
    code = relayed(found, "stop", *now, "--timeout", f"{seconds:g}", found.paths.root, quiet=True)
    if code is not None:
        return _await_report(found, code, settings, settings[TIMEOUT] if shared else _AGENTS_TIMEOUT_SECONDS)
    pidfd = launcher_of(found)
    if pidfd is None:
        return _sweep(found, settings)
    try:
        return _stop(found, pidfd, settings)
    finally:
        os.close(pidfd)


def launcher_of(run: Run) -> int | None:
    """A pidfd of the launcher of a run; ``None``: it has ended.

    Raises:
        LaunchError: it may run on another machine, or belongs to another user.
    """
    run.check_seen()
    run.check_trusted()
    return open_pidfd(run.owner) if run.owner else None


def _only_one() -> Run:
    """The only run that is running.

    Raises:
        InputError: none is running, or several are.
    """
    runs = going()
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise InputError([Fault("", "nothing is running", "`launch ps --all` lists earlier runs")])
    raise InputError([Fault("", f"{len(runs)} runs are running", f"expected one of{listing(runs)}")])


def _await_report(run: Run, code: int, settings: Settings, seconds: float) -> int:
    """Wait for the end of a run on another machine that was asked to end, by a command that gave `code`.

    Raises:
        LaunchError: it could not be asked.
    """
    waiting, follower = Waiting(), RunFollower(run)
    while run.state is not RunState.ENDED:
        if code not in (0, TIMED_OUT_EXIT_CODE) and waiting.seconds >= _AGENTS_TIMEOUT_SECONDS:
            raise LaunchError(f"the launcher of {run.name} could not be asked to stop ({code})")
        if waiting.seconds >= seconds:
            say(f"{run.name} has not ended within {settings[TIMEOUT]:g}s")
            return TIMED_OUT_EXIT_CODE
        if follower.is_over():
            break
        time.sleep(_POLL_SECONDS)
    print(f"{run.name} {_end(run, 'ended')}")
    return 0


def _sweep(run: Run, settings: Settings) -> int:
    """End the processes that are left of a run whose launcher has ended, after its agents had time for it.

    Raises:
        LaunchError: some are still there, or belong to another user.
    """
    if run.state is RunState.DIED and run.agents and not run.is_ours:
        text = f"its record belongs to user {run.written_by}: only that user or root can stop its processes"
        raise LaunchError(f"the launcher of {run.name} died; {text}")
    swept = kill_leftovers([run], 0.0 if settings[NOW] else min(_AGENTS_TIMEOUT_SECONDS, settings[TIMEOUT]))
    if swept.left:
        raise LaunchError(swept.text)
    if swept.text:
        say(swept.text)
    print(f"{run.name} {_end(run, 'had already ended')}")
    return 0


def _stop(run: Run, pidfd: int, settings: Settings) -> int:
    """Ask the launcher to end its run, and wait for that."""
    deadline = time.monotonic() + settings[TIMEOUT]
    with suppress(OSError):  # a full disk: the second SIGTERM says it, too
        fd = os.open(run.paths.stop_asked, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, STOP_NOW_MARK if settings[NOW] else b"")
        finally:
            os.close(fd)
    send_sigterm(pidfd)
    if settings[NOW]:
        wait = _SIGTERM_PAUSE_SECONDS
        while not _ended(pidfd, wait, deadline) and is_pending(pidfd, signal.SIGTERM):
            if time.monotonic() >= deadline:
                break
            wait = _POLL_SECONDS
        send_sigterm(pidfd)
    if not _ended(pidfd, _NOTICE_AFTER_SECONDS, deadline):
        names = join_names(remaining(run)) or f"the launcher of {run.name}"
        say(f"waiting for {names}")
    if not _ended(pidfd, settings[TIMEOUT], deadline):
        advice = "" if settings[NOW] else "; `launch stop --now` does not wait for its --grace"
        say(f"{run.name} has not ended within {settings[TIMEOUT]:g}s{advice}")
        return TIMED_OUT_EXIT_CODE
    print(f"{run.name} {_end(run, 'ended')}")
    return 0


def _ended(pidfd: int, seconds: float, deadline: float) -> bool:
    """Whether the process ends within these seconds, and before the deadline."""
    left = max(0.0, min(seconds, deadline - time.monotonic()))
    return bool(select.select([pidfd], [], [], left)[0])


def _end(run: Run, verb: str) -> str:
    """How the run ended, according to its report."""
    code = exit_code_of(run.report())
    return f"{verb} without a report: its launcher died" if code is None else f"{verb} with exit code {code}"
