"""Programs of ours that the agent runs in children: remote commands of the launcher, and its own questions.

A child is a fork of the agent that calls a function with a pipe for each standard stream. A remote command
has the bytes of its stdin and stdout carried by the protocol, within a window (`launcher.protocol.CREDIT`)
each way.
"""

from __future__ import annotations

import importlib
import os
import select
import selectors
import signal
import sys
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence

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

#: Bytes kept of the stderr of a child.
_LIMIT = 64 * 1024
_READ = 64 * 1024
#: Seconds for a remote command to end after it was closed.
_CLOSING = 5.0
_MOST_DESCRIPTORS = 65536
#: Exit status of a command line that took too long, and of one that is not there; a shell uses the same.
LATE, NOT_FOUND = 124, 127
_LOOK = 0.05


class _Child:
    """A child that runs, and our ends of its standard streams, which do not block."""

    def __init__(self, pid: int, stdin: int, stdout: int, stderr: int) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        #: Streams that are open, and those that the selector watches.
        self.open = {stdin, stdout, stderr}
        self.watched: Dict[int, int] = {}
        self.input: List[memoryview] = []
        self.input_ended = False
        self.errors = b""
        #: Bytes of its output that may be read now.
        self.credit = CREDIT
        self.status: Optional[int] = None
        #: When to kill it (monotonic).
        self.kill_at: Optional[float] = None
        #: The number of a remote command; of a question: its answer, and what gets it.
        self.number = 0
        self.answer = b""
        self.done: Optional[Callable[[bytes], None]] = None


