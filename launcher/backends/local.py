"""This machine: the agent is a fork of the launcher, at the other end of a pair of pipes.

A fork has most of what it needs imported already: the agent is up in 10 ms. That is for a process with a
single thread (a fork takes no other along) and little memory, as ``launch`` is; the Python API, whose program
is neither, starts ``launch`` as a process of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket  # noqa: F401 - launcher and agent need it: imported once
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from launcher.agent import processes, sweep
from launcher.common.errors import TransportError
from launcher.common.events import AgentCommand
from launcher.common.protocol import PIPED_RECORDS, Decoder, Message, MessageChannel, Refused
from launcher.common.text import last_line, signal_name, why_not_started
from launcher.event_loop import EventLoop

_READ_BYTES = 256 * 1024
_STDERR_LIMIT_BYTES = 64 * 1024


class PipeLink:
    """The launcher's end of the pipes to an agent; see `launcher.backends.connections.AgentLink`.

    Args:
        host: name of the agent's host.
        reading, writing: our ends.
    """

    same_clock = True
    stays = all_gone = preempted = False
    is_broken = False

    def __init__(self, host: str, reading: int, writing: int) -> None:
        self.tasks: set[str] = set()
        self._channel = MessageChannel(lambda: Decoder(True, host, self.tasks, only=PIPED_RECORDS))
        self._reading, self._input = reading, writing
        self._loop: EventLoop | None = None
        #: Why the agent ended, if it sent the reason.
        self._refusal = ""
        for fd in (reading, writing):
            os.set_blocking(fd, False)

    def watch(self, loop: EventLoop, ready: Callable[[], object]) -> None:
        """See `AgentLink.watch`."""
        self._loop = loop
        loop.watch(self._reading, ready)
        self._flush()

    def unwatch(self) -> None:
        """See `AgentLink.unwatch`."""
        if self._loop is not None:
            self._loop.watch(self._reading)
            self._loop.watch(self._input)
            self._loop = None

    def receive(self) -> Sequence[Message] | None:
        """See `AgentLink.receive`."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return ()
        if not data:
            return None
        messages = []
        for message in self._channel.receive(data):
            if isinstance(message, Refused):
                self._refusal = message.why
            else:
                messages.append(message)
        return messages

    def send(self, command: AgentCommand) -> None:
        """See `AgentLink.send`."""
        self._channel.send(command)
        self._flush()

    def _flush(self) -> None:
        """Write as much as the pipe takes now."""
        if self._input < 0:
            return
        try:
            full = not self._channel.write(self._input, 0.0)
        except OSError:  # the agent has ended: reading reports it
            self.shut_down()
            return
        if self._loop is not None:
            self._loop.watch(self._input, write=self._flush if full else None)

    def shut_down(self) -> None:
        """See `AgentLink.shut_down`."""
        if self._input >= 0:
            if self._loop is not None:
                self._loop.watch(self._input)
            os.close(self._input)
            self._input = -1


class ForkedAgentLink(PipeLink):
    """The same, to an agent that is a child of this process.

    Args:
        host: name of the agent's host.
        pid: the watchdog.
        agent_id: of the agent, for process tags.
        reading, writing, stderr: our ends of its stdout, stdin and stderr.
    """

    def __init__(self, host: str, pid: int, agent_id: int, reading: int, writing: int, stderr: int) -> None:
        super().__init__(host, reading, writing)
        self.pid = pid
        self.agent_id = agent_id
        self._stderr = stderr
        os.set_blocking(stderr, False)
        self._printed = b""
        self._status: int | None = None

    def wait(self, seconds: float) -> str | None:
        """See `AgentLink.wait`; kills what is left if agent and watchdog were both killed."""
        deadline = time.monotonic() + seconds
        while not self._is_over():
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # Only watchdog and agent hold the other end of this pipe: its end wakes us. What remains then is
            # the moment until the kernel has made a zombie of the watchdog.
            if self._stderr < 0:
                time.sleep(min(left, 0.0002))
                continue
            poll = select.poll()
            poll.register(self._stderr, select.POLLIN)
            poll.poll(1000 * min(left, 0.05))
        killed = os.WIFSIGNALED(self._status or 0)
        if killed and sweep.kill_leftovers(self.agent_id, deadline - time.monotonic()):
            return None
        return self._describe(self._status or 0)

    def _describe(self, status: int) -> str:
        printed = self._printed.decode("utf-8", "replace").strip()
        if status == 0 and not printed:
            return ""
        if os.WIFSIGNALED(status):
            return f"its watchdog was killed by {signal_name(os.WTERMSIG(status))}"
        if not printed and self._refusal:
            return self._refusal
        last = last_line(printed)
        return f"the agent exited: {last}" if last else "the agent was killed"

    def kill(self, seconds: float) -> str | None:
        """See `AgentLink.kill`; watchdog and agent are one process group, and tasks carry the tag."""
        if not self._is_over():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:  # it ended in this moment
                pass
        return self.wait(seconds)

    def _is_over(self) -> bool:
        """Whether both watchdog (our child) and agent (not ours to reap) are gone: both hold this stderr."""
        while self._stderr >= 0:
            try:
                data = os.read(self._stderr, _STDERR_LIMIT_BYTES)
            except BlockingIOError:
                return False
            self._printed = (self._printed + data)[-_STDERR_LIMIT_BYTES:]
            if not data:
                os.close(self._stderr)
                self._stderr = -1
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def close(self) -> None:
        """See `AgentLink.close`."""
        self.shut_down()
        for fd in (self._reading, self._stderr):
            if fd >= 0:
                os.close(fd)
        self._reading = self._stderr = -1


def fork_agent(host: str) -> ForkedAgentLink:
    """Start the agent of this machine as a fork of this process.

    Args:
        host: its name.

    Raises:
        TransportError: that is not possible.
    """
    agent_id = processes.new_agent_id()
    fds: list[int] = []
    try:
        for _ in range(3):
            fds.extend(os.pipe())
        commands_out, commands_in, events_out, events_in, stderr_out, stderr_in = fds
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise RuntimeError(f"a process of {threads} threads cannot be forked into an agent")
        pid = os.fork()
    except (OSError, RuntimeError) as error:
        for fd in fds:
            os.close(fd)
        why = why_not_started(error) if isinstance(error, OSError) else str(error)
        raise TransportError(f"{host}: the agent cannot be started: {why}") from error
    if pid == 0:
        processes.become_function(partial(_run_agent, host, agent_id), (commands_out, events_in, stderr_in))
    for fd in (commands_out, events_in, stderr_in):
        os.close(fd)
    return ForkedAgentLink(host, pid, agent_id, events_out, commands_in, stderr_out)


def _run_agent(host: str, agent_id: int) -> NoReturn:
    from launcher.agent import main  # noqa: PLC0415 - in the agent, while the launcher imports its own modules

    main.run({"host": host, "agent": agent_id})
