"""Functions of ours that the agent runs in children: remote commands of the launcher, and its own questions.

A child is a fork of the agent that calls a function, with a pipe for each standard stream. The protocol
carries the bytes of the stdin and stdout of a remote command, at most `CREDIT_BYTES` in each direction that
the receiver has not accepted yet. The agent calls `Children`, which must never block.
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
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

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

# Of a longer stderr, only the end is kept.
_STDERR_LIMIT_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
# A remote command may run so long after it was closed.
_CLOSE_TIMEOUT_SECONDS = 5.0
# Shells and ``timeout`` use the same exit statuses.
TIMED_OUT_STATUS = 124
NOT_FOUND_STATUS = 127
_NO_PROCESS_STATUS = 125
_POLL_SECONDS = 0.05


#: Called in a child. Its result is the exit status.
ChildFunction = Callable[[], Any]
#: Called with bytes that a child has printed.
OnOutput = Callable[[bytes], None]
OnEnd = Callable[[], None]
OnPid = Callable[[int], None]


class _Child:
    """A child that was started, and our non-blocking ends of its standard streams. `Children` acts on it.

    Args:
        function: Called in the child. Its result is the exit status.
        on_output: Called with all that the child prints, in pieces, and with an empty piece at the end.
        on_end: Called when the child and its output have ended, or when its time is up.

    Raises:
        OSError: No process or descriptor is left.
    """

    def __init__(self, function: ChildFunction, *, on_output: OnOutput, on_end: OnEnd) -> None:
        """Fork a child that calls a function, with a pipe for each of its standard streams."""
        self.on_output, self.on_end = on_output, on_end
        #: The launcher's number of the remote command, or 0 if the child answers a question of the agent.
        self.number = 0
        # If a pipe or the fork fails, those that exist are closed.
        fds: List[int] = []
        try:
            for _ in range(3):
                fds += os.pipe()
            self.pid = os.fork()
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        # A pipe is its reading end and its writing end. The plain names are the ends of the child.
        stdin, self.stdin, self.stdout, stdout, self.stderr, stderr = fds
        if self.pid == 0:
            # This does not return.
            become_function(function, (stdin, stdout, stderr))
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        #: The descriptors of the streams that are open.
        self.open = {self.stdin, self.stdout, self.stderr}
        for fd in self.open:
            os.set_blocking(fd, False)
        #: The bytes for its stdin that were received from the launcher and not written yet.
        self.input = bytearray()
        #: Whether no more bytes for its stdin will arrive.
        self.has_input_ended = False
        #: The last bytes of its stderr, which the launcher gets when it has ended.
        self.stderr_end = b""
        #: How many bytes of its stdout may be read before the launcher accepts more.
        self.credit = CREDIT_BYTES
        #: The exit status, or the negative number of the signal that killed it. It is None until it is
        #: reaped.
        self.status: Optional[int] = None
        #: When to kill it (monotonic), or None if it has no time limit.
        self.kill_at: Optional[float] = None


class Children:
    """The children of an agent that run functions of ours. They do not belong to tasks.

    Args:
        selector: Wakes the agent when a stream of a child can be read or written.
        connection: The connection to the launcher.
        on_started: Called with the pid of each child that was started.
    """

    def __init__(
        self, selector: selectors.BaseSelector, connection: LauncherConnection, *, on_started: OnPid
    ) -> None:
        """Manage the children that run functions of ours, of which there are none at first."""
        self._selector = selector
        self._connection = connection
        self._on_started = on_started
        #: All children that have not ended.
        self._children: List[_Child] = []
        #: The children that run a remote command, by the number that the launcher gave the command. One that
        #: the launcher has closed is left out.
        self._commands: Dict[int, _Child] = {}

    def ask(self, function: ChildFunction, timeout_seconds: float, *, on_answer: OnOutput) -> None:
        """Call a function in a child, and pass on what it prints.

        Args:
            function: Called in the child. It prints an answer.
            timeout_seconds: How long the child may run. Then it is killed.
            on_answer: Called with all that the child has printed, when it has ended or was killed.

        Raises:
            OSError: No process or descriptor is left.
        """
        # The answer is passed on as a whole.
        pieces: List[bytes] = []
        child = _Child(function, on_output=pieces.append, on_end=lambda: on_answer(b"".join(pieces)))
        child.kill_at = time.monotonic() + timeout_seconds
        self._follow(child)
        # The function needs no input.
        self._close_stream(child, child.stdin)

    def _follow(self, child: _Child) -> None:
        """Watch a child that was started, until it has ended."""
        self._on_started(child.pid)
        self._children.append(child)
        self._watch(child)

    # ------------------------------------------------------------------ remote commands

    def run(self, message: RunCommand) -> None:
        """Start a remote command, or tell the launcher why that is not possible."""
        number = message.command
        try:
            child = _Child(
                partial(_call_entry, message),
                on_output=partial(self._send_output, number),
                on_end=partial(self._report_end, number),
            )
        except OSError as error:
            why = f"no process for it: {why_not_started(error)}"
            self._connection.send(CommandEnded(number, _NO_PROCESS_STATUS, why))
        else:
            # The messages about its stdin contain the number.
            child.number = number
            self._commands[number] = child
            self._follow(child)

    def handle_input(self, message: CommandData) -> None:
        """Pass on bytes of the launcher for the stdin of a remote command. No bytes mean its end."""
        child = self._commands.get(message.command)
        if child is not None and not child.has_input_ended:
            child.input += message.data
            child.has_input_ended = not message.data
            self._write(child)

    def handle_credit(self, message: CommandCredit) -> None:
        """Note that the launcher has accepted bytes of a remote command, so more may be sent."""
        # It may have ended, or was closed.
        child = self._commands.get(message.command)
        if child is not None:
            child.credit += message.size
            self._watch(child)

    def close(self, message: CloseCommand) -> None:
        """Close the streams of a remote command that is no longer needed, and kill it some seconds later."""
        child = self._commands.pop(message.command, None)
        if child is not None:
            for fd in list(child.open):
                self._close_stream(child, fd)
            child.kill_at = time.monotonic() + _CLOSE_TIMEOUT_SECONDS
            # The child may have been reaped already, and only its output was still open.
            self._end_if_over(child)

    def _send_output(self, number: int, data: bytes) -> None:
        """Send bytes from the stdout of a remote command to the launcher. No bytes mean its end."""
        self._connection.send(CommandData(number, data))

    def _report_end(self, number: int) -> None:
        """Tell the launcher how a remote command has ended, unless the launcher has closed it."""
        child = self._commands.pop(number, None)
        # The child was reaped, so its status is known. There is none if the launcher has closed the command.
        if child is not None:
            errors = child.stderr_end.decode("utf-8", "replace")
            self._connection.send(CommandEnded(number, child.status or 0, errors))

    # ------------------------------------------------------------------ their streams

    def _watch(self, child: _Child) -> None:
        """Let the selector watch the streams of a child that may be read or written now, and no others.

        - stderr always, because only its end is kept.
        - stdout while the launcher accepts more of it.
        - stdin while bytes for it wait here.

        Args:
            child: The child. Its streams that are closed are not watched.
        """
        wanted = {child.stderr}
        # Its stdout stays in the pipe as long as the launcher accepts no more of it.
        if child.credit > 0:
            wanted.add(child.stdout)
        if child.input:
            wanted.add(child.stdin)
        watched = self._selector.get_map()
        for fd in child.open:
            if fd in wanted and fd not in watched:
                if fd == child.stdin:
                    self._selector.register(fd, selectors.EVENT_WRITE, partial(self._write, child))
                else:
                    self._selector.register(fd, selectors.EVENT_READ, partial(self._read, child, fd))
            elif fd not in wanted and fd in watched:
                self._selector.unregister(fd)

    def _read(self, child: _Child, fd: int) -> None:
        """Read from a stream of a child: pass on its stdout, and keep the end of its stderr.

        Args:
            child: The child.
            fd: The descriptor of its stdout or stderr.
        """
        # Of its stdout, only as many bytes may be read as the launcher accepts.
        size = min(_READ_BYTES, child.credit) if fd == child.stdout else _READ_BYTES
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            return
        if fd == child.stderr:
            child.stderr_end = (child.stderr_end + data)[-_STDERR_LIMIT_BYTES:]
        else:
            child.credit -= len(data)
            child.on_output(data)
        if not data:
            self._close_stream(child, fd)
        self._watch(child)
        self._end_if_over(child)

    def _write(self, child: _Child) -> None:
        """Write as much to the stdin of a child as it accepts, and let the launcher send as much again.

        So at most a fixed number of bytes waits here. After the last byte, the stdin of the child is closed.

        Args:
            child: The child.
        """
        written = 0
        try:
            while child.input and child.stdin in child.open:
                count = os.write(child.stdin, child.input)
                del child.input[:count]
                written += count
        except BlockingIOError:
            pass
        except OSError:
            # The child has closed its stdin. What it does not read counts as written.
            written += len(child.input)
            child.input.clear()
        # A child that answers a question of the agent gets no input, so this is a remote command.
        if written:
            self._connection.send(CommandCredit(child.number, written))
        if child.has_input_ended and not child.input and child.stdin in child.open:
            self._close_stream(child, child.stdin)
        # Whether its stdin is to be watched depends on what is left to write.
        self._watch(child)

    def _close_stream(self, child: _Child, fd: int) -> None:
        """Close our end of a stream of a child, and no longer watch it."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        child.open.discard(fd)
        os.close(fd)

    # ------------------------------------------------------------------ their end

    def on_reaped(self, pid: int, status: int) -> None:
        """Note that a child of the agent was reaped, which need not be one of these children.

        From now on the pid may belong to another process.

        Args:
            pid: The pid of the child.
            status: Its wait status.
        """
        for child in self._children:
            if child.pid == pid and child.status is None:
                # It may have left output in its pipes, and then it ends later.
                child.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                self._end_if_over(child)
                return

    def _end_if_over(self, child: _Child) -> None:
        """Report the end of a child if it was reaped and has closed its output.

        A child whose time is up is not waited for: other processes may keep its output open.
        """
        is_late = child.kill_at is not None and child.kill_at <= time.monotonic()
        has_closed_output = not {child.stdout, child.stderr} & child.open
        if child.status is not None and (is_late or has_closed_output):
            for fd in list(child.open):
                self._close_stream(child, fd)
            self._children.remove(child)
            child.on_end()

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it never is."""
        return min((child.kill_at for child in self._children if child.kill_at is not None), default=None)

    def on_time(self, now: float) -> None:
        """Kill the children whose time is up.

        If such a child has ended, but other processes keep its output open, no more output is waited for.

        Args:
            now: The time (monotonic).
        """
        # `_end_if_over` removes children from the list of all.
        late = [child for child in self._children if child.kill_at is not None and child.kill_at <= now]
        for child in late:
            if child.status is None:
                # The child was not reaped, so no other process can have its pid.
                os.kill(child.pid, signal.SIGKILL)
                # After this time, `_end_if_over` no longer waits for the end of its output.
                child.kill_at = now + _CLOSE_TIMEOUT_SECONDS
            self._end_if_over(child)


def _call_entry(message: RunCommand) -> Any:
    """Import the module of a remote command, and call its function with its arguments, in the child.

    Args:
        message: The command of the launcher. Its ``entry`` has the form ``MODULE:FUNCTION``.

    Returns:
        The result of the function, which is the exit status.
    """
    module, _, function = message.entry.partition(":")
    return getattr(importlib.import_module(module), function)(message.arguments)


# ---------------------------------------------------------------------- command lines


def execute(arguments: Mapping[str, Any]) -> int:
    """Run a command line with our stdout and stderr, for a limited time. This is a remote command.

    When our stdin is closed, the command is killed at once, together with its process group.

    Args:
        arguments: The command line ``argv``, variables ``env`` in addition to ours, and the time limit
            ``seconds``.

    Returns:
        The exit status of the command, or 128+n if signal n has killed it. 124 stands for a command that was
        killed here, and 127 for one that cannot be run.
    """
    import subprocess  # noqa: PLC0415 - few agents run programs

    env = {**os.environ, **arguments["env"]}
    try:
        process = subprocess.Popen(
            arguments["argv"], stdin=subprocess.DEVNULL, env=env, cwd="/", start_new_session=True
        )
    except OSError as error:
        return _not_found(error, arguments["argv"], env)
    until = time.monotonic() + float(arguments["seconds"])
    while process.poll() is None:
        can_read, _, _ = select.select([0], [], [], _POLL_SECONDS)
        # The launcher closes our stdin when it no longer wants the command. Other bytes are ignored.
        is_stdin_closed = bool(can_read) and not os.read(0, 4096)
        if is_stdin_closed or time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return TIMED_OUT_STATUS
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def become(arguments: Mapping[str, Any]) -> int:
    """Replace this process by a command line, with our stdin, stdout and stderr. This is a remote command.

    Args:
        arguments: The command line ``argv``, and variables ``env`` in addition to ours.

    Returns:
        127 if the command cannot be run. Otherwise this does not return.
    """
    env = {**os.environ, **arguments["env"]}
    os.chdir("/")
    try:
        os.execvpe(arguments["argv"][0], arguments["argv"], env)
    except OSError as error:
        return _not_found(error, arguments["argv"], env)


def _not_found(error: OSError, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Print why a command cannot be run to stderr, and return the exit status for that.

    Args:
        error: The error of the attempt to run it.
        argv: Its command line.
        env: Its environment, whose PATH is printed, too, because it may lack the folder of the command.
    """
    sys.stderr.write(f"{argv[0]}: {why_not_started(error)}; PATH is {env.get('PATH', '')}\n")
    return NOT_FOUND_STATUS
