"""``launch attach``: show the output of a run in the background until it has ended.

The command reads the logs of the run and the messages of its launcher. It never ends the launcher, except by
a SIGTERM when the user answers so to a Ctrl-C.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import time
from typing import BinaryIO

from launcher.backends.queued_runs import LEFT_EXIT_CODE, find, relay, show_there, withdraw_run
from launcher.cli.logs import follow, report_of, say_hidden
from launcher.cli.run_names import run_argument
from launcher.cli.stop import launcher_of
from launcher.common.report import Report
from launcher.common.text import duration
from launcher.config.settings import Group, Setting, Settings
from launcher.config.table import VERBOSE
from launcher.config.values import whole
from launcher.messages import say
from launcher.output.failure import failure_report
from launcher.output.lines import wants_colour
from launcher.output.logs import GrowingLog, LogSelection
from launcher.output.table import result_table, verdict_lines
from launcher.output.tensorflow_notices import Folding
from launcher.runs.run import Run, RunState, send_sigterm

SUMMARY = "show the output of a run in the background, and how it ends"

EXAMPLES = """\
launch attach                 the run that runs, else the newest
launch attach k3f9m           a run by the last letters of its id
launch attach -n 0            only lines from now on (launch logs shows all)

Ctrl-C asks whether to stop the job or to leave it running; without a
terminal it leaves it running.
Exit code: that of the job; 125 its launcher was killed; 130 Ctrl-C, and the
job runs on."""

#: The command that asks a launcher on another machine to stop, without waiting for its end.
_STOP_WORDS = ("stop", "--timeout", "0")
#: Seconds between two looks for a Ctrl-C while the user is asked.
_ANSWER_POLL_SECONDS = 0.1


RUN = run_argument(" (default: `latest`)")
LINES = Setting(
    "lines", whole(0, 10**12), "begin with the last N lines of each task (default: 10)",
    flags=("-n", "--lines"), metavar="N", default=10,
)  # fmt: skip
GROUPS = (Group("positional arguments", (RUN,)), Group("options", (LINES, VERBOSE)))


def run(settings: Settings) -> int:
    """Show the output of a run until it has ended, or until the user leaves it with Ctrl-C.

    Returns:
        The exit code of the job, or `LEFT_EXIT_CODE` if the user has left it.

    Raises:
        InputError: There is no such run.
        LaunchError: A log or the report cannot be read, or the job cannot be stopped from here.
    """
    target_run = find(settings[RUN])
    # Ctrl-C raises KeyboardInterrupt even if the parent process ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # If the files of the run are not here, the machine of its launcher shows them.
        options = ["--lines", str(settings[LINES]), *(["--verbose"] if settings[VERBOSE] else [])]
        code = show_there(target_run, "attach", *options, target_run.paths.root, follow=True)
    except KeyboardInterrupt:
        code = LEFT_EXIT_CODE
        say(f"{target_run.called} runs on; launch attach {target_run.called} comes back")
    if code is not None:  # None means that the files are here.
        return code
    if target_run.state is RunState.ENDED:
        report = report_of(target_run)
        ago = duration(time.time() - report.ended_at)
        say(f"{target_run.called} ended {ago} ago with exit code {report.exit_code}")
    # A Ctrl-C must not interrupt the writing of a line. So it stays pending, and the loop below looks for it
    # between two lines.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    messages = _Messages(target_run)
    selection = LogSelection(settings[LINES], folding=None if settings[VERBOSE] else Folding())
    for _ in follow(target_run, (), selection, messages):
        if signal.sigtimedwait([signal.SIGINT], 0) and _ask_user(target_run):
            say_hidden(selection.folding)
            say(f"{target_run.called} runs on; launch attach {target_run.called} comes back")
            return LEFT_EXIT_CODE
    report = report_of(target_run)
    # A launcher that was started with --detach has a file of messages, and has written the end there. The end
    # of any other run is printed here: the failure on stderr, the table and the verdict on stdout.
    if not os.path.exists(target_run.paths.messages):
        table, _, last_lines = _end(target_run, report, is_tty=sys.stdout.isatty())
        failure = _end(target_run, report, is_tty=sys.stderr.isatty())[1]
        print(table, end="", flush=True)
        print(failure, end="", file=sys.stderr)
        print(last_lines, end="")
    return report.exit_code


def _end(run: Run, report: Report, *, is_tty: bool) -> tuple[str, str, str]:
    """Return what a launch prints at the end of a run: the table, the first failure, and the verdict."""
    colour = wants_colour(os.environ, is_tty=is_tty)
    failure = failure_report(report, run.paths, colour=colour)
    return result_table(report, colour=colour), failure, verdict_lines(report, colour=colour)


class _Messages(GrowingLog):
    """The messages of a launcher in the background. A terminal shows their end in the colours of a launch.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run.paths.messages, is_terminal=sys.stdout.isatty())
        self._run = run

    def write(self, out: BinaryIO) -> bool:
        """Write what was added to the messages, and return whether anything was.

        The launcher has written the table, the failure and the verdict without colours, as into any file. On
        a terminal these lines get the colours of a launch.
        """
        added = io.BytesIO()
        has_grown = super().write(added)
        lines = added.getvalue().decode(errors="surrogateescape").splitlines(keepends=True)
        # The launcher writes the end after the report.
        if lines and sys.stdout.isatty() and os.path.exists(self._run.paths.report):
            ends = (_end(self._run, report_of(self._run), is_tty=is_tty) for is_tty in (False, True))
            plain, coloured = ("".join(end).splitlines(keepends=True) for end in ends)
            colours = dict(zip(plain, coloured, strict=True))
            lines = [colours.get(line, line) for line in lines]
        out.write("".join(lines).encode(errors="surrogateescape"))
        return has_grown


def _ask_user(run: Run) -> bool:
    """Ask the user after a Ctrl-C whether to stop the run, to leave it or to go on, and stop it if so.

    If the user stops the run a second time, its launcher kills the tasks at once. A process that cannot ask
    leaves the run.

    Returns:
        Whether the user leaves the run. After a request to stop it is False, because the user still sees how
        the run ends.

    Raises:
        LaunchError: The run cannot be stopped from here.
    """
    answer = _answer(run.called) if _can_ask() else "n"
    if answer != "y":
        return answer == "n"
    # A launcher that waits in a queue is taken out of it, and one at a cluster is asked by its own machine.
    if withdraw_run(run) or relay(run, *_STOP_WORDS, run.paths.root, quiet=True) is not None:
        return False
    pidfd = launcher_of(run)
    if pidfd is not None:  # The launcher has not ended meanwhile.
        send_sigterm(pidfd)
        os.close(pidfd)
    return False


def _can_ask() -> bool:
    """Return whether stdin is a terminal that this process may read.

    The kernel would suspend a process in the background that reads from its terminal.
    """
    return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


def _answer(run_name: str) -> str:
    """Ask the user what to do with a run, and return the first letter of the answer.

    Returns:
        ``y`` to stop the job, or ``n`` to leave it. A second Ctrl-C and the end of the input mean ``n``, too.
        Any other letter, or an empty text for Enter alone, means to go on.
    """
    question = f"\nlaunch: stop job {run_name}? [y] stop, [n] detach, [Enter] continue: "
    print(question, end="", file=sys.stderr, flush=True)
    # `run` blocks Ctrl-C. If it were unblocked, one that comes just before the read would not end the read.
    while not select.select([sys.stdin], [], [], _ANSWER_POLL_SECONDS)[0]:
        if signal.sigtimedwait([signal.SIGINT], 0):
            return "n"
    return (sys.stdin.readline() or "n").strip().lower()[:1]
