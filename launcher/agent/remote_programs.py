"""Programs of ours that the agent runs in children: remote commands of the launcher, and its own questions.

A child is a fork of the agent that calls a function with a pipe for each standard stream. A remote command
has the bytes of its stdin and stdout carried by the protocol, within a window
(`launcher.common.protocol.CREDIT_BYTES`) each way.
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
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from launcher.agent.connection import LauncherConnection
from launcher.agent.processes import become_function
from launcher.common.protocol import (
    CREDIT_BYTES,
    CloseCommand,
    CommandCredit,
    CommandData,
    CommandEnded,
    RunCommand,
)
from launcher.common.text import why_not_started

#: Bytes kept of the stderr of a child.
_STDERR_LIMIT_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
#: Seconds for a remote command to end after it was closed.
_CLOSE_TIMEOUT_SECONDS = 5.0
#: Exit status of a command that took too long, and of a missing one, as shells and ``timeout`` have it.
TIMED_OUT_STATUS = 124
NOT_FOUND_STATUS = 127
#: Seconds between two looks whether a command line has ended.
_POLL_SECONDS = 0.05


class _Child:
    """A running child, and our non-blocking ends of its standard streams.

    Args:
        function: called in the child; its result is the exit status.
        output: gets what the child prints; an empty piece is the end.
        ended: called when the child and its output have ended, or its time is up.

    Raises:
        OSError: no process or descriptor is left.
    """

    def __init__(
        self, function: Callable[[], Any], output: Callable[[bytes], None], ended: Callable[[], None]
    ) -> None:
        self.output, self.ended = output, ended
        #: The number of a remote command.
        self.number = 0
        fds: List[int] = []
        try:
            for _ in range(3):
                fds += os.pipe()
            self.pid = os.fork()
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        stdin, self.stdin, self.stdout, stdout, self.stderr, stderr = fds
        if self.pid == 0:
            become_function(function, (stdin, stdout, stderr))
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        #: Streams that are open, and those that the selector watches.
        self.open = {self.stdin, self.stdout, self.stderr}
        self.watched: Set[int] = set()
        for fd in self.open:
            os.set_blocking(fd, False)
        self.input = bytearray()
        self.input_ended = False
        self.errors = b""
        #: Bytes of its output that may be read now.
        self.credit = CREDIT_BYTES
        #: Exit status; negative: the signal that killed it; ``None``: it was not reaped.
        self.status: Optional[int] = None
        #: When to kill it (monotonic).
        self.kill_at: Optional[float] = None


class Children:
    """The children of an agent that are not tasks.

    Args:
        selector: wakes the agent.
        connection: to the launcher.
        ignore: called with the pid of each: it belongs to no task.
    """

    def __init__(
        self, selector: selectors.BaseSelector, connection: LauncherConnection, ignore: Callable[[int], None]
    ) -> None:
        self._selector = selector
        self._connection = connection
        self._ignore = ignore
        self._children: List[_Child] = []
        self._commands: Dict[int, _Child] = {}

    def _started(self, child: _Child) -> _Child:
        self._ignore(child.pid)
        self._children.append(child)
        self._watch(child)
        return child

    def ask(self, function: Callable[[], Any], seconds: float, done: Callable[[bytes], None]) -> None:
        """Call a function in a child; ``done`` gets what it printed when it ends, or is killed in so many
        seconds.

        Raises:
            OSError: no process or descriptor is left.
        """
        answer: List[bytes] = []
        child = self._started(_Child(function, answer.append, lambda: done(b"".join(answer))))
        child.kill_at = time.monotonic() + seconds
        self._close(child, child.stdin)

    # ------------------------------------------------------------------ remote commands

    def run(self, message: RunCommand) -> None:
        """Start a remote command."""
        number, send = message.command, self._connection.send
        module, _, function = message.entry.partition(":")

        def call() -> Any:
            return getattr(importlib.import_module(module), function)(message.arguments)

        def ended() -> None:
            if self._commands.pop(number, None) is not None:
                send(CommandEnded(number, child.status or 0, child.errors.decode("utf-8", "replace")))

        try:
            child = _Child(call, lambda data: send(CommandData(number, data)), ended)
        except OSError as error:
            send(CommandEnded(number, 125, f"no process for it: {why_not_started(error)}"))
        else:
            child.number = number
            self._commands[number] = self._started(child)

    def handle_input(self, message: CommandData) -> None:
        """Bytes for the stdin of a remote command, or its end."""
        child = self._commands.get(message.command)
        if child is not None and not child.input_ended:
            child.input += message.data
            child.input_ended = not message.data
            self._write(child)

    def handle_credit(self, message: CommandCredit) -> None:
        """The launcher took bytes of a remote command."""
        child = self._commands.get(message.command)
        if child is not None:
            child.credit += message.size
            self._watch(child)

    def close(self, message: CloseCommand) -> None:
        """The launcher needs a remote command no more: close its stdin, and kill it some seconds later."""
        child = self._commands.pop(message.command, None)
        if child is not None:
            for fd in list(child.open):
                self._close(child, fd)
            child.kill_at = time.monotonic() + _CLOSE_TIMEOUT_SECONDS
            self._end_if_over(child)

    # ------------------------------------------------------------------ their streams

    def _watch(self, child: _Child) -> None:
        """Watch those streams of a child that can be read or written."""
        due = {child.stderr, child.stdout if child.credit > 0 else -1, child.stdin if child.input else -1}
        for fd in child.open:
            if fd in due and fd not in child.watched:
                if fd == child.stdin:
                    self._selector.register(fd, selectors.EVENT_WRITE, partial(self._write, child))
                else:
                    self._selector.register(fd, selectors.EVENT_READ, partial(self._read, child, fd))
                child.watched.add(fd)
            elif fd not in due and fd in child.watched:
                child.watched.remove(fd)
                self._selector.unregister(fd)

    def _read(self, child: _Child, fd: int) -> None:
        try:
            data = os.read(fd, min(_READ_BYTES, child.credit) if fd == child.stdout else _READ_BYTES)
        except BlockingIOError:
            return
        if fd == child.stderr:
            child.errors = (child.errors + data)[-_STDERR_LIMIT_BYTES:]
        else:
            child.credit -= len(data)
            child.output(data)
        if not data:
            self._close(child, fd)
        self._watch(child)
        self._end_if_over(child)

    def _write(self, child: _Child) -> None:
        taken = 0
        try:
            while child.input and child.stdin in child.open:
                count = os.write(child.stdin, child.input)
                del child.input[:count]
                taken += count
        except BlockingIOError:
            pass
        except OSError:  # it reads no more
            taken += len(child.input)
            child.input.clear()
        if taken:
            self._connection.send(CommandCredit(child.number, taken))
        if child.input_ended and not child.input and child.stdin in child.open:
            self._close(child, child.stdin)
        self._watch(child)

    def _close(self, child: _Child, fd: int) -> None:
        if fd in child.watched:
            child.watched.remove(fd)
            self._selector.unregister(fd)
        child.open.discard(fd)
        os.close(fd)

    # ------------------------------------------------------------------ their end

    def reaped(self, pid: int, status: int) -> None:
        """A child of the agent was reaped; the pid may belong to another process from now on."""
        for child in self._children:
            if child.pid == pid and child.status is None:
                child.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                self._end_if_over(child)
                return

    def _end_if_over(self, child: _Child) -> None:
        late = child.kill_at is not None and child.kill_at <= time.monotonic()
        if child.status is not None and (late or not {child.stdout, child.stderr} & child.open):
            for fd in list(child.open):
                self._close(child, fd)
            self._children.remove(child)
            child.ended()

    def next_due(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        return min((c.kill_at for c in self._children if c.kill_at is not None), default=None)

    def on_time(self, now: float) -> None:
        """Kill children that are past their deadline; close the output of ended ones that others hold."""
        for child in [c for c in self._children if c.kill_at is not None and c.kill_at <= now]:
            if child.status is None:
                os.kill(child.pid, signal.SIGKILL)  # not reaped: the pid is still that child's
                child.kill_at = now + _CLOSE_TIMEOUT_SECONDS
            self._end_if_over(child)


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
        return _not_found(error, arguments["argv"], env)
    until = time.monotonic() + float(arguments["seconds"])
    while process.poll() is None:
        ended = bool(select.select([0], [], [], _POLL_SECONDS)[0]) and not os.read(0, 4096)
        if ended or time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return TIMED_OUT_STATUS
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def become(arguments: Mapping[str, Any]) -> int:
    """A remote command: become a command line, with our stdin, stdout and stderr.

    Args:
        arguments: ``argv`` and ``env`` as for `execute`.

    Returns:
        The exit status if the command does not exist; else it does not return.
    """
    env = {**os.environ, **arguments["env"]}
    os.chdir("/")
    try:
        os.execvpe(arguments["argv"][0], arguments["argv"], env)
    except OSError as error:
        return _not_found(error, arguments["argv"], env)


def _not_found(error: OSError, argv: Sequence[str], env: Mapping[str, str]) -> int:
    sys.stderr.write(f"{argv[0]}: {why_not_started(error)}; PATH is {env.get('PATH', '')}\n")
    return NOT_FOUND_STATUS
