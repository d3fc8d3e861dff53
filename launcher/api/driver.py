"""``Driver``: one launch in a subprocess, which the Python API drives in the background.

`launcher.api` and the pytest plug-in start a `Driver`, receive its events and read its report. Options,
commands and events travel over pipes, so the terminal stays free. The subprocess must never outlive the
process that started it, and a fork of that process must not keep it alive.
"""

from __future__ import annotations

import codecs
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from launcher.api.notebook import page_of
from launcher.common.errors import InputError, JobFailed, LaunchError, TaskFailed, TransportError
from launcher.common.report import Report, report_from_json, use_page
from launcher.common.text import escape_controls
from launcher.common.trusted_io import memory_file
from launcher.itself import launch_command
from launcher.output.logs import last_lines
from launcher.threads import start_function

use_page(page_of)

#: How many of its last lines the exception about a failed task contains.
MAX_LAST_LINES = 20
#: How long the last output may take to arrive after the launcher has exited.
_MAX_LATE_SECONDS = 2.0
#: The signals that stop the launcher at once, sent one after another until it has exited. The second Ctrl-C
#: makes it kill all tasks. Within a job of Slurm a second SIGTERM would not.
#: The launcher has 12 s to exit by itself, and then the kernel 8 s to end it.
_KILL_SIGNALS = [signal.SIGTERM] + [signal.SIGINT] * 29 + [signal.SIGKILL] * 20
#: The pause between two of these signals.
_SIGNAL_PAUSE_SECONDS = 0.4

#: The launches of this process that are under way. A fork of the process closes its copies of their pipes.
_drivers: set[Driver] = set()


