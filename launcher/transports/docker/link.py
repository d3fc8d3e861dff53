"""Links to the agents in containers.

::

    here       orchestrator ══ pipe ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...
    elsewhere  orchestrator ══ link ══ remote command ══ docker run -i ══ agent (main process) ──> task, ...
                         after a break: docker exec -i ══ pump ═════╝

Here end-of-file on the container's stdin ends the agent, and with it the container. Elsewhere the first
connection to the agent is the stdin and stdout of its ``docker run``, and the agent listens: when that
connection breaks, `launcher.agent.main.connect` in the container connects to it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

from launcher.errors import TransportError
from launcher.protocol import Refused, encode
from launcher.text import byte_size, listed, printable, signal_name
from launcher.transports import bootstrap
from launcher.transports.base import RemoteCommand
from launcher.transports.docker.container import Container
from launcher.transports.docker.engine import LATE, Engine, explain
from launcher.transports.local import PipeLink

#: Seconds for a container to end by itself, and for the exit status of a command that has closed its output.
END, _STATUS = 10.0, 5.0
#: Seconds for all containers to start; until the user sees which are late, and between two such lines.
_START, _FIRST, _NEXT = 300.0, 2.0, 10.0
#: Seconds until more of a program is sent: no event says that a container takes it now.
_LOOK = 0.05
#: What ``docker exec`` prints about a container that has ended.
_GONE = re.compile(r"no such container|is not running", re.I)
_NO_SUCH_PROGRAM = re.compile(r"executable file not found|stat .*: no such file or directory|no such file or")
_WRONG_FORMAT = re.compile(r"exec format error", re.IGNORECASE)
#: The error of ``docker run`` where the engine refused; and a line as the command logs it.
_REFUSED = re.compile(r"^docker: (?:Error response from daemon: )?(.*?)\.?$", re.MULTILINE)
_LOGGED = re.compile(r'level=error msg="([^"]*)"')
#: Exit statuses of ``docker run`` where no container started: refused; not runnable; not found.
_REFUSAL, _NOT_STARTED = 125, (125, 126, 127)


class Starting(Protocol):
    """The pipe to a container whose agent may not be up yet."""

    def fileno(self) -> int:
        """For select: readable when `arrive` may do more."""

    def arrive(self) -> bool:
        """Send and receive what can be until the agent is up; whether it is. Does not block.

        Raises:
            TransportError: there will be no agent.
        """


def await_agents(pipes: Mapping[str, Starting], notice: Callable[[str], None]) -> dict[str, str]:
    """Wait until the agent of each host is up.

    Returns:
        Host -> why its agent is not.
    """
    waiting, failed = dict(pipes), {}
    until, remind = time.monotonic() + _START, time.monotonic() + _FIRST
    while waiting and time.monotonic() < until:
        poll = select.poll()
        for pipe in waiting.values():
            poll.register(pipe, select.POLLIN)
        poll.poll(_LOOK * 1000)
        for host, pipe in list(waiting.items()):
            try:
                if pipe.arrive():
                    del waiting[host]
            except TransportError as error:
                failed[host] = str(error)
                del waiting[host]
        if waiting and time.monotonic() > remind:
            notice(f"waiting for {listed(sorted(waiting))}: its engine to start the container")
            remind += _NEXT
    late = f"not started by the engine within {_START:.0f} s"
    return {**failed, **dict.fromkeys(waiting, late)}


class Arrival:
    """How the agent arrives in a container: what is sent to its Python, and the mark that comes back.

    Args:
        container: what it is.
        program: see `launcher.transports.bootstrap.program`.
        send, recv: of the pipe; see `RemoteCommand`.
        end: how the container ended, after the end of its output; empty: not known.
    """

    def __init__(
        self,
        container: Container,
        program: bytes,
        send: Callable[[bytes], int],
        recv: Callable[[int], bytes | None],
        end: Callable[[], str],
    ) -> None:
        self._container, self._unsent, self._output = container, program, b""
        self._send, self._recv, self._end = send, recv, end
        #: All that follows on stdout is the agent's.
        self.ready = False

    def advance(self) -> bool:
        """See `Starting.arrive`. Nothing is read that the agent itself writes."""
        while not self.ready:
            if self._unsent:
                self._unsent = self._unsent[self._send(self._unsent) :]
            data = self._recv(1)
            if data is None:
                return False
            if not data:
                raise TransportError(self._end() or "its container ended at once")
            self._output += data
            found = bootstrap.find_mark(self._output)
            if found is not None:
                self._check(found[0])
            elif len(self._output) > bootstrap.MAX_NOISE:
                python = self._container.python
                raise TransportError(f"its {python} printed too much before the agent started")
        return True

    def _check(self, mark: str) -> None:
        python, image = self._container.python, self._container.image
        self.ready = mark == bootstrap.READY
        if mark.startswith(bootstrap.TOO_OLD):
            raise TransportError(
                f"{python} of the image {image} is Python {mark[len(bootstrap.TOO_OLD) :].strip()}, which is "
                "too old: it must be 3.8 or later; --python names another Python of the image"
            )
        if not self.ready:
            raise TransportError(f"the image {image} answered {mark!r}, which this version does not know")


class ContainerLink(PipeLink):
    """The pipes to the agent in a container here: stdin and stdout of its ``docker run``.

    Args:
        container: what it is.
        name: its name at the engine.
        words: the arguments of ``docker`` that start it.
        engine: this machine's.
        program: see `launcher.transports.bootstrap.program`.

    Raises:
        OSError: the command can't be started.
    """

    #: The engine may be elsewhere.
    same_clock = False

    def __init__(
        self, container: Container, name: str, words: Sequence[str], engine: Engine, program: bytes
    ) -> None:
        self._container, self._name, self._engine = container, name, engine
        self._arrival = Arrival(container, program, self._write, self._read, lambda: self.wait(END) or "")
        self.arrive = self._arrival.advance
        #: How the container ended; ``None``: it has not.
        self._ended: str | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        stdin, writing = os.pipe()
        reading, stdout = os.pipe()
        super().__init__(container.host, reading, writing)
        try:
            self._process = subprocess.Popen(
                ["docker", *words], stdin=stdin, stdout=stdout, stderr=self._stderr, start_new_session=True
            )
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        finally:
            os.close(stdin)
            os.close(stdout)

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._input, data)
        except (BlockingIOError, BrokenPipeError):  # if it has ended, reading shows it
            return 0

    def _read(self, size: int) -> bytes | None:
        try:
            return os.read(self._reading, size)
        except BlockingIOError:
            return None

    def wait(self, seconds: float) -> str | None:
        """See `launcher.transports.base.Link.wait`."""
        if self._ended is None:
            try:
                code = self._process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                return None
            stderr = os.pread(self._stderr.fileno(), 1 << 16, 0).decode("utf-8", "replace")
            self._ended = end_fault(code, self._container, self._arrival.ready, stderr)
            if self._refusal and self._ended.startswith("the agent ended: "):
                self._ended = self._refusal
        return self._ended

    def kill(self, seconds: float) -> str | None:
        """See `launcher.transports.base.Link.kill`: nothing in a container outlives it."""
        result = self._engine.docker("rm", "--force", "--volumes", self._name, seconds=seconds)
        if result.code == LATE:
            self._end_command()
            fault = explain(result, seconds)
            return f"{fault}; its container may go on until it does: then `launch clean` removes it"
        return self.wait(END)

    def _end_command(self) -> None:
        """End ``docker run`` itself; the engine then closes the container's stdin, which ends the agent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait(END)

    def close(self) -> None:
        """See `launcher.transports.base.Link.close`."""
        self.hang_up()
        self._end_command()
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
            self._stderr.close()