def _fork(function: Callable[[], Any]) -> _Child:
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
    return _Child(pid, in_writing, out_reading, err_reading)


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
        self._children: Dict[int, _Child] = {}
        self._commands: Dict[int, _Child] = {}

    def _started(self, function: Callable[[], Any]) -> _Child:
        child = _fork(function)
        self._ignore(child.pid)
        self._children[child.pid] = child
        self._watch(child)
        return child

    def ask(self, function: Callable[[], Any], seconds: float, done: Callable[[bytes], None]) -> None:
        """Call a function in a child; ``done`` gets what it printed when it ends, or is killed in so many
        seconds.

        Raises:
            OSError: no process or descriptor is left.
        """
        child = self._started(function)
        child.done, child.kill_at = done, time.monotonic() + seconds
        self._close(child, child.stdin)

    # ------------------------------------------------------------------ remote commands

    def run(self, order: RunCommand) -> None:
        """Start a remote command."""
        module, _, function = order.entry.partition(":")

        def call() -> Any:
            return getattr(importlib.import_module(module), function)(order.arguments)

        try:
            child = self._commands[order.command] = self._started(call)
        except OSError as error:
            self._connection.send(CommandEnded(order.command, 125, f"no process for it: {error.strerror}"))
        else:
            child.number = order.command

    def take_input(self, message: CommandInput) -> None:
        """Bytes for the stdin of a remote command, or its end."""
        child = self._commands.get(message.command)
        if child is not None and not child.input_ended:
            if message.data:
                child.input.append(memoryview(message.data))
            child.input_ended = not message.data
            self._write(child)

    def take_credit(self, message: CommandCredit) -> None:
        """The launcher took bytes of a remote command."""
        child = self._commands.get(message.command)
        if child is not None:
            child.credit += message.size
            self._watch(child)

    def close(self, message: CloseCommand) -> None:
        """The launcher needs a remote command no more: it sees the end of its stdin, and has some seconds."""
        child = self._commands.get(message.command)
        if child is not None:
            child.input.clear()
            for fd in list(child.open):
                self._close(child, fd)
            child.kill_at = time.monotonic() + _CLOSING
            self._end_if_over(child)

    # ------------------------------------------------------------------ their streams

    def _watch(self, child: _Child) -> None:
        """Wait for those streams of a child that have something to do."""
        events = {child.stderr: selectors.EVENT_READ}
        if child.credit > 0:
            events[child.stdout] = selectors.EVENT_READ
        if child.input:
            events[child.stdin] = selectors.EVENT_WRITE
        for fd in child.open:
            if fd in events and fd not in child.watched:
                self._selector.register(fd, events[fd], partial(self._ready, child, fd))
                child.watched[fd] = events[fd]
            elif fd not in events and child.watched.pop(fd, 0):
                self._selector.unregister(fd)

    def _ready(self, child: _Child, fd: int) -> None:
        if fd == child.stdin:
            self._write(child)
            return
        try:
            data = os.read(fd, min(_READ, child.credit) if fd == child.stdout else _READ)
        except BlockingIOError:
            return
        if fd == child.stderr:
            child.errors = (child.errors + data)[-_LIMIT:]
        else:
            child.credit -= len(data)
            child.answer += data if child.done else b""
            if not child.done:
                self._connection.send(CommandOutput(child.number, data))
        if not data:
            self._close(child, fd)
        self._watch(child)
        self._end_if_over(child)

    def _write(self, child: _Child) -> None:
        taken, fd = 0, child.stdin
        try:
            while child.input and fd in child.open:
                count = os.write(fd, child.input[0])
                taken += count
                child.input[0] = child.input[0][count:]
                if not child.input[0]:
                    child.input.pop(0)
        except BlockingIOError:
            pass
        except OSError:  # it reads no more
            taken += sum(map(len, child.input))
            child.input.clear()
        if taken:
            self._connection.send(CommandCredit(child.number, taken))
        if child.input_ended and not child.input and fd in child.open:
            self._close(child, fd)
        self._watch(child)

    def _close(self, child: _Child, fd: int) -> None:
        if child.watched.pop(fd, 0):
            self._selector.unregister(fd)
        child.open.discard(fd)
        os.close(fd)

    # ------------------------------------------------------------------ their end

    def reaped(self, pid: int, status: int) -> None:
        """A child of the agent has ended; the pid may belong to another process from now on."""
        child = self._children.pop(pid, None)
        if child is None:
            return
        child.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        if child.done and child.stdout in child.open:
            self._ready(child, child.stdout)
        self._end_if_over(child)

    def _end_if_over(self, child: _Child) -> None:
        """Report the end of a child; a remote command's when its output has ended, too."""
        if child.status is None or (not child.done and {child.stdout, child.stderr} & child.open):
            return
        for fd in list(child.open):
            self._close(child, fd)
        if child.done:
            done, child.done = child.done, lambda answer: None
            done(child.answer)
        elif self._commands.pop(child.number, None) is not None:
            stderr = child.errors.decode("utf-8", "replace")
            self._connection.send(CommandEnded(child.number, child.status, stderr))

    def next_due(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        return min((c.kill_at for c in self._children.values() if c.kill_at is not None), default=None)

    def on_time(self, now: float) -> None:
        """Kill those whose time is up."""
        for child in self._children.values():
            if child.kill_at is not None and child.kill_at <= now:
                child.kill_at = None
                os.kill(child.pid, signal.SIGKILL)  # not reaped: the pid is still that child's


# ---------------------------------------------------------------------- command lines


def execute(arguments: Mapping[str, Any]) -> int:
    """A remote command: run a command line with our stdout and stderr.

    The end of our stdin ends it, and all it started, at once.

    Args:
        arguments: ``argv``; ``env``, variables in addition to ours; ``seconds``, the time limit.

    Returns:
        Its exit status; 128+n for signal n.
    """
    import subprocess

    env = {**os.environ, **arguments["env"]}
    try:
        process = subprocess.Popen(
            arguments["argv"], stdin=subprocess.DEVNULL, env=env, cwd="/", start_new_session=True
        )
    except OSError as error:
        sys.stderr.write(f"{arguments['argv'][0]}: {error.strerror}; PATH is {env.get('PATH', '')}\n")
        return NOT_FOUND
    until = time.monotonic() + float(arguments["seconds"])
    while process.poll() is None:
        ended = bool(select.select([0], [], [], _LOOK)[0]) and not os.read(0, 4096)
        if ended or time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return LATE
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def become(arguments: Mapping[str, Any]) -> int:
    """A remote command: become a command line, with our stdin, stdout and stderr.

    Args:
        arguments: ``argv`` and ``env`` as for `execute`.

    Returns:
        Only where there is no such command: its exit status.
    """
    env = {**os.environ, **arguments["env"]}
    os.chdir("/")
    try:
        os.execvpe(arguments["argv"][0], arguments["argv"], env)
    except OSError as error:
        sys.stderr.write(f"{arguments['argv'][0]}: {error.strerror}; PATH is {env.get('PATH', '')}\n")
    return NOT_FOUND
