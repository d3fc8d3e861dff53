"""``launch logs``: print the output of the tasks of a run, in bounded memory."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from launcher.backends.queued_runs import shown_there, states
from launcher.cli.follower import RunFollower
from launcher.cli.run_names import runs_and_tasks
from launcher.common.errors import Fault, InputError, LaunchError, ProtocolError
from launcher.common.report import Report, report_from_json
from launcher.common.text import escape_controls, join_names
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.values import whole
from launcher.messages import say
from launcher.output.lines import labels
from launcher.output.logs import GrowingLog, tail
from launcher.output.table import verdict
from launcher.runs.run import Run, all_runs, find, selected, tasks

SUMMARY = "print the output of the tasks of a run"

EXAMPLES = """\
launch logs                    the newest run, each line with its task's name
launch logs worker/0 > FILE    one task of it, byte for byte
launch logs -f ps worker/1     all ps and one worker, until the run has ended
launch logs --lines 20 k3f9m   the last lines of each task of another run

Exit code: 0; with --follow that of the job."""

#: Seconds between two looks at logs that grow. An unfinished line may come so many after the last event.
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 2.0


SELECTED: Setting[tuple[str, ...]] = Setting(
    "selected", str, "a run (default: the newest), then tasks (worker/0) or roles", metavar="RUN | TASK",
    default=(), positional="*", repeatable=True, complete=runs_and_tasks,
)  # fmt: skip
FOLLOW = Setting(
    "follow", switch, "print new lines until the run has ended", flags=("-f", "--follow"), default=False
)
LINES: Setting[int | None] = Setting(
    "lines", whole(0, 10**12), "only the last N lines of each task", flags=("-n", "--lines"), metavar="N",
    default=None,
)  # fmt: skip
GROUPS = (Group("positional arguments", (SELECTED,)), Group("options", (FOLLOW, LINES)))


def run(settings: Settings) -> int:
    """Print the logs; with ``--follow`` return the exit code of the job.

    Raises:
        InputError: no such run, or no such task in it.
        LaunchError: a log can't be read. With ``--follow``: the run has no report.
    """
    found, names = _run_and_tasks(settings[SELECTED])
    last = settings[LINES]
    lines = [] if last is None else ["--lines", str(last)]
    words = ("logs", *(["--follow"] if settings[FOLLOW] else []), *lines, found.paths.root, *names)
    if (code := shown_there(found, *words, follow=settings[FOLLOW])) is not None:
        return code
    if settings[FOLLOW]:
        for _ in follow(found, lambda: logs_of(found, names, last)):
            continue
    else:
        for log in logs_of(found, names, last):
            log.write_rest(sys.stdout.buffer)
        sys.stdout.buffer.flush()
    chosen = selected(known, names) if (known := tasks(found)) else []
    if not chosen:
        say(f"no task of {found.name} was started, so it has no logs")
    elif removed := [task for task in chosen if not os.path.lexists(found.paths.log(task))]:
        text = f"the logs of {join_names(removed)} in {found.paths.logs} were removed"
        say(escape_controls(text))
    elif not any(tail(found.paths.log(task))[0] for task in chosen):
        say(f"{join_names(chosen)} printed nothing in {found.name}")
    if not settings[FOLLOW]:
        return 0
    report = report_of(found)
    say(escape_controls(verdict(report)))
    return report.exit_code


def follow(
    run: Run, open_logs: Callable[[], list[GrowingLog]], messages: GrowingLog | None = None
) -> Iterator[None]:
    """Write what is new in logs to stdout until the run has ended and all is written.

    Args:
        run: the run.
        open_logs: gives the logs; called when the plan is written: at the start, and when tasks have moved.
        messages: the log of the launcher, see `RunPaths.messages`. Messages are written after the output that
            came before them; those that are there at the start come first.

    Yields:
        After each look at the logs, so that the caller can handle signals.

    Raises:
        LaunchError: a log can't be read, or the run's record can't be trusted.
    """
    run.check_trusted()
    out, logs = sys.stdout.buffer, list[GrowingLog]()
    follower = RunFollower(run, output=True)
    waiting, seen, planned, look_until = io.BytesIO(), 0, 0, 0.0
    while True:
        # The launcher completes the logs, then writes the report, then the table into its own log: what is
        # asked first here holds for what is read after it.
        over = follower.is_over()
        complete = over or (not follower.is_live and os.path.exists(run.paths.report))
        new = messages is not None and messages.write(waiting)
        if not logs and not complete:  # what the launcher has said so far is the beginning
            out.write(waiting.getvalue())
            waiting = io.BytesIO()
        with suppress(OSError):  # there is none yet
            planned = os.stat(run.paths.plan).st_mtime_ns
        if planned != seen:
            seen, anew = planned, open_logs()
            logs = logs or anew
            for log, other in zip(logs, anew, strict=False):
                log.take_label(other)
        grown = sum(log.write(out) for log in logs)
        if not grown:
            for log in logs if complete else ():
                log.write_line(out)
            out.write(waiting.getvalue())
            waiting = io.BytesIO()
        out.flush()
        if over and not (grown or new):
            return
        yield
        while not grown:
            if follower.wait(_POLL_SECONDS):
                look_until = time.monotonic() + _SETTLE_SECONDS
            if not follower.is_live or time.monotonic() < look_until:
                break
            yield


def report_of(run: Run) -> Report:
    """The report of a run that has ended.

    Raises:
        LaunchError: there is none, or it is damaged.
    """
    try:
        return report_from_json(run.report())
    except (ProtocolError, ValueError) as error:
        queued = states([run]).get(run.name)
        why = "its launcher died" if queued is None else escape_controls(queued.text)
        raise LaunchError(f"{run.name} has ended without a report: {why}") from error


def _run_and_tasks(selected: Sequence[str]) -> tuple[Run, Sequence[str]]:
    """The run, and the names of tasks; the first argument may be a run or a task."""
    if not selected:
        return find(None), ()
    try:
        return find(selected[0]), selected[1:]
    except InputError:
        newest = all_runs()[-1:]
        if not newest:
            raise
        roles = {task.role for task in tasks(newest[0])}
        if "/" in selected[0] or selected[0] in roles:
            return newest[0], selected
        task = re.fullmatch(r"(.+?)[-_:.]?(\d+)", selected[0])
        if task is None or task[1] not in roles:
            raise
        expected = f"did you mean {task[1]}/{task[2]}?"
        raise InputError([Fault("", f"no run and no task {selected[0]!r}", expected)]) from None


def logs_of(
    run: Run, names: Sequence[str] = (), lines: int | None = None, labelled: bool = False
) -> list[GrowingLog]:
    """The logs of tasks of a run, in the order of the plan; empty before the plan is written.

    Args:
        run: the run.
        names: of tasks and roles; empty: all.
        lines: the number of last lines to start with; ``None``: all.
        labelled: whether the lines of a single task have its name, too.

    Raises:
        InputError: a name is not that of a task.
    """
    if os.path.islink(run.paths.logs):
        raise LaunchError(f"can't read {run.paths.logs!r}: it is a link")
    hosts = tasks(run)
    chosen = selected(hosts, names) if hosts else []
    shown = labels(hosts, chosen) if labelled or len(chosen) > 1 else {}
    terminal = sys.stdout.isatty()
    return [
        GrowingLog(run.paths.log(task), shown.get(task, ""), lines, is_terminal=terminal) for task in chosen
    ]