class ContainerCommand:
    """A ``docker run`` or ``docker exec`` on a host, whose stdin and stdout are a connection to the agent.

    See `launcher.transports.base.RemoteCommand`.

    Args:
        command: it.
        container: what it runs in.
        program: see `launcher.transports.bootstrap.program`.
        is_run: it is ``docker run``: its end is that of the container.
    """

    def __init__(self, command: RemoteCommand, container: Container, program: bytes, is_run: bool) -> None:
        self._command, self._container, self._is_run = command, container, is_run
        self._arrival = Arrival(container, program, command.send, command.recv, self._end)
        self.arrive = self._arrival.advance
        self._refused = False
        self.fileno, self.wait, self.stderr = command.fileno, command.wait, command.stderr
        self.close = command.close

    def _end(self) -> str:
        """How the container ended; empty: all is well, or the command was killed and does not know."""
        code = self._command.wait(_STATUS)
        if code is None:
            return "" if self._arrival.ready else "its `docker` command was killed"
        return end_fault(code, self._container, self._arrival.ready, self._command.stderr())

    def recv(self, size: int) -> bytes | None:
        """See `RemoteCommand.recv`; at the end of the container the last message is why."""
        try:
            if not self.arrive():
                return None
        except TransportError:
            if self._is_run or not _GONE.search(self._command.stderr()):
                raise
            return self._refuse("its container ended while the connection was down")
        data = self._command.recv(size)
        if data == b"" and self._is_run and (why := self._end()):
            return self._refuse(why)
        return data

    def _refuse(self, why: str) -> bytes:
        """The message that the agent is gone, once."""
        self._refused, before = True, self._refused
        return b"" if before else b"".join(encode(Refused(why)))

    def send(self, data: bytes | memoryview) -> int:
        """See `RemoteCommand.send`."""
        return self._command.send(data) if self._arrival.ready else 0


