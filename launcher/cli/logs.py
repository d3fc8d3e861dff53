"""``launch logs``: print the output of the tasks of a run, in bounded memory.

``launch attach`` uses `follow`, too. The logs belong to the run: this module only reads them.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from launcher.backends.queued_runs import show_there, states
from launcher.cli.follower import RunFollower
from launcher.cli.run_names import SELECTED, run_and_tasks
from launcher.clock_times import TIME_FORMS, parse_time, time_in_words, time_with_zone
from launcher.common.errors import Fault, InputError, LaunchError, ProtocolError
from launcher.common.report import Report, report_from_json
from launcher.common.text import escape_controls, join_names
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.table import TIMESTAMPS, VERBOSE
from launcher.config.values import whole
from launcher.messages import say
from launcher.output.lines import labels
from launcher.output.logs import GrowingLog, LogSelection
from launcher.output.table import verdict
from launcher.output.tensorflow_notices import Folding
from launcher.runs.run import Run, selected, tasks

SUMMARY = "print the output of the tasks of a run"

EXAMPLES = """\
launch logs                    the run that runs, else the newest
launch logs worker/0 > FILE    one task of it, byte for byte
launch logs -f ps worker/1     all ps and one worker, until the run has ended
launch logs --lines 20 k3f9m   the last lines of each task of another run
launch logs --since 10m        what was printed in the last ten minutes
launch logs --timestamps --since "yesterday 23:00" --until 02:00

