"""The display of a job: the renderers (console or JSON, files, tmux) and the writer behind them.

A session opens it before its orchestrator runs the job, and shows the verdict when it closes it. Nothing here
may wait for a slow reader while the job runs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.common.events import StopAsked, Tell, now
from launcher.common.report import Report
from launcher.config import table
from launcher.job import Plan, RunPaths
from launcher.launch.interrupts import Interrupts
from launcher.launch.options import LaunchOptions
from launcher.messages import MessageQueue
from launcher.output.console import Console, ConsoleOptions
from launcher.output.lines import wants_colour
from launcher.output.renderers import EventPipe, Jsonl, Renderer, RunInfo, TaskPlace, skipped_notice
from launcher.output.run_files import Files
from launcher.output.writer import Writer

if TYPE_CHECKING:
    from launcher.output.background import Background
    from launcher.output.tmux import Tmux

_STDOUT = 1
_STDERR = 2
_SIGPIPE = 13


class Display:
    """The renderers of a job, and the writer for stdout and stderr.

    It is a context, at whose end the verdict is shown, so that it is the last line. There is no verdict if
    `end_output` was not called.

    Args:
        options: How to show the job.
        show: The tasks whose output is shown. None without ``--show``.
        paths: The files of the run.
        tmux: The session of ``--tmux``. None without that option.
        background: The renderer of ``--detach``. None without that option.
        messages: The messages for the user until the verdict.
    """

    def __init__(
        self,
        options: LaunchOptions,
        show: frozenset[str] | None,
        paths: RunPaths,
        tmux: Tmux | None,
        background: Background | None,
        messages: MessageQueue,
    ) -> None:
        """Make the renderers that the options ask for. Nothing is shown until `begin` is called."""
        self._options, self._paths, self._tmux, self.messages = options, paths, tmux, messages
        #: Whether the reader of stdout has exited, and `stop_asked` has returned a request because of that.
        self._is_pipe_closed = False
        settings = options.settings
        #: Writes to stdout and stderr for the console or ``--json``.
        self.writer = Writer(paths.logs, skipped_notice if settings[table.JSON] else None)
        # In a run that was submitted to a queue, a launcher before this one may have made the files.
        self._files = Files(is_resumed=options.submitted is not None)
        #: The last events, for programs that follow the job.
        self.event_buffer = self._files.event_buffer
        #: The renderer for stdout: the console, or that of ``--json``.
        self._console = _console(options, show, self.writer, tmux)
        # A program that has started launch, such as the Python API, reads the events from this pipe.
        events_fd = settings[table.EVENTS_FD]
        event_pipe = None if events_fd is None else EventPipe(events_fd)
        renderers = (self._files, tmux, self._console, event_pipe, background)
        #: Everything that shows the job or keeps its output. Each gets all events.
        self.renderers: Sequence[Renderer] = [each for each in renderers if each is not None]
        #: The report of the job. None until `end_output` is called.
        self._report: Report | None = None
        #: Whether a file or the output is not complete, which is known at the end of the context.
        self.unwritten = False

    def __enter__(self) -> Display:
        """Open the context, at whose end the verdict is shown."""
        return self

    def begin(self, run_info: RunInfo) -> None:
        """Let the renderers begin, before the job runs.

        Raises:
            LaunchError: A renderer cannot begin.
        """
        for renderer in self.renderers:
            renderer.begin(run_info)

    @property
    def notes(self) -> list[str]:
        """Notes about the renderers, for the user."""
        return [f"a pane for each task: {self._tmux.attach_command}"] if self._tmux is not None else []

    def stop_asked(self) -> StopAsked | None:
        """Return a request to stop the job, because nobody can see its output any longer.

        The reader of the output has exited, or the tmux session is closed.

        Returns:
            The request, only once for each cause. None if nobody asks for a stop.
        """
        if not self._is_pipe_closed and isinstance(self.writer.broken(_STDOUT), BrokenPipeError):
            self._is_pipe_closed = True  # The next call must not ask for the stop again.
            return StopAsked(now(), _SIGPIPE, "a closed pipe (the reader of the output has gone)")
        return None if self._tmux is None else self._tmux.stop_asked()

    def with_advice(self, report: Report, plan: Plan | None) -> Report:
        """Return a report whose failure, if any, has all hints, for which the output of its task is read.

        All that tell of the failure then tell the same: the console, the report, the Python API.

        Args:
            report: The report of a job that has ended.
            plan: How its tasks were started. None if the job has ended before.
        """
        failure = report.failure
        if failure is None:
            return report
        from launcher.output.failure import with_advice  # noqa: PLC0415 - many regular expressions, for failures only

        planned = (task for task in (plan.tasks if plan else ()) if task.task == failure.task)
        return with_advice(report, self._paths, _place(self._options), next(planned, None))

    def end_output(self, report: Report, interrupts: Interrupts, *, run_continues: bool) -> None:
        """Show the end of the output of a job that has ended, and write its report. Signals must be queued.

        Args:
            report: The report of the job.
            interrupts: A signal ends the wait for a slow reader.
            run_continues: Whether the run continues with another launcher.
        """
        self._report = report
        self._files.run_continues = run_continues
        if isinstance(self._console, Console):
            self._console.run_continues = run_continues
        for renderer in self.renderers:
            if renderer is not self._console:  # The console shows the verdict at the end of the context.
                renderer.close(report)
        self.writer.finish(lambda: bool(interrupts.read()))

    def __exit__(self, *_: object) -> None:
        """Show the verdict, write what still waits, and close the writer."""
        if self._report is None:  # An error ends the launch, which is shown without a display.
            return
        self.show_messages()
        self._console.close(self._report)
        self.writer.finish()
        error = self.writer.broken(_STDOUT)
        # A user who closes the output, or gives none, does not miss it.
        if error is not None and error.errno not in (errno.EPIPE, errno.EBADF):
            text = f"the output cannot be written: {error.strerror}; it is complete in {self._paths.logs}"
            line = f"launch: {text}\n".encode("utf-8", "backslashreplace")
            self.writer.write(_STDERR, line, is_urgent=True)
            self.unwritten = True
        self.unwritten = self.unwritten or self._files.unwritten
        self.writer.close()

    def tell_user(self, text: str) -> None:
        """Show a line to the user alone. No file that others of the job read gets it."""
        self._console.on(Tell(text, urgent=True))
        self.writer.flush()

    def show_messages(self) -> None:
        """Show the messages that arrive after `end_output`. Only the console is still open then."""
        for message in self.messages.drain():
            self._console.on(message)
        self.writer.flush()


def _console(
    options: LaunchOptions, show: frozenset[str] | None, writer: Writer, tmux: Tmux | None
) -> Renderer:
    """Return the renderer for stdout: the console for people, or JSON.

    Args:
        options: How to show the job.
        show: The tasks whose output is shown. None without ``--show``, when all are shown.
        writer: Writes stdout and stderr.
        tmux: The session of ``--tmux``. None without that option.
    """
    settings = options.settings
    if settings[table.JSON]:
        return Jsonl(writer)
    is_terminal, are_errors_shown = os.isatty(_STDOUT), os.isatty(_STDERR)
    # There is no live line if stdout goes to a pager or to tee: two writers on one terminal mix their lines.
    live = is_terminal and are_errors_shown and tmux is None and os.environ.get("TERM") != "dumb"
    # Nobody sees the output of a detached launch. With ``--tmux`` in this terminal the panes show it, unless
    # the user asks for it by ``--show``. An empty set shows the output of no task.
    if settings[table.DETACH] or (show is None and tmux and is_terminal):
        show = frozenset()
    console_options = ConsoleOptions(
        live=live,
        colour=wants_colour(os.environ, is_tty=is_terminal),
        error_colour=wants_colour(os.environ, is_tty=are_errors_shown),
        show=show,
        fold=not settings[table.VERBOSE],
        timestamps=settings[table.TIMESTAMPS],
        quiet=settings[table.QUIET],
        # The Python API raises an exception with all of the failure report if it wants no last lines here.
        failure=not (settings[table.NO_LAST_LINES] and settings[table.EVENTS_FD] is not None),
        last_lines=not settings[table.NO_LAST_LINES],
        covered=lambda: tmux is not None and tmux.is_attached,
    )
    return Console(writer, console_options)


def _place(options: LaunchOptions) -> TaskPlace:
    """Return what is known about where the tasks run, for the hints of a failure."""
    backend, spec, venv = options.backend, options.spec, options.spec.venv or ""
    # Variables that the user sets for tasks, as pairs of name and value, with all their sources.
    variables = [
        spec.env,
        spec.option_env,
        *(role.env for role in spec.roles),
        *(host.env for host in options.hosts),
    ]
    over_ssh = backend.name == "ssh" and options.has_other_machines
    return TaskPlace(
        other_machines=options.has_other_machines,
        over_ssh=over_ssh and not backend.runs_in_containers,
        in_container=backend.runs_in_containers,
        synced=bool(options.settings[table.SYNC]),
        files=backend.missing_file_hint(options.backend_options),
        prepare=spec.prepare if options.has_other_machines else "launch prepare",
        venv="" if "/" in venv else venv,  # ``launch prepare`` makes no environment at a path.
        passed=frozenset(name for pairs in variables for name, _ in pairs),
    )
