"""``launch report``: tell what happened in a run that has ended, that runs, or whose launcher died.

The command reads the files of the run, and asks its launcher if that runs. It changes nothing but the files
of ``--html`` and ``--junit``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress

from launcher.backends.queued_runs import find, shares_files, shown_there
from launcher.cli.run_names import run_argument
from launcher.clock_times import time_in_words, time_stamp
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.common.text import duration, escape_controls, plural, shortened
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.values import not_empty
from launcher.output.attempts import ATTEMPT_HEADERS, attempt_rows
from launcher.output.failure import failure_report
from launcher.output.junit import junit_xml
from launcher.output.lines import wants_colour
from launcher.output.renderers import record_as_dict
from launcher.output.run_files import write_for_user
from launcher.output.table import path_line, result_table, table_lines, verdict_lines
from launcher.runs.client import snapshot
from launcher.runs.history import RunHistory, read_history
from launcher.runs.run import Run, RunState, program_of
from launcher.runs.samples import SampleReader
from launcher.runs.view import RunView, report_in_files

SUMMARY = "tell what happened in a run"

EXAMPLES = """\
launch report                      the run that runs, else the newest
launch report k3f9m                a run by the last letters of its id
launch report --json k3f9m         the same for programs, as report.json
launch report --html run.html      the same as a page with graphs, to look at and to send
launch report --junit junit.xml    a file for CI, with a case for each task

Exit code: 0; 2 there is no such run; 125 the run cannot be read."""

_MAX_ATTEMPTS = 60
_MAX_PROGRAM_CHARACTERS = 300


RUN = run_argument(" (default: `latest`)")
HTML: Setting[str | None] = Setting(
    "html", not_empty, "also write it to this file, as a page with graphs", metavar="FILE", default=None
)
JUNIT: Setting[str | None] = Setting(
    "junit", not_empty, "also write it to this file, as JUnit for CI", metavar="FILE", default=None
)
JSON = Setting("json", switch, "print it as JSON, in the form of report.json", default=False)
GROUPS = (Group("positional arguments", (RUN,)), Group("options", (JSON, HTML, JUNIT)))


def run(settings: Settings) -> int:
    """Print what happened in a run.

    Returns:
        0, or the exit code of the command on the machine of its launcher.

    Raises:
        InputError: There is no such run.
        LaunchError: Its files cannot be read or are damaged, a file cannot be written, or with ``--junit`` it
            has not ended.
    """
    target_run, file, page = find(settings[RUN]), settings[JUNIT], settings[HTML]
    if (file is None and page is None) or shares_files(target_run):
        words = ["report", *([JSON.flag] if settings[JSON] else []), target_run.paths.root]
        # If the files of the run are not here, the machine of its launcher runs this command.
        if (code := shown_there(target_run, *words, follow=False)) is not None:
            return code
    target_run.check_trusted()
    history = read_history(target_run)
    report, state = _report_of(target_run, history)
    try:
        if file is not None:
            _write_junit(file, report, target_run, state)
        if page is not None:
            _write_page(page, report, target_run, state, history)
        if settings[JSON]:
            more = {"state": state.value, "lost_hosts": history.lost_hosts}
            text = json.dumps({**record_as_dict(report), **more}, indent=2)
        else:
            text = _told(target_run, report, state, history)
    except (ValueError, OverflowError, OSError) as error:  # A time is too early or too late.
        raise LaunchError(f"the files in {target_run.paths.root!r} are damaged: {error}") from error
    print(text)
    return 0


def _report_of(run: Run, history: RunHistory) -> tuple[Report, RunState]:
    """Return the report of a run, as it was at its end or as it is now, and whether it has ended.

    The launcher of a run that runs is asked. If it does not answer, or is elsewhere, the events tell.
    """
    if run.state is RunState.RUNNING:
        with suppress(LaunchError):
            now = snapshot(run)
            # The files may have been copied from another machine.
            report = replace(now.report, run_dir=run.paths.root)
            return report, RunState.ENDED if now.ended else RunState.RUNNING
    return report_in_files(run, history, time.time()), run.state


def _write_junit(path: str, report: Report, run: Run, state: RunState) -> None:
    """Write the file of ``--junit``.

    Raises:
        LaunchError: The run has not ended, or the file cannot be written.
    """
    if state not in (RunState.ENDED, RunState.DIED):
        raise LaunchError(f"{run.called} has not ended: {JUNIT.flag} needs its end")
    _write(path, junit_xml(report))


def _write_page(path: str, report: Report, run: Run, state: RunState, history: RunHistory) -> None:
    """Write the file of ``--html``.

    Raises:
        LaunchError: The file cannot be written.
    """
    from launcher.page.report import report_html  # noqa: PLC0415 - with jinja2, which nothing else needs

    reader, now = SampleReader(run.paths), time.time()
    reader.read()
    view = RunView(run, state, report, history, reader.series, history.restarting, seen_at=now)
    _write(path, report_html(view))


def _write(path: str, text: str) -> None:
    """Write a file for the user.

    Raises:
        LaunchError: It cannot be written.
    """
    try:
        write_for_user(path, text)
    except OSError as error:
        raise LaunchError(f"cannot write {path!r}: {error.strerror}") from error


# ---------------------------------------------------------------------- output


def _told(run: Run, report: Report, state: RunState, history: RunHistory) -> str:
    """Return when the run began and ended, its tasks, what happened, the first failure, and the verdict."""
    colour, now = wants_colour(os.environ, is_tty=sys.stdout.isatty()), time.time()
    took, ended_at = duration(report.ended_at - report.started_at), time_in_words(report.ended_at, now)
    when = {
        RunState.ENDED: f"ended {ended_at}, after {took}",
        RunState.DIED: f"died: its last sign of life was {ended_at}",
        RunState.RUNNING: f"runs for {took}",
        RunState.ELSEWHERE: f"may run on {run.machine}",
    }[state]
    program = shortened(escape_controls(program_of(run)), _MAX_PROGRAM_CHARACTERS)
    note = f"note: {run.origin.note}\n" if run.origin.note else ""
    end = verdict_lines(report, colour=colour) if state is RunState.ENDED else path_line(report)
    blocks = (
        f"{run.title}: {program}\n{note}began {time_in_words(report.started_at, now)}, {when}",
        result_table(report, colour=colour),
        "\n".join(_attempt_lines(report, run)),
        "\n".join(f"{time_stamp(at)}  {text}" for at, text in history.messages),
        failure_report(report, run.paths, colour=colour) + end,
    )
    return "\n\n".join(block.rstrip("\n") for block in blocks if block)


def _attempt_lines(report: Report, run: Run) -> list[str]:
    """Return the table of all attempts, in the order of their starts. Empty if no task was started again."""
    rows, left_out = attempt_rows(report, run.paths, _MAX_ATTEMPTS)
    lines = table_lines(ATTEMPT_HEADERS, rows)
    if left_out:
        lines.append(f"{plural(left_out, 'earlier attempt')} left out: --json has them")
    return lines
