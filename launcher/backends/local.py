"""The agent of this machine: a fork of the launcher, at the other end of a pair of pipes.

A fork has already imported most of what an agent needs, so the agent runs after 10 ms. Only a process with a
single thread and little memory can fork like this, because a fork takes no other thread along. ``launch`` is
such a process. The Python API is not, so it starts ``launch`` as a process of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket  # noqa: F401 - launcher and agent need it, and the fork finds it imported
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from launcher.agent import processes, sweep
from launcher.common.errors import TransportError
from launcher.common.events import AgentCommand
from launcher.common.protocol import (
    PIPED_RECORDS,
    PROGRAM_RECORDS,
    Decoder,
    Message,
    MessageChannel,
    Refused,
)
from launcher.common.text import last_line, signal_name, why_not_started
from launcher.event_loop import EventLoop

if TYPE_CHECKING:  # Few launches on this machine run programs of ours.
    from launcher.backends.link_pipe import LinkPrograms
    from launcher.backends.programs import RemoteProgram

_READ_BYTES = 256 * 1024
_STDERR_LIMIT_BYTES = 64 * 1024


class ForkedAgentLink:
    """A link to an agent that is a child of this process, under a watchdog.

    It is a `launcher.backends.connections.AgentLink` over two pipes.

    Args:
        host: The name of the agent's host.
        pid: The process id of the watchdog, which leads the process group of the agent.
        agent_id: The id of the agent, by which its processes are tagged.
        reading: Our end of the agent's stdout.
        writing: Our end of the agent's stdin.
        stderr: Our end of the stderr that agent and watchdog share.
    """

    same_clock = True
    stays = all_gone = preempted = False
    is_broken = False

    def __init__(self, host: str, pid: int, agent_id: int, reading: int, writing: int, stderr: int) -> None:
        """Make the link to an agent that was forked. Our ends of its pipes never block from now on."""
        self.pid, self.agent_id = pid, agent_id
        #: The tasks of the host. Messages of its agent may name no others. The link's user fills the set.
        self.tasks: set[str] = set()
        records = (*PIPED_RECORDS, *PROGRAM_RECORDS)
        #: Encodes and decodes the messages on both pipes.
        self._channel = MessageChannel(
            lambda: Decoder(from_agent=True, host=host, tasks=self.tasks, only=records)
        )
        self._host = host
        #: The programs of ours that run over this link. None until there was one.
        self._programs: LinkPrograms | None = None
        #: Our ends of the three pipes. Each is -1 when it is closed.
        self._reading, self._writing, self._stderr = reading, writing, stderr
        #: The loop that watches the pipes. None before `watch`, and after `unwatch`.
        self._loop: EventLoop | None = None
        #: The reason that the agent sent for its end. Empty if it sent none.
        self._refusal = ""
        #: The last bytes that watchdog and agent wrote to stderr.
        self._stderr_output = b""
        #: The wait status of the watchdog. None until it has ended.
        self._status: int | None = None
        for fd in (reading, writing, stderr):
            os.set_blocking(fd, False)

    def watch(self, loop: EventLoop, ready: Callable[[], object]) -> None:
        """Let the loop call ``ready`` when messages arrive, and write what waits to be sent."""
        self._loop = loop
        loop.watch(self._reading, ready)
        self._flush()

    def unwatch(self) -> None:
        """Let the loop no longer watch the pipes. A second call does nothing."""
        if self._loop is not None:
            # Without callbacks `watch` stops the watching of a descriptor.
            self._loop.watch(self._reading)
            self._loop.watch(self._writing)
            self._loop = None

    def receive(self) -> Sequence[Message] | None:
        """Return the messages that have arrived, or None at the end of the pipe.

        A refusal of the agent is no such message: it is kept, and `wait` reports it.

        Raises:
            ProtocolError: The agent sent something that it may not send.
        """
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return ()
        if not data:
            if self._programs is not None:
                self._programs.lose("")
            return None
        messages = []
        for message in self._channel.receive(data):
            if isinstance(message, Refused):
                self._refusal = message.why
            elif isinstance(message, PROGRAM_RECORDS):
                if self._programs is not None:
                    self._programs.deliver(message)
            else:
                messages.append(message)
        return messages

    def send(self, command: AgentCommand) -> None:
        """Queue a command for the agent, and write as much as the pipe accepts now."""
        self._channel.send(command)
        self._flush()

    def run(self, entry: str, arguments: object) -> RemoteProgram:
        """Run a program of ours as a child of the agent, see `LinkPrograms.run`. Only the loop calls this."""
        if self._programs is None:
            from launcher.backends.link_pipe import LinkPrograms  # noqa: PLC0415 - imports subprocess

            self._programs = LinkPrograms(self._host, threading.RLock(), self.send)
        return self._programs.run(entry, arguments)

    def _flush(self) -> None:
        """Write as much as the pipe accepts now, and let the loop write the rest."""
        if self._writing < 0:  # The pipe of commands is closed.
            return
        try:
            # The present time, the last argument, matters only to connections that can break.
            is_full = not self._channel.write(self._writing, 0.0)
        except OSError:  # The agent has ended, which the next read reports.
            self.shut_down()
            return
        if self._loop is not None:
            # Without a callback the loop no longer watches the pipe.
            self._loop.watch(self._writing, write=self._flush if is_full else None)

    def shut_down(self) -> None:
        """Close the pipe of commands. The agent ends its tasks, and then itself, at the end of this pipe."""
        if self._writing >= 0:
            if self._loop is not None:
                self._loop.watch(self._writing)  # Without callbacks this stops the watching.
            os.close(self._writing)
            self._writing = -1

    def wait(self, seconds: float) -> str | None:
        """Wait until watchdog and agent are gone. If the watchdog was killed, kill the tasks in its place.

        Returns:
            How the agent ended, for messages. Empty if it ended as it should. None if it did not end in time.
        """
        deadline = time.monotonic() + seconds
        while not self._have_ended():
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return None
            # Only watchdog and agent hold the other end of the stderr pipe, so its end wakes this thread.
            # After that only a moment passes until the kernel has made a zombie of the watchdog.
            if self._stderr < 0:
                time.sleep(min(seconds_left, 0.0002))
                continue
            poll = select.poll()
            poll.register(self._stderr, select.POLLIN)
            poll.poll(1000 * min(seconds_left, 0.05))
        # A watchdog that was killed cannot have killed the tasks that the agent has left.
        was_killed = os.WIFSIGNALED(self._status or 0)
        if was_killed and sweep.kill_leftovers(self.agent_id, deadline - time.monotonic()):
            return None  # Some processes are left.
        return self._end_reason(self._status or 0)

    def _end_reason(self, status: int) -> str:
        """Return how the agent ended, for messages. Empty if it ended as it should.

        Args:
            status: The wait status of its watchdog, which exits with the agent.
        """
        printed = self._stderr_output.decode("utf-8", "replace").strip()
        if status == 0 and not printed:
            return ""
        if os.WIFSIGNALED(status):
            return f"its watchdog was killed by {signal_name(os.WTERMSIG(status))}"
        # What the agent printed tells more than the reason that it sent to us.
        if not printed and self._refusal:
            return self._refusal
        last_error = last_line(printed)
        return f"the agent exited: {last_error}" if last_error else "the agent was killed"

    def kill(self, seconds: float) -> str | None:
        """Kill watchdog and agent, which are one process group. Then `wait` kills the tasks that they leave.

        Returns:
            How the agent ended, for messages. None if processes are left after this many seconds.
        """
        if not self._have_ended():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:  # It has just ended.
                pass
        return self.wait(seconds)

    def _have_ended(self) -> bool:
        """Read what watchdog and agent have printed, and return whether both have ended.

        The agent is not our child, so its end shows only as the end of the stderr pipe, which both hold.
        """
        while self._stderr >= 0:
            try:
                data = os.read(self._stderr, _STDERR_LIMIT_BYTES)
            except BlockingIOError:
                return False
            self._stderr_output = (self._stderr_output + data)[-_STDERR_LIMIT_BYTES:]
            if not data:
                os.close(self._stderr)
                self._stderr = -1
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)  # The pid is 0 while the watchdog runs.
            self._status = status if pid else None
        return self._status is not None

    def close(self) -> None:
        """Close all pipes, without waiting. An agent that still runs ends its tasks, then itself."""
        self.shut_down()
        for fd in (self._reading, self._stderr):
            if fd >= 0:
                os.close(fd)
        self._reading = self._stderr = -1


def fork_agent(host: str) -> ForkedAgentLink:
    """Start the agent of this machine as a fork of this process.

    Args:
        host: The name of this machine among the hosts.

    Raises:
        TransportError: This process has threads, or no process or descriptor is left.
    """
    agent_id = processes.new_agent_id()
    fds: list[int] = []
    try:
        for _ in range(3):  # For the commands, the events and the stderr of the agent.
            fds.extend(os.pipe())
        commands_out, commands_in, events_out, events_in, stderr_out, stderr_in = fds
        thread_count = len(os.listdir("/proc/self/task"))
        if thread_count > 1:  # A fork would lack the other threads, but keep the locks that they hold.
            raise RuntimeError(f"a process of {thread_count} threads cannot be forked into an agent")
        pid = os.fork()
    except (OSError, RuntimeError) as error:
        for fd in fds:
            os.close(fd)
        why = why_not_started(error) if isinstance(error, OSError) else str(error)
        raise TransportError(f"{host}: the agent cannot be started: {why}") from error
    if pid == 0:  # In the fork, which becomes the agent and never returns.
        processes.become_function(partial(_run_agent, host, agent_id), (commands_out, events_in, stderr_in))
    for fd in (commands_out, events_in, stderr_in):
        os.close(fd)
    return ForkedAgentLink(host, pid, agent_id, events_out, commands_in, stderr_out)


def _run_agent(host: str, agent_id: int) -> NoReturn:
    """Become the agent, in the forked process."""
    from launcher.agent import main  # noqa: PLC0415 - in the agent, while the launcher imports its own modules

    main.run({"host": host, "agent": agent_id})
