"""Drives one launch in the background: its start, its events, its end, its report."""

from __future__ import annotations

import codecs
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from launcher.errors import Fault, InputError, JobFailed, LaunchError, TaskFailed
from launcher.report import Report, report_from_json
from launcher.runs.logs import last_lines

#: Lines of a failed task, or of the launcher, in an exception.
LINES = 20
#: Characters of the launcher's stderr that are kept.
_KEPT = 64 * 1024
#: Seconds after which the launcher's stderr is shown although its job has not begun.
_SILENCE = 2.0
#: Seconds that output may take to arrive after the end of the launcher.
_LATE = 2.0
#: Seconds between two signals that ask for an end at once, how many of them, and seconds for SIGKILL.
_PAUSE, _REQUESTS, _KILL = 0.5, 30, 10.0

#: Runs the launcher of this installation. The current folder is not on its ``sys.path``, and it handles
#: Ctrl-C and the other stop signals also where this process ignores them.
_START = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
sys.path.append(sys.argv.pop(1))
import signal
signal.pthread_sigmask(signal.SIG_SETMASK, [])
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_DFL)
from launcher.__main__ import main
main()
"""
_FOLDER = str(Path(__file__).resolve().parents[2])

_drivers: set[Driver] = set()


@dataclass(eq=False)
class Driver:
    """A `launch` in a subprocess, from `start` on. It stops its job and ends when this process ends.

    It has a session of its own: a Ctrl-C at the terminal of this process does not reach it. A fork of this
    process does not own it: there, all methods do nothing.

    Args:
        argv: the arguments of `launch`.
        environ: the environment of `launch`.
        roles: see `launcher.config.jobfile.parse_job`.
        quiet: do not show the output of `launch`.
        output: a descriptor for the output of `launch`; default: ``sys.stdout`` and ``sys.stderr``.
        on_event: is called with each event, in a thread.
        on_end: is called when the launcher has ended and its report is complete, in the same thread.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    roles: Mapping[str, Any] | None = None
    quiet: bool = False
    output: int | None = None
    on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
    on_end: Callable[[], None] = lambda: None
    #: All events so far.
    events: list[Mapping[str, Any]] = field(default_factory=list, init=False)
    #: The name of the run and its folder; empty: not known yet.
    job: str = field(default="", init=False)
    run_dir: str = field(default="", init=False)
    #: How the job ended; ``None``: it runs, or the launcher was killed, or nothing was started.
    report: Report | None = field(default=None, init=False)
    #: 128 + n if signal n ended the launcher; ``None``: it runs.
    exit_code: int | None = field(default=None, init=False)
    #: The launcher was asked to end: that the job was interrupted is no failure.
    asked: bool = field(default=False, init=False)
    #: Set when the launcher has ended and its report is complete.
    over: threading.Event = field(default_factory=threading.Event, init=False)
    #: Set when the launcher's stderr need not be held back any more.
    _begun: threading.Event = field(default_factory=threading.Event, init=False)
    _stderr: str = field(default="", init=False)
    #: Our ends of the pipes that end the launcher when they end, and that carry commands to it.
    _ours: list[int] = field(default_factory=list, init=False)
    _pid: int = field(default_factory=os.getpid, init=False)

    def start(self) -> None:
        """Start `launch`.

        Raises:
            LaunchError: it can't be started.
        """
        self._events, events = os.pipe()
        lifeline, ours = os.pipe()
        commands, self._commands = os.pipe()
        self._ours = [ours, self._commands]
        theirs = {"--events-fd": events, "--until-eof-fd": lifeline, "--commands-fd": commands}
        if self.roles:
            theirs["--roles-fd"] = _memory(self.roles)
        _drivers.add(self)
        options = [word for name, fd in theirs.items() for word in (name, str(fd))]
        shown = subprocess.DEVNULL if self.quiet else subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, _FOLDER, *options, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=shown if self.output is None else self.output,
                stderr=subprocess.PIPE if self.output is None else self.output,
                env=self.environ,
                pass_fds=list(theirs.values()),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(self._events)
            self._release()
            raise LaunchError(f"the job can't be started: {error}") from error
        finally:
            for fd in theirs.values():
                os.close(fd)
        self._pumps = [
            threading.Thread(target=pump, args=[stream], name="launch-output", daemon=True)
            for stream, pump in ((self.process.stdout, self._show), (self.process.stderr, self._show_errors))
            if stream is not None
        ]
        for thread in (*self._pumps, threading.Thread(target=self._run, name="launch-events", daemon=True)):
            thread.start()

    def command(self, fields: Mapping[str, Any]) -> None:
        """Send a command, see `launcher.job_run.orchestrator`; nothing happens if the launcher has ended."""
        try:
            os.write(self._commands, json.dumps(fields).encode() + b"\n")
        except OSError:
            return

    # ------------------------------------------------------------------ its end

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that started it, and not a fork of that."""
        return os.getpid() == self._pid

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end. Ctrl-C stops the job in order, a second one at once, and is raised then.

        Args:
            seconds: ``None``: no limit.

        Returns:
            Whether it has ended.
        """
        if not self.is_ours:
            return True
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
        if self.is_ours and not self.over.is_set():
            self.asked = True
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it at once: the second SIGTERM kills the tasks. Returns when it has ended.

        Raises:
            LaunchError: the launcher survives SIGKILL.
        """
        if not self.is_ours:
            return
        for _ in range(_REQUESTS):
            self.signal(signal.SIGTERM)
            if self.over.wait(_PAUSE):
                return
        self.signal(signal.SIGKILL)
        if not self.over.wait(_KILL):
            raise LaunchError(f"the launcher (pid {self.process.pid}) survived SIGKILL")

    def error(self) -> LaunchError | None:
        """Why it failed, once it has ended, or why it has no report; ``None``: it succeeded."""
        report = self.report
        if self.exit_code is None or (self.exit_code == 0 and report is not None):
            return None
        if report is None:
            lines = [line.removeprefix("launch: ") for line in self._stderr.splitlines() if line.strip()]
            text = "\n".join(lines[-LINES:]) or f"launch ran no job and ended with {self.exit_code}"
            if self.exit_code == InputError.exit_code:
                return InputError([Fault("", text)])
            return JobFailed(text, self.run_dir, self.exit_code)
        failure = report.failure
        text = failure.text if failure else f"launch ended with {self.exit_code}"
        failed = [task for task in report.tasks if failure is not None and task.task == failure.task]
        if not failed:
            return JobFailed(text, self.run_dir, self.exit_code, report)
        task, host = str(failed[0].task), failed[0].host
        lines = last_lines(self.run_dir, task, LINES)
        return TaskFailed(text, task, host, *failed[0].status, "", lines, self.run_dir, report)

    # ------------------------------------------------------------------ in its threads

    def _run(self) -> None:
        handle = os.pidfd_open(self.process.pid)
        try:
            self._read(handle)
        finally:
            code = self.process.wait()
            self.exit_code = (self.report and self.report.exit_code) or (128 - code if code < 0 else code)
            self.quiet = self.quiet or not self.events  # the exception has the text
            self._begun.set()
            for thread in self._pumps:
                thread.join(_LATE)
            os.close(handle)
            os.close(self._events)
            self._release()
            try:
                self.on_end()
            finally:
                self.over.set()

    def _read(self, handle: int) -> None:
        """Read events until the launcher has ended: a fork of it may keep the pipe open."""
        os.set_blocking(self._events, False)
        poll = select.poll()
        poll.register(self._events, select.POLLIN)
        poll.register(handle, select.POLLIN)
        rest, ended = b"", False
        while not ended:
            ended = any(fd == handle for fd, _ in poll.poll())  # what came before is read once more
            try:
                while data := os.read(self._events, 1 << 16):
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self._take(json.loads(line))
                poll.unregister(self._events)
                poll.poll()
                return
            except BlockingIOError:
                continue

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "Opened":
            self.job, self.run_dir = event["job"], event["run_dir"]
        elif event["event"] == "Report":
            self.report = report_from_json(event)
        self.events.append(event)
        self._begun.set()
        self.on_event(event)

    def _show(self, pipe: IO[bytes]) -> None:
        for text in _texts(pipe):
            _print(sys.stdout, text)

    def _show_errors(self, pipe: IO[bytes]) -> None:
        """Show stderr. Before the job begins it is held back: it may become the text of an exception."""
        until = time.monotonic() + _SILENCE
        for text in _texts(pipe):
            self._stderr = (self._stderr + text)[-_KEPT:]
            self._begun.wait(max(0.0, until - time.monotonic()))
            if not self.quiet:
                _print(sys.stderr, text)

    def _release(self) -> None:
        _drivers.discard(self)
        while self._ours:
            os.close(self._ours.pop())


def _memory(value: Any) -> int:
    """A descriptor from which the value can be read as JSON."""
    fd = os.memfd_create("launch")
    with open(fd, "w", encoding="utf-8", closefd=False) as file:
        json.dump(value, file)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _texts(pipe: IO[bytes]) -> Any:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with pipe:
        while data := os.read(pipe.fileno(), 1 << 16):
            yield decoder.decode(data)


def _print(stream: Any, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (AttributeError, OSError, ValueError):  # closed, or there is none: the logs have it
        return


def _release_in_fork() -> None:
    """The job ends with the process that started it, whatever its forks do."""
    for driver in list(_drivers):
        driver._release()


os.register_at_fork(after_in_child=_release_in_fork)