Exit code: 0; with --follow that of the job."""

#: Seconds between two checks whether logs have grown.
_POLL_SECONDS = 0.1
#: How long after an event the logs are still read, because an unfinished line may follow the event.
_SETTLE_SECONDS = 2.0

FOLLOW = Setting(
    "follow", switch, "print new lines until the run has ended", flags=("-f", "--follow"), default=False
)
LINES: Setting[int | None] = Setting(
    "lines", whole(0, 10**12), "only the last N lines of each task", flags=("-n", "--lines"), metavar="N",
    default=None,
)  # fmt: skip


def _time(text: str) -> float:
    """Read a time before or after now, such as ``10m`` (ago), ``02:00`` or ``yesterday 23:10``."""
    return parse_time(text, time.time())


SINCE: Setting[float | None] = Setting(
    "since", _time, f"only what was printed since then: {TIME_FORMS}", metavar="TIME", default=None
)
UNTIL: Setting[float | None] = Setting(
    "until", _time, "only what was printed before, in the same forms", metavar="TIME", default=None,
    excludes=(FOLLOW.name,),
)  # fmt: skip
GROUPS = (
    Group("positional arguments", (SELECTED,)),
    Group("options", (FOLLOW, LINES, SINCE, UNTIL, TIMESTAMPS, VERBOSE)),
)


def run(settings: Settings) -> int:
    """Print the logs of the tasks that the user names, or of all tasks of a run.

    Returns:
        0, or with ``--follow`` the exit code of the job.

    Raises:
        InputError: There is no such run, or it contains no such task.
        LaunchError: A log cannot be read, or with ``--follow`` the run has no report at its end.
    """
    target_run, names = run_and_tasks(settings[SELECTED])
    # The logs of tasks that the user names are shown as they are.
    folding = None if settings[VERBOSE] or names else Folding()
    selection, follows = _selection(settings, folding), settings[FOLLOW]
    # If the files of the run are not here, the machine of its launcher runs this command.
    code = show_there(target_run, "logs", *_options(settings), target_run.paths.root, *names, follow=follows)
    if code is not None:  # None means that the files are here.
        return code
    if follows:
        for _ in follow(target_run, names, selection):
            continue
        _tell_what_is_missing(target_run, names)
        report = report_of(target_run)
        say(verdict(report))
        return report.exit_code
    logs = logs_of(target_run, names, selection)
    for log in logs:
        log.write_rest(sys.stdout.buffer)
    say_hidden(folding)
    _tell_what_is_missing(target_run, names, logs if selection.needs_times else ())
    return 0


def _selection(settings: Settings, folding: Folding | None) -> LogSelection:
    """Return which part of the logs the user wants to see.

    Args:
        settings: The settings of the command.
        folding: Leaves out and counts start-up messages of TensorFlow. None: nothing is left out.

    Raises:
        InputError: ``--until`` is not later than ``--since``.
    """
    since, until = settings[SINCE], settings[UNTIL]
    if since is not None and until is not None and until <= since:
        expected = f"expected a time after {time_in_words(since, time.time())}"
        raise InputError([Fault("--until", "it is not after --since", expected)])
    return LogSelection(settings[LINES], since, until, settings[TIMESTAMPS], folding)


def _options(settings: Settings) -> list[str]:
    """Return the options by which the launch of another machine shows the same.

    That launch may be older, and not know options that the user has not typed. So these are left out.
    """
    options = [row.flag for row in (FOLLOW, TIMESTAMPS, VERBOSE) if settings[row]]
    options += [] if settings[LINES] is None else [LINES.flag, str(settings[LINES])]
    # The other machine may have another time zone.
    times = [(row.flag, settings[row]) for row in (SINCE, UNTIL)]
    return [*options, *(word for flag, at in times if at is not None for word in (flag, time_with_zone(at)))]


def _tell_what_is_missing(run: Run, names: Sequence[str], logs: Sequence[GrowingLog] = ()) -> None:
    """Tell the user why nothing was shown, or which logs were removed.

    Args:
        run: The run.
        names: The names of tasks and roles that the user has typed.
        logs: The logs, if only what was printed in a certain time was to be shown. Otherwise empty.
    """
    known_tasks = tasks(run)  # Empty before the plan is written.
    chosen = selected(known_tasks, names) if known_tasks else []
    if not chosen:
        say(f"no task of {run.title} was started, so it has no logs")
    elif removed := [task for task in chosen if not os.path.lexists(run.paths.log(task))]:
        say(escape_controls(f"the logs of {join_names(removed)} in {run.paths.logs} were removed"))
    elif not any(os.path.getsize(run.paths.log(task)) for task in chosen):
        say(f"{join_names(chosen)} printed nothing in {run.title}")
    elif logs and not any(log.has_begun for log in logs):
        say(f"{join_names(chosen)} printed nothing in this time in {run.title}")


def say_hidden(folding: Folding | None) -> None:
    """Flush stdout, and say once how many start-up messages of TensorFlow were left out, if any were.

    Args:
        folding: Has counted the messages. None if nothing was to be left out.
    """
    sys.stdout.buffer.flush()
    if folding is not None and (summary := folding.summary()):
        say(summary)
        folding.count = 0


def follow(
    run: Run, names: Sequence[str], selection: LogSelection, messages: GrowingLog | None = None
) -> Iterator[None]:
    """Write what is new in logs to stdout until the run has ended and everything is written.

    Each round of the loop looks first whether the run is over, then reads the messages and the logs, writes
    both, and waits for more. It returns after a round that began with the run over and found nothing new.

    Args:
        run: The run.
        names: The names of tasks and roles whose logs are shown. Without any, all logs are shown.
        selection: Which part of each log is shown.
        messages: The messages of a launcher in the background. They are written after the output that came
            before them, and messages from before the start of tasks come first. With messages each line
            starts with the name of its task, even if there is only one. With None no messages are shown.

    Yields:
        Nothing, but after each check of the logs, so that the caller can handle signals.

    Raises:
        LaunchError: A log cannot be read, or the run's record cannot be trusted.
    """
    run.check_trusted()
    out, logs = sys.stdout.buffer, list[GrowingLog]()
    follower, folding = RunFollower(run, output=True), selection.folding
    unwritten_messages, read_until = io.BytesIO(), 0.0
    # The time when the plan was written last, and the time of the plan by which logs were opened. 0: never.
    plan_time = opened_plan_time = 0
    while True:
        # These lines must stay in this order. The launcher first completes the logs, then writes the report,
        # then the table into its messages, and exits. So this loop asks in the opposite order: has it exited,
        # what are its messages, is there a report? The logs are read last. So what is known to be complete
        # is complete when it is read, and the table never comes before the end of the logs.
        is_over = follower.is_over()
        # The messages are only collected here, because earlier output of tasks is written before them.
        has_new_messages = messages is not None and messages.write(unwritten_messages)
        is_complete = is_over or os.path.exists(run.paths.report)
        if not logs and not is_complete:
            # No task was started when the launcher said this, so no output comes before it.
            out.write(unwritten_messages.getvalue())
            unwritten_messages = io.BytesIO()
        with suppress(OSError):  # The plan may not be written yet.
            plan_time = os.stat(run.paths.plan).st_mtime_ns
        if plan_time != opened_plan_time:
            opened_plan_time = plan_time
            reopened = logs_of(run, names, selection, labelled=messages is not None)
            logs = _with_new_labels(logs, reopened)
        grown_logs = sum(log.write(out) for log in logs)
        # While logs grow, their output may be older than the messages, so the messages have to wait.
        if not grown_logs:
            for log in logs if is_complete else ():
                log.write_line(out)  # A last line without a line end will get none now.
            if is_complete:
                say_hidden(folding)
            out.write(unwritten_messages.getvalue())
            unwritten_messages = io.BytesIO()
        out.flush()
        if is_over and not (grown_logs or has_new_messages):
            return
        yield
        # What has grown is read again at once. Otherwise this waits until the launcher reports by an event
        # that logs have grown. They are then read for a while, because a last line may still be unfinished.
        # Without a connection to the launcher, logs are read at each poll.
        while not (grown_logs or has_new_messages):
            if follower.wait(_POLL_SECONDS):
                read_until = time.monotonic() + _SETTLE_SECONDS
            if time.monotonic() < read_until or not follower.is_live:
                break
            yield


def _with_new_labels(logs: list[GrowingLog], reopened: list[GrowingLog]) -> list[GrowingLog]:
    """Return the logs to follow after a new plan was written, with the labels that fit this plan.

    After a task has moved, its log is the same file, but its label may be another one. Logs that are open
    stay, because they know how much of them was written.

    Args:
        logs: The open logs. Empty before the first plan.
        reopened: The same logs, opened by the new plan.
    """
    for log, other in zip(logs, reopened, strict=False):
        log.take_label(other)
    return logs or reopened


def report_of(run: Run) -> Report:
    """Return the report of a run that has ended.

    Raises:
        LaunchError: There is no report, or it is damaged. The error says why, such as a launcher that died.
    """
    try:
        return report_from_json(run.report())
    except (ProtocolError, ValueError) as error:
        # The queue of a cluster may know why. The result is None if the launcher is in no queue.
        queued = states([run]).get(run.name)
        why = "its launcher died" if queued is None else escape_controls(queued.text)
        raise LaunchError(f"{run.called} has ended without a report: {why}") from error


def logs_of(
    run: Run, names: Sequence[str], selection: LogSelection, *, labelled: bool = False
) -> list[GrowingLog]:
    """Open the logs of tasks of a run, in the order of the plan.

    Args:
        run: The run.
        names: The names of tasks and roles. Without any, the logs of all tasks are opened.
        selection: Which part of each log is shown.
        labelled: Whether each line starts with the name of its task even if there is only one task.

    Returns:
        The logs. There are none before the plan is written.

    Raises:
        InputError: A name matches no task.
        LaunchError: The folder of the logs is a link, which launch never makes.
    """
    if os.path.islink(run.paths.logs):
        raise LaunchError(f"cannot read {run.paths.logs!r}: it is a link")
    host_by_task = tasks(run)
    chosen = selected(host_by_task, names) if host_by_task else []
    label_by_task = labels(host_by_task, chosen) if labelled or len(chosen) > 1 else {}
    is_terminal = sys.stdout.isatty()
    return [
        GrowingLog(run.paths.log(task), label_by_task.get(task, ""), selection, is_terminal=is_terminal)
        for task in chosen
    ]
