"""Drives one launch in the background: its start, its events, its end, its report."""

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

from launcher.common.errors import InputError, JobFailed, LaunchError, TaskFailed, TransportError
from launcher.common.report import Report, report_from_json
from launcher.common.text import escape_controls
from launcher.itself import launch_command
from launcher.output.logs import last_lines
from launcher.threads import start_function

#: Lines of a failed task in an exception.
MAX_LAST_LINES = 20
#: Seconds that output may take to arrive after the end of the launcher.
_MAX_LATE_SECONDS = 2.0
#: Signals that end it at once, one after another. Ctrl-C twice kills the tasks everywhere. A second SIGTERM
#: does not do so within a job of Slurm.
_KILL_SIGNALS = [signal.SIGTERM] + [signal.SIGINT] * 29 + [signal.SIGKILL] * 20
#: Seconds between two of these signals.
_SIGNAL_PAUSE_SECONDS = 0.4

_drivers: set[Driver] = set()


@dataclass(eq=False)
class Driver:
    """A `launch` in a subprocess, from `start` on. It stops its job and ends when this process ends.

    It has a session of its own: a Ctrl-C at the terminal of this process does not reach it. A fork of this
    process does not own it: there, all methods do nothing.

    Args:
        argv: options of `launch`.
        environ: the environment of `launch`.
        roles: see `launcher.config.jobfile.parse_job`.
        quiet: do not show the output of `launch`.
        output: a descriptor for the output of `launch`; default: ``sys.stdout`` and ``sys.stderr``.
        on_event: is called with each event, in a thread.
        on_end: is called when the launcher has ended and its report is complete, in the same thread.
        program: the program and its arguments, which follow the options; empty if the roles have a program.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    roles: Mapping[str, Any] | None = None
    quiet: bool = False
    output: int | None = None
    on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
    on_end: Callable[[], None] = lambda: None
    program: Sequence[str] = ()
    #: The name of the run and its folder; empty: not known yet.
    job: str = field(default="", init=False)
    run_dir: str = field(default="", init=False)
    #: How the job ended; ``None``: it runs, or the launcher was killed, or nothing was started.
    report: Report | None = field(default=None, init=False)
    #: 128 + n if signal n ended the launcher; ``None``: it runs.
    exit_code: int | None = field(default=None, init=False)
    #: This process has stopped the job: its end by a signal is not reported as a failure.
    asked: bool = field(default=False, init=False)
    #: Set when the launcher has ended and its report is complete; also in a fork.
    over: threading.Event = field(default_factory=threading.Event, init=False)
    #: Why the launcher has failed, where that is not in the report.
    _error: LaunchError | None = field(default=None, init=False)
    #: Our ends of the pipes: the first carries commands, the end of the second ends the launcher.
    _ours: list[int] = field(default_factory=list, init=False)
    #: The threads that show its output.
    _pumps: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start `launch`.

        Raises:
            LaunchError: it can't be started.
        """
        roles = json.dumps(self.roles).encode() if self.roles else b""
        output = subprocess.DEVNULL if self.quiet else subprocess.PIPE
        output = output if self.output is None else self.output
        with ExitStack() as theirs, ExitStack() as ours:
            events, events_in = _pipe(ours, theirs)
            lifeline, lifeline_in = _pipe(theirs, ours)
            commands, commands_in = _pipe(theirs, ours)
            options = ["--events-fd", str(events_in), "--until-eof-fd", str(lifeline)]
            passed = [events_in, lifeline, commands]
            if roles:
                passed.append(_in_memory(roles, theirs))
                options += ["--roles-fd", str(passed[-1])]
            # The last option: `launch` has not read it if a word before it is the program.
            last = ["--commands-fd", str(commands)]
            self._ours = [commands_in, lifeline_in]
            _drivers.add(self)
            try:
                self.process = subprocess.Popen(
                    launch_command(*options, *self.argv, *last, *self.program),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environ,
                    pass_fds=passed,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                _drivers.discard(self)
                raise LaunchError(f"the job can't be started: {error}") from error
            ours.pop_all()
        try:
            for name in ("stdout", "stderr"):
                if (pipe := getattr(self.process, name)) is not None:
                    self._pumps.append(start_function(self._show, pipe, name, name="launch"))
            start_function(self._run, events, name="launch")
        except TransportError:
            self.process.kill()
            self.process.wait()
            self._release()
            os.close(events)
            raise

    def command(self, fields: Mapping[str, Any]) -> None:
        """Send a command, see `launcher.launch.orchestrator`; nothing happens if the launcher has ended."""
        with suppress(OSError, IndexError):
            os.write(self._ours[0], json.dumps(fields).encode() + b"\n")

    # ------------------------------------------------------------------ its end

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end. Ctrl-C stops the job in order, a second one at once, and is raised then.

        Args:
            seconds: ``None``: no limit.

        Returns:
            Whether it has ended.
        """
        try:
            return self.over.wait(seconds)
        except KeyboardInterrupt:
            self.signal(signal.SIGINT)
            try:
                self.over.wait()
            except KeyboardInterrupt:
                self.end()
            raise

    def signal(self, number: int) -> None:
        """Signal the launcher, if it runs; a suspended one goes on."""
        if not self.over.is_set():
            self.asked = True
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it at once, without the grace of its tasks. Returns when it has ended.

        Raises:
            LaunchError: the launcher survives SIGKILL.
        """
        for number in _KILL_SIGNALS:
            self.signal(number)
            if self.over.wait(_SIGNAL_PAUSE_SECONDS):
                return
        raise LaunchError(f"the launcher (pid {self.process.pid}) survived SIGKILL")

    def error(self) -> LaunchError | None:
        """Why it failed, once it has ended, or why it has no report; ``None``: it succeeded."""
        report = self.report
        if self.exit_code is None or (self.exit_code == 0 and report is not None):
            return None
        if report is None:
            reason = "wrote no report" if self.run_dir else "ran no job"
            text = f"launch {reason} and exited with {self.exit_code}"
            return self._error or JobFailed(text, self.run_dir, self.exit_code)
        failure = report.failure
        text = failure.text if failure else f"launch exited with {self.exit_code}"
        failed = [task for task in report.tasks if failure is not None and task.task == failure.task]
        if not failed:
            return JobFailed(text, self.run_dir, self.exit_code, report)
        first = failed[0]
        return TaskFailed(
            text,
            task=str(first.task),
            host=first.host,
            code=first.status.code,
            signal=first.status.signal,
            last_lines=last_lines(self.run_dir, str(first.task), MAX_LAST_LINES),
            run_dir=self.run_dir,
            report=report,
        )

    # ------------------------------------------------------------------ in its threads

    def _run(self, events: int) -> None:
        """Read events until the launcher closes their pipe, then wait for its end."""
        try:
            with open(events, encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("\n"):  # else the launcher was killed
                        self._handle_event(json.loads(line))
        finally:
            code = self.process.wait()
            self.exit_code = (self.report and self.report.exit_code) or (128 - code if code < 0 else code)
            for thread in self._pumps:
                thread.join(_MAX_LATE_SECONDS)
            self._release()
            try:
                self.on_end()
            finally:
                self.over.set()

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "Opened":
            self.job, self.run_dir = event["job"], event["run_dir"]
        elif event["event"] == "Report":
            self.report = report_from_json(event)
        elif event["event"] == "Failed":
            error = pickle.loads(bytes.fromhex(event["error"]))
            if not isinstance(error, InputError):
                # Parts of it may come from a host.
                text = "\n".join(map(escape_controls, str(error).split("\n")))
                error = JobFailed(text, self.run_dir, error.exit_code)
            self._error = error
        self.on_event(event)

    def _show(self, pipe: IO[bytes], name: str) -> None:
        """Show what `launch` prints."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with pipe:
            while data := os.read(pipe.fileno(), 1 << 16):
                with suppress(AttributeError, OSError, ValueError):  # closed, or None: the logs have it
                    getattr(sys, name).write(decoder.decode(data))
                    getattr(sys, name).flush()

    def _release(self) -> None:
        _drivers.discard(self)
        while self._ours:
            os.close(self._ours.pop())


def _pipe(of_reader: ExitStack, of_writer: ExitStack) -> tuple[int, int]:
    """Make a pipe, each end of which is closed at the end of a context."""
    reader, writer = os.pipe()
    of_reader.callback(os.close, reader)
    of_writer.callback(os.close, writer)
    return reader, writer


def _in_memory(content: bytes, until: ExitStack) -> int:
    """Return a descriptor from which this content can be read. It is closed at the end of a context."""
    descriptor = os.memfd_create("launch")
    until.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _release_in_fork() -> None:
    """In a fork: close what keeps jobs running. Only the process that started a job keeps it running."""
    for driver in list(_drivers):
        driver._release()
        driver.over = threading.Event()
        driver.over.set()


os.register_at_fork(after_in_child=_release_in_fork)
