"""Programs of ours that the agent runs in children: remote commands of the launcher, and its own questions.

A child is a fork of the agent that calls a function with a pipe for each standard stream. A remote command
has the bytes of its stdin and stdout carried by the protocol, within a window (`launcher.protocol.CREDIT`)
each way.
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import sys
import time
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence

from launcher.agent.connection import Connection
from launcher.agent.processes import reset_signals
from launcher.protocol import (
    CREDIT,
    CloseCommand,
    CommandCredit,
    CommandEnded,
    CommandInput,
    CommandOutput,
    RunCommand,
)

#: Bytes that the answer to a question, and the stderr of a remote command, may have.
_LIMIT = 64 * 1024
_READ = 64 * 1024
#: Seconds for a remote command to end after it was closed.
_CLOSING = 5.0
_MOST_DESCRIPTORS = 65536


class Forked(NamedTuple):
    """A child, and our ends of its stdin, stdout and stderr, which do not block."""

    pid: int
    stdin: int
    stdout: int
    stderr: int


def fork(function: Callable[[], Any]) -> Forked:
    """Call a function in a child with pipes as its standard streams; its result is the exit status.

    Raises:
        OSError: no process or descriptor is left.
    """
    fds: List[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
        pid = os.fork()
    except OSError:
        for fd in fds:
            os.close(fd)
        raise
    stdin, in_writing, out_reading, stdout, err_reading, stderr = fds
    if pid == 0:
        _become(function, (stdin, stdout, stderr))
    for fd in (stdin, stdout, stderr):
        os.close(fd)
    for fd in (in_writing, out_reading, err_reading):
        os.set_blocking(fd, False)
    return Forked(pid, in_writing, out_reading, err_reading)


def _become(function: Callable[[], Any], streams: Sequence[int]) -> NoReturn:
    """In the child: nothing of the agent may run here any more, whatever happens."""
    status: Any = 1
    try:
        reset_signals()
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        _close_others()
        status = function()
    except SystemExit as error:
        status = error.code
    finally:
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def _close_others() -> None:
    modules = [int(path[14:]) for path in sys.path if path.startswith("/proc/self/fd/")]
    low = 3
    for fd in [*sorted(modules), min(os.sysconf("SC_OPEN_MAX"), _MOST_DESCRIPTORS)]:
        os.closerange(low, fd)
        low = fd + 1


class _Question:
    """A child whose output is the answer."""

    def __init__(self, child: Forked, seconds: float, done: Callable[[bytes], None]) -> None:
        self.child = child
        self.until = time.monotonic() + seconds
        self.done = done
        self.answer = b""
        self.answered = False


class _Command:
    """A remote command of the launcher."""

    def __init__(self, number: int, child: Forked) -> None:
        self.number = number
        self.child = child
        self.stdin: List[memoryview] = []
        self.stderr = b""
        #: Bytes of its output that the launcher takes now.
        self.credit = CREDIT
        self.status: Optional[int] = None
        #: Streams that are open, and those that the selector watches.
        self.open = {child.stdin, child.stdout, child.stderr}
        self.watched: Dict[int, int] = {}
        self.input_ended = False
        #: When to kill it; ``None``: it was not closed.
        self.kill_at: Optional[float] = None


class Children:
    """The children of an agent that are no tasks.

    Args:
        selector: wakes the agent.
        connection: to the launcher.
        ignore: called with the pid of each: it belongs to no task.
    """

    def __init__(
        self, selector: selectors.BaseSelector, connection: Connection, ignore: Callable[[int], None]
    ) -> None:
        self._selector = selector
        self._connection = connection
        self._ignore = ignore
        self._questions: Dict[int, _Question] = {}
        self._commands: Dict[int, _Command] = {}

    # ------------------------------------------------------------------ questions

    def ask(self, function: Callable[[], Any], seconds: float, done: Callable[[bytes], None]) -> None:
        """Call a function in a child; ``done`` gets what it printed, after its end or so many seconds.

        Raises:
            OSError: no process or descriptor is left.
        """
        child = fork(function)
        os.close(child.stdin)
        os.close(child.stderr)
        self._ignore(child.pid)
        question = _Question(child, seconds, done)
        self._questions[child.pid] = question
        self._selector.register(child.stdout, selectors.EVENT_READ, lambda: self._read_answer(question))

    def _read_answer(self, question: _Question) -> None:
        try:
            data = os.read(question.child.stdout, _READ)
        except BlockingIOError:
            return
        question.answer = (question.answer + data)[:_LIMIT]
        if not data:
            self._answered(question)

    def _answered(self, question: _Question) -> None:
        self._selector.unregister(question.child.stdout)
        os.close(question.child.stdout)
        question.answered = True
        question.done(question.answer)

    # ------------------------------------------------------------------ remote commands

    def run(self, order: RunCommand) -> None:
        """Start a remote command."""
        module, _, function = order.entry.partition(":")

        def call() -> Any:
            return getattr(importlib.import_module(module), function)(order.arguments)

        try:
            child = fork(call)
        except OSError as error:
            self._connection.send(CommandEnded(order.command, 125, f"no process for it: {error.strerror}"))
            return
        self._ignore(child.pid)
        command = _Command(order.command, child)
        self._commands[order.command] = command
        self._watch(command)

    def take_input(self, message: CommandInput) -> None:
        """Bytes for the stdin of a remote command, or its end."""
        command = self._commands.get(message.command)
        if command is not None and not command.input_ended:
            if message.data:
                command.stdin.append(memoryview(message.data))
            command.input_ended = not message.data
            self._write(command)

    def take_credit(self, message: CommandCredit) -> None:
        """The launcher took bytes of a remote command."""
        command = self._commands.get(message.command)
        if command is not None:
            command.credit += message.size
            self._watch(command)

    def close(self, message: CloseCommand) -> None:
        """The launcher needs a remote command no more: it sees the end of its stdin, and has some seconds."""
        command = self._commands.get(message.command)
        if command is not None:
            command.stdin.clear()
            for fd in list(command.open):
                self._close(command, fd)
            command.kill_at = time.monotonic() + _CLOSING
            self._end_if_over(command)

    def _watch(self, command: _Command) -> None:
        """Wait for those streams of a command that have something to do."""
        child = command.child
        wanted = {child.stderr: selectors.EVENT_READ}
        if command.credit > 0:
            wanted[child.stdout] = selectors.EVENT_READ
        if command.stdin:
            wanted[child.stdin] = selectors.EVENT_WRITE
        for fd in command.open:
            if fd in wanted and fd not in command.watched:
                self._selector.register(fd, wanted[fd], partial(self._ready, command, fd))
                command.watched[fd] = wanted[fd]
            elif fd not in wanted and command.watched.pop(fd, 0):
                self._selector.unregister(fd)

    def _ready(self, command: _Command, fd: int) -> None:
        if fd == command.child.stdin:
            self._write(command)
            return
        try:
            size = min(_READ, command.credit) if fd == command.child.stdout else _READ
            data = os.read(fd, size)
        except BlockingIOError:
            return
        if fd == command.child.stderr:
            command.stderr = (command.stderr + data)[-_LIMIT:]
        else:
            command.credit -= len(data)
            self._connection.send(CommandOutput(command.number, data))
        if not data:
            self._close(command, fd)
        self._watch(command)
        self._end_if_over(command)

    def _write(self, command: _Command) -> None:
        taken, fd = 0, command.child.stdin
        try:
            while command.stdin and fd in command.open:
                count = os.write(fd, command.stdin[0])
                taken += count
                command.stdin[0] = command.stdin[0][count:]
                if not command.stdin[0]:
                    command.stdin.pop(0)
        except BlockingIOError:
            pass
        except OSError:  # it reads no more
            taken += sum(map(len, command.stdin))
            command.stdin.clear()
        if taken:
            self._connection.send(CommandCredit(command.number, taken))
        if command.input_ended and not command.stdin and fd in command.open:
            self._close(command, fd)
        self._watch(command)

    def _close(self, command: _Command, fd: int) -> None:
        if command.watched.pop(fd, 0):
            self._selector.unregister(fd)
        command.open.discard(fd)
        os.close(fd)

    def _end_if_over(self, command: _Command) -> None:
        reading = {command.child.stdout, command.child.stderr} & command.open
        if command.status is None or reading:
            return
        for fd in list(command.open):
            self._close(command, fd)
        if self._commands.pop(command.number, None) is not None:
            stderr = command.stderr.decode("utf-8", "replace")
            self._connection.send(CommandEnded(command.number, command.status, stderr))

    # ------------------------------------------------------------------ their end

    def reaped(self, pid: int, status: int) -> None:
        """A child of the agent has ended; the pid may belong to another process from now on."""
        question = self._questions.pop(pid, None)
        if question is not None and not question.answered:
            self._read_answer(question)
        if question is not None and not question.answered:
            self._answered(question)
        for command in list(self._commands.values()):
            if command.child.pid == pid:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                command.status = code
                self._end_if_over(command)

    def next_due(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        dues = [question.until for question in self._questions.values() if not question.answered]
        dues += [command.kill_at for command in self._commands.values() if command.kill_at is not None]
        return min(dues, default=None)

    def on_time(self, now: float) -> None:
        """Kill those whose time is up."""
        for question in list(self._questions.values()):
            if question.until <= now and not question.answered:
                os.kill(question.child.pid, signal.SIGKILL)  # not reaped: the pid is still that child's
                self._answered(question)
        for command in self._commands.values():
            if command.kill_at is not None and command.kill_at <= now and command.status is None:
                command.kill_at = None
                os.kill(command.child.pid, signal.SIGKILL)