# ---------------------------------------------------------------------- ends


def end_fault(code: int, container: Container, began: bool, stderr: str) -> str:
    """How a container ended, from its ``docker run``; empty if all is well.

    Args:
        code: exit status of the command; negative: killed by that signal.
        container: what it was.
        began: its agent was up.
        stderr: what the command and the container wrote there.
    """
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING: ")]
    last = printable(lines[-1]) if lines else ""
    if code < 0:
        return f"its `docker run` was killed by {signal_name(-code)}"
    if code in _NOT_STARTED:
        if began:
            logged = _LOGGED.search(last)
            return f"its Docker engine has gone: was it stopped? ({logged[1] if logged else last})"
        refused = _REFUSED.search(stderr)
        if refused:
            return _start_fault(printable(refused[1]), container)
        if code == _REFUSAL and lines:  # an option that the command itself refuses
            return printable(lines[0])
    if code == 0 and began and not lines:
        return ""
    if code - 128 in signal.valid_signals():
        limit = ""
        if container.memory is not None and code - 128 == signal.SIGKILL:
            limit = f" (its memory limit is {byte_size(container.memory, binary=True)})"
        return f"its container was killed by {signal_name(code - 128)}{limit}"
    if began:
        return f"the agent ended: {last or 'it was killed'}"
    if _WRONG_FORMAT.search(last):
        return _start_fault(last, container)
    text = f"{container.python} of the image {container.image} does not run the agent, and ended with {code}"
    return f"{text}: {last}" if last else text


def _start_fault(refusal: str, container: Container) -> str:
    """Why the engine refused to start a container, from its message."""
    if _WRONG_FORMAT.search(refusal):
        return (
            f"the image {container.image} is not for this kind of machine ({refusal}): "
            "`docker image inspect` shows its Architecture, `docker pull --platform` gets another"
        )
    if "bind source path does not exist" in refusal:
        path = refusal.rpartition("does not exist:")[2].strip()
        return f"there is no {path} on the engine's machine to mount"
    if "could not select device driver" in refusal:
        return "the engine can't give GPUs to containers: install the NVIDIA Container Toolkit there"
    if container.python in refusal and _NO_SUCH_PROGRAM.search(refusal):
        return (
            f"there is no {container.python} in the image {container.image}: it must have a Python of 3.8 or "
            "later; --python says where it is"
        )
    if container.python in refusal and "permission denied" in refusal:
        return f"{container.python} in the image {container.image} can't be run: permission denied"
    if "is already in use by container" in refusal:
        return f"a container of its name is there already: {refusal}"
    return refusal
