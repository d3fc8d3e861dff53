"""``launch report``: tell what happened in a run that has ended, that runs, or whose launcher died.

With two runs it tells in what they differ.

The command reads the files of the run, and asks its launcher if that runs. It changes nothing but the files
of ``--html`` and ``--junit``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from launcher.backends.queued_runs import find, shares_files, show_there
from launcher.backends.watcher import RunWatcher
from launcher.cli.run_names import unfinished_runs
from launcher.clock_times import time_in_words, time_stamp
from launcher.common.errors import Fault, InputError, LaunchError
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
from launcher.output.table import path_line, print_table, result_table, table_lines, verdict_lines
from launcher.runs.client import snapshot
from launcher.runs.run import Run, RunState, program_of
from launcher.runs.view import RunView, view_from_files

SUMMARY = "tell what happened in a run, or compare two"

EXAMPLES = """\
launch report                      the run that runs, else the newest
launch report k3f9m                a run by the last letters of its id
launch report --json k3f9m         the same for programs, as report.json
launch report --html run.html      the same as a page with graphs, to look at and to send
launch report k3f9m 7h2xq          compare two runs: options, times, metrics
launch report --junit junit.xml    a file for CI, with a case for each task

Exit code: 0; 2 there is no such run; 125 the run cannot be read."""

_MAX_PROGRAM_CHARACTERS = 300


RUNS: Setting[tuple[str, ...]] = Setting(
    "runs", not_empty, "a run (default: `latest`), or two to compare: name, id, its end, or folder",
    metavar="RUN", default=(), positional="*", repeatable=True, complete=unfinished_runs,
)  # fmt: skip
HTML: Setting[str | None] = Setting(
    "html", not_empty, "also write it to this file, as a page with graphs", metavar="FILE", default=None
)
JUNIT: Setting[str | None] = Setting(
    "junit", not_empty, "also write it to this file, as JUnit for CI", metavar="FILE", default=None
)
JSON = Setting("json", switch, "print it as JSON, in the form of report.json", default=False)
GROUPS = (Group("positional arguments", (RUNS,)), Group("options", (JSON, HTML, JUNIT)))


def run(settings: Settings) -> int:
    """Print what happened in a run, or in what two runs differ.

    Returns:
        0, or the exit code of the command on the machine of its launcher.

    Raises:
        InputError: There is no such run, or more than two are named.
        LaunchError: The files of a run cannot be read or are damaged, a file cannot be written, or with
            ``--junit`` the run has not ended.
    """
    names, file, page = settings[RUNS], settings[JUNIT], settings[HTML]
    if len(names) > 2:
        raise InputError([Fault("RUN", f"{len(names)} runs are named", "expected one, or two to compare")])
    if len(names) == 2:
        if surplus := [row.flag for row in (HTML, JUNIT) if settings[row] is not None]:
            raise InputError(
                [Fault(flag, "the file is about one run, and two are named") for flag in surplus]
            )
        _compare(find(names[0]), find(names[1]), as_json=settings[JSON])
        return 0
    target_run = find(*names)
    if page is not None:
        from launcher.page.report import report_html  # noqa: PLC0415 - imports jinja2; few need it

        with _viewed(target_run) as view:
            _write(page, report_html(view, target_run.paths.root))
    # If the files of the run are on the machine of its launcher, that machine runs this command. But it could
    # not write the file of --junit to this machine. With --junit a copy of the files is read here instead, as
    # it was above for the page of --html.
    if file is None or shares_files(target_run):
        words = ["report", *([JSON.flag] if settings[JSON] else []), target_run.paths.root]
        # The result is None if the files of the run are on this machine.
        if (code := show_there(target_run, *words, follow=False)) is not None:
            return code
    with _viewed(target_run) as view:
        if file is not None and not view.has_ended:
            raise LaunchError(f"{view.run.called} has not ended: {JUNIT.flag} needs its end")
        if file is not None:
            _write(file, junit_xml(view.report))
        if settings[JSON]:
            more = {"state": view.state.value, "lost_hosts": view.history.lost_hosts}
            text = json.dumps({**record_as_dict(view.report), **more}, indent=2)
        else:
            text = _told(view)
    print(text)
    return 0


def _compare(first: Run, second: Run, *, as_json: bool) -> None:
    """Print in what two runs differ.

    Raises:
        LaunchError: The files of a run cannot be read or are damaged.
    """
    from launcher.runs.comparison import COMPARISON_HEADERS, compared  # noqa: PLC0415 - few compare runs

    with _viewed(first) as first_view, _viewed(second) as second_view:
        pairs = compared(first_view, second_view)
    if as_json:
        values = [{"name": name, "values": [each.value for each in pair]} for name, pair in pairs.items()]
        print(json.dumps({"runs": [first.name, second.name], "compared": values}, indent=2))
        return
    cells = [("run", first.title, second.title, "")]
    cells += [(name, one.text, other.text, one.change_to(other)) for name, (one, other) in pairs.items()]
    print_table(COMPARISON_HEADERS, cells)


@contextmanager
def _viewed(run: Run) -> Iterator[RunView]:
    """Open a context with what there is to see of a run, in which its files can be read.

    If the files are not on this machine, the context has a copy of them. A launcher that runs is asked for
    the state of the run. If it does not answer, the events tell the state.
    """
    try:
        if not shares_files(run):
            with RunWatcher(run) as watcher:
                yield watcher.look(0.0)
            return
        run.check_trusted()
        report = state = None
        if run.state is RunState.RUNNING:
            with suppress(LaunchError):
                answer = snapshot(run)
                # The files may have been copied from another machine.
                report = replace(answer.report, run_dir=run.paths.root)
                state = RunState.ENDED if answer.ended else RunState.RUNNING
        yield view_from_files(run, report, state)
    except (ValueError, OverflowError, OSError) as error:  # Such as a time that is too late.
        raise LaunchError(f"the files in {run.paths.root!r} are damaged: {error}") from error


def _write(path: str, text: str) -> None:
    """Write a file for the user.

    Raises:
        LaunchError: The file cannot be written.
    """
    try:
        write_for_user(path, text)
    except OSError as error:
        raise LaunchError(f"cannot write {path!r}: {error.strerror}") from error


# ---------------------------------------------------------------------- output


def _told(view: RunView) -> str:
    """Return the text of the report: times, tasks, attempts, messages, the first failure and the verdict."""
    run, report, state = view.run, view.report, view.state
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
        "\n".join(f"{time_stamp(at)}  {text}" for at, text in view.history.messages),
        failure_report(report, run.paths, colour=colour) + end,
    )
    return "\n\n".join(block.rstrip("\n") for block in blocks if block)


def _attempt_lines(report: Report, run: Run) -> list[str]:
    """Return the table of all attempts, in the order of their starts. Empty if no task was started again."""
    rows, left_out = attempt_rows(report, run.paths)
    lines = table_lines(ATTEMPT_HEADERS, rows)
    if left_out:
        lines.append(f"{plural(left_out, 'earlier attempt')} left out: --json has them")
    return lines