@dataclass(eq=False)
class Driver:
    """A `launch` in a subprocess.

    The subprocess stops its job and exits when this process exits, however it exits. It has a session of its
    own, so a Ctrl-C at the terminal of this process does not reach it. A fork of this process does not own
    it, and all methods do nothing there.

    Args:
        argv: The options of `launch`.
        environ: The environment of `launch`.
        roles: The roles of the job, see `launcher.config.jobfile.parse_job`.
        quiet: Whether the output of `launch` is dropped.
        output: A file descriptor that receives the output of `launch`. By default it is shown on
            ``sys.stdout`` and ``sys.stderr``.
        on_event: Called with each event, in a thread.
        on_end: Called in the same thread when the launcher has exited and its report is complete.
        program: The program and its arguments, which follow the options. It is empty if the roles contain it.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    roles: Mapping[str, Any] | None = None
    quiet: bool = False
    output: int | None = None
    on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
    on_end: Callable[[], None] = lambda: None
    program: Sequence[str] = ()
    #: The name of the run, or an empty text if the launcher has not reported it yet.
    job: str = field(default="", init=False)
    #: The path of the run's folder, or an empty text if the launcher has not reported it yet.
    run_dir: str = field(default="", init=False)
    #: How the job ended. None while it runs, if nothing was started, and if the launcher was killed.
    report: Report | None = field(default=None, init=False)
    #: The exit code of the launcher, 128 + n if signal n killed it. None while the launcher runs.
    exit_code: int | None = field(default=None, init=False)
    #: Whether this process has stopped the job, so its end by a signal is no failure.
    asked: bool = field(default=False, init=False)
    #: Set when the launcher has exited and its report is complete, and always in a fork.
    over: threading.Event = field(default_factory=threading.Event, init=False)
    #: Why the launcher has failed, if the report does not say so.
    _error: LaunchError | None = field(default=None, init=False)
    #: This process's ends of two pipes. The first carries commands. The launcher stops when the second is
    #: closed.
    _our_ends: list[int] = field(default_factory=list, init=False)
    #: The threads that show the output of the launcher.
    _pumps: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start `launch`, and the threads that read its events and show its output.

        Raises:
            LaunchError: The subprocess cannot be started.
            TransportError: The system has no thread left. The subprocess has been killed.
        """
        events = self._start_process()
        try:
            # A stream is None if its output is dropped, or goes to the descriptor of the user.
            for name in ("stdout", "stderr"):
                if (pipe := getattr(self.process, name)) is not None:
                    self._pumps.append(start_function(self._show, pipe, name, name="launch"))
            start_function(self._run, events, name="launch")
        except TransportError:
            # Nobody would read what it reports. `_run` would have closed the pipe of events.
            self.process.kill()
            self.process.wait()
            self._release()
            os.close(events)
            raise

    def _start_process(self) -> int:
        """Start `launch` with the descriptors by which it and this process communicate.

        ::

            option          what the launcher does with it   what this process does with the other end
            --events-fd     writes events                    reads them (`_run`)
            --commands-fd   reads commands                   writes them (`command`)
            --until-eof-fd  stops at its end                 keeps it open and writes nothing ("lifeline")
            --roles-fd      reads the roles of the job       has none: it is a file in memory

        Returns:
            The descriptor from which the events are read.

        Raises:
            LaunchError: The subprocess cannot be started.
        """
        roles = json.dumps(self.roles).encode() if self.roles else b""
        # The user's own descriptor counts even if the launch is quiet. What is piped is shown by a thread.
        output = subprocess.DEVNULL if self.quiet else subprocess.PIPE
        output = output if self.output is None else self.output
        # The launcher inherits one end of each pipe. This process closes its copies of those ends in any case
        # (`theirs`), and its own ends only if the launcher does not start (`ours`). The reading end is first
        # in the arguments and in the result of `_pipe`.
        with ExitStack() as theirs, ExitStack() as ours:
            events, events_in = _pipe(ours, theirs)
            lifeline, lifeline_in = _pipe(theirs, ours)
            commands, commands_in = _pipe(theirs, ours)
            options = ["--events-fd", str(events_in), "--until-eof-fd", str(lifeline)]
            passed = [events_in, lifeline, commands]
            if roles:
                passed.append(_in_memory(roles, theirs))
                options += ["--roles-fd", str(passed[-1])]
            # This is the last option. If a word before it is mistaken for the program, `launch` finds it
            # among the arguments of the program, and reports the mistake.
            last_option = ["--commands-fd", str(commands)]
            # There is no file of code that is typed. `launch ps` shows which program has started the run.
            script = "".join(sys.argv[:1])
            options += ["--driver", script if os.path.isfile(script) else "python"]
            self._our_ends = [commands_in, lifeline_in]
            # From now on a fork of this process closes its copies of `_our_ends`. Otherwise the launcher
            # would not notice the end of this process while the fork runs.
            _drivers.add(self)
            try:
                self.process = subprocess.Popen(
                    launch_command(*options, *self.argv, *last_option, *self.program),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environ,
                    pass_fds=passed,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                _drivers.discard(self)
                raise LaunchError(f"the job cannot be started: {error}") from error
            ours.pop_all()  # the thread that reads events and `_release` close these ends
        return events

    def command(self, fields: Mapping[str, Any]) -> None:
        """Send a command to the launcher. Nothing happens if the launcher has exited.

        Args:
            fields: The command, as `launcher.launch.command_pipe` reads it.
        """
        # The first of this process's ends is that of the pipe for commands. The pipe is broken when the
        # launcher has exited, and then removed from the list.
        with suppress(OSError, IndexError):
            os.write(self._our_ends[0], json.dumps(fields).encode() + b"\n")

    # ------------------------------------------------------------------ stopping

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the launcher has exited.

        A Ctrl-C lets the launcher stop the job: its tasks have time to exit. A second one kills them.
        `KeyboardInterrupt` is raised when the launcher has exited.

        Args:
            seconds: The time limit, or None if there is none.

        Returns:
            Whether the launcher has exited.
        """
        try:
            return self.over.wait(seconds)
        except KeyboardInterrupt:
            # The launcher has a session of its own, so the Ctrl-C at the terminal did not reach it.
            self.signal(signal.SIGINT)
            try:
                self.over.wait()
            except KeyboardInterrupt:
                self.end()
            raise

    def signal(self, number: int) -> None:
        """Send the launcher a signal if it runs, and wake it if it is suspended.

        From then on the end of the job is what this process has asked for, and no failure.
        """
        # It is over when the launcher has exited, and in a fork of this process from the beginning.
        if not self.over.is_set():
            self.asked = True
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Stop the launcher at once, which kills its tasks, and return when it has exited.

        Raises:
            LaunchError: The launcher survives SIGKILL.
        """
        for number in _KILL_SIGNALS:
            self.signal(number)
            if self.over.wait(_SIGNAL_PAUSE_SECONDS):
                return
        raise LaunchError(f"the launcher (pid {self.process.pid}) survived SIGKILL")

    def error(self) -> LaunchError | None:
        """Return why the job failed, or why there is no report of it.

        - Without a report, the launcher has said why it failed, or its exit code is all that is known.
        - The report names a task whose failure is that of the job: a `TaskFailed` about this task.
        - Otherwise a `JobFailed` with the text of the report.

        Returns:
            The error that describes the failure. None if the job succeeded, or the launcher still runs.
        """
        report = self.report
        if self.exit_code is None or (self.exit_code == 0 and report is not None):
            return None
        if report is None:
            reason = "wrote no report" if self.run_dir else "ran no job"
            text = f"launch {reason} and exited with {self.exit_code}"
            return self._error or JobFailed(text, self.run_dir, self.exit_code)
        failure = report.failure
        text = failure.text if failure else f"launch exited with {self.exit_code}"
        for task in report.tasks:
            if failure is not None and task.task == failure.task:
                return TaskFailed(
                    text,
                    task=str(task.task),
                    host=task.host,
                    code=task.status.code,
                    signal=task.status.signal,
                    last_lines=last_lines(self.run_dir, str(task.task), MAX_LAST_LINES),
                    run_dir=self.run_dir,
                    report=report,
                )
        return JobFailed(text, self.run_dir, self.exit_code, report)

    # ------------------------------------------------------------------ threads

    def _run(self, events: int) -> None:
        """Read the launcher's events until it closes their pipe, then wait for its exit and tell `on_end`.

        Args:
            events: The descriptor of the pipe, which is closed here.
        """
        try:
            with open(events, encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("\n"):  # a launcher that is killed may leave half a line
                        self._handle_event(json.loads(line))
        finally:
            returncode = self.process.wait()
            # A negative number is that of the signal that has killed it. A shell shows it as 128 + n.
            code = 128 - returncode if returncode < 0 else returncode
            # The code of the report counts even if the launcher was killed after it.
            self.exit_code = (self.report and self.report.exit_code) or code
            # All of the output is shown before anybody hears that the job has ended.
            for thread in self._pumps:
                thread.join(_MAX_LATE_SECONDS)
            self._release()
            # Those who wait for `over` must find what `on_end` has noted.
            try:
                self.on_end()
            finally:
                self.over.set()

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        """Keep what an event says about the run, its report or its failure, and pass the event on.

        - ``Opened``: the run has a name and a folder.
        - ``Report``: how the job and its tasks have ended.
        - ``Failed``: the launcher itself has failed, with the pickled exception.

        Args:
            event: The event. All others are only passed on.
        """
        if event["event"] == "Opened":
            self.job, self.run_dir = event["job"], event["run_dir"]
        elif event["event"] == "Report":
            self.report = report_from_json(event)
        elif event["event"] == "Failed":
            error = pickle.loads(bytes.fromhex(event["error"]))
            # Only an error about wrong input is raised as it is.
            if not isinstance(error, InputError):
                # Parts of the text may come from a host, which must not send control characters to the
                # terminal.
                text = "\n".join(map(escape_controls, str(error).split("\n")))
                error = JobFailed(text, self.run_dir, error.exit_code)
            self._error = error
        self.on_event(event)

    def _show(self, pipe: IO[bytes], name: str) -> None:
        """Copy what `launch` prints from a pipe to ``sys.stdout`` or ``sys.stderr``, until `launch` exits.

        Args:
            pipe: The stdout or stderr of `launch`.
            name: ``stdout`` or ``stderr``. The stream is looked up each time, because a notebook replaces it.
        """
        # A character of several bytes may be cut by the end of a piece.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with pipe:
            while data := os.read(pipe.fileno(), 1 << 16):
                # The program may have closed the stream or set it to None. The logs contain the output
                # anyway.
                with suppress(AttributeError, OSError, ValueError):
                    getattr(sys, name).write(decoder.decode(data))
                    getattr(sys, name).flush()

    def _release(self) -> None:
        """Close this process's ends of the pipes, so that a launcher that still runs stops."""
        _drivers.discard(self)
        while self._our_ends:
            os.close(self._our_ends.pop())


def _pipe(of_reader: ExitStack, of_writer: ExitStack) -> tuple[int, int]:
    """Make a pipe whose ends are closed at the end of two contexts.

    Args:
        of_reader: The context after which the reading end is closed.
        of_writer: The context after which the writing end is closed.

    Returns:
        The descriptors of the reading and of the writing end.
    """
    reader, writer = os.pipe()
    of_reader.callback(os.close, reader)
    of_writer.callback(os.close, writer)
    return reader, writer


def _in_memory(content: bytes, until: ExitStack) -> int:
    """Return a descriptor of a file in memory, from which the given content can be read.

    Args:
        content: The content of the file.
        until: The context at whose end the descriptor is closed.
    """
    descriptor = memory_file("launch")
    until.callback(os.close, descriptor)
    os.pwrite(descriptor, content, 0)  # This does not move the position, at which reading starts.
    return descriptor


def _release_in_fork() -> None:
    """Close a fork's copies of the pipes that keep launches running, and mark the launches as over there.

    Only the process that started a job keeps it running.
    """
    for driver in list(_drivers):
        driver._release()
        driver.over = threading.Event()
        driver.over.set()


os.register_at_fork(after_in_child=_release_in_fork)
