"""The agent's side of its fork servers: processes from which tasks are forked, with modules imported already.

The agent calls `ForkServers`, and `launcher.agent.fork_server` runs in the processes. A fork server must
never keep a task from starting: if it cannot serve, it is given up for good, its tasks start cold, each with
a Python of its own, and the user gets one line with the reason.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Sequence

from launcher.agent import processes
from launcher.agent.spawn import Spawner, Started
from launcher.agent.stopping import TaskProcesses
from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.events import Preload, StartTask
from launcher.common.record import Record, replace
from launcher.common.text import signal_name

# A task waits at most this long for the imports. The supervisor allows 60 seconds for the start of a task.
_IMPORT_TIMEOUT_SECONDS = 50.0
_FORK_TIMEOUT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 4096


class _Fork(Record):
    """A task that a fork server was asked to fork."""

    start: StartTask
    #: The descriptor from which the output of the task is read.
    output: int
    #: The descriptor to which the agent writes a byte to let the task run.
    go: int
    #: The process tag of the task.
    tag: int


class _ForkServer:
    """What is known about one fork server. `ForkServers` acts on it.

    Args:
        command: The command of the launcher that asked for it, without its tasks.
        pid: The pid of its process.
        link: A socket to the process, or None if the fork server was given up.
    """

    def __init__(self, command: Preload, pid: int, link: Optional[socket.socket]) -> None:
        self.command = command
        self.pid = pid
        self.link = link
        #: Tasks that it was not yet asked to fork.
        self.waiting: List[StartTask] = []
        #: Whether the modules are imported.
        self.is_ready = False
        #: Whether it can accept a request now.
        self.is_idle = False
        #: Whether its end of the socket is closed, so that no message will follow.
        self.is_silent = False
        #: The task of its last request, unless that was cancelled.
        self.fork: Optional[_Fork] = None
        #: When to give it up if it has not answered (monotonic), or None if no answer is due.
        self.due: Optional[float] = None

    def cancel_fork(self) -> List[StartTask]:
        """Cancel the fork under way, so that its process exits.

        Returns:
            The task that is not forked, or an empty list if no fork was under way.
        """
        fork, self.fork = self.fork, None
        if fork is None:
            return []
        os.close(fork.go)
        os.close(fork.output)
        return [fork.start]


class ForkServers:
    """The fork servers of an agent (``--preload``). Nothing here blocks.

    Args:
        selector: Wakes the agent when a fork server has sent something.
        spawner: Starts processes.
        task_processes: Told which processes belong to the agent itself, and which tags to tasks.
        on_forked: Called with a task that was forked, and its process.
        on_refused: Called with a task that has a fork server which cannot fork it. The task starts cold.
        on_notice: Called with a line for the user.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        spawner: Spawner,
        task_processes: TaskProcesses,
        *,
        on_forked: Callable[[StartTask, Started], None],
        on_refused: Callable[[StartTask], None],
        on_notice: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._spawner = spawner
        self._task_processes = task_processes
        self._on_forked = on_forked
        self._on_refused = on_refused
        self._on_notice = on_notice
        self._fork_servers: List[_ForkServer] = []
        self._by_task: Dict[TaskId, _ForkServer] = {}

    def start(self, command: Preload) -> None:
        """Start a fork server for tasks, unless one with the same modules and environment can be shared."""
        without_tasks = replace(command, tasks=())
        same = [found for found in self._fork_servers if found.command == without_tasks]
        if not same:
            same = [self._started(without_tasks)]
            self._fork_servers += same
        self._by_task.update(dict.fromkeys(command.tasks, same[0]))

    def _started(self, command: Preload) -> _ForkServer:
        """Start the process of a fork server, and send it its program and the names of the modules.

        Args:
            command: The Python, its environment and the modules.

        Returns:
            The fork server. If its process cannot be started, it has no link and is given up already.
        """
        from launcher.agent import fork_server  # noqa: PLC0415 - few agents need runpy and ctypes

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = (command.python, "-c", fork_server.LOADER, fork_server.PADDING)
        try:
            prepared = self._spawner.prepare(argv, command.env, venv=command.venv)
            pid = self._spawner.spawn_with_stdin(prepared, theirs.fileno())
        except LaunchError:
            # The tasks cannot be started either, and will report the reason.
            ours.close()
            return _ForkServer(command, 0, None)
        finally:
            theirs.close()
        self._task_processes.own.add(pid)
        started = _ForkServer(command, pid, ours)
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._read(started, ours))
        # If its process has ended already, `_read` will notice.
        with suppress(OSError):
            ours.send(_source_of(fork_server).encode())
            ours.send(json.dumps(command.modules).encode())
        return started

    # ------------------------------------------------------------------ tasks

    def fork(self, start: StartTask) -> bool:
        """Let the fork server of a task fork it, as soon as possible.

        Returns:
            Whether the task has a fork server. Otherwise it is to be started cold.
        """
        found = self._by_task.get(start.task)
        if found is None or found.link is None:
            return False
        found.waiting.append(start)
        if found.due is None:
            found.due = time.monotonic() + _IMPORT_TIMEOUT_SECONDS
        self._ask(found)
        return True

    def cancel(self, tasks: Sequence[TaskId]) -> List[StartTask]:
        """Do not fork tasks that are to be stopped before they have a process.

        Args:
            tasks: The names of the tasks that are to be stopped.

        Returns:
            Those of them that waited for a fork server.
        """
        cancelled: List[StartTask] = []
        for found in self._fork_servers:
            cancelled += [start for start in found.waiting if start.task in tasks]
            found.waiting = [start for start in found.waiting if start.task not in tasks]
            if found.fork is not None and found.fork.start.task in tasks:
                cancelled += found.cancel_fork()
        return cancelled

    def _ask(self, found: _ForkServer) -> None:
        """Let an idle fork server fork the first of its waiting tasks that can be started."""
        while found.is_idle and found.waiting and found.link:
            self._ask_for(found, found.waiting[0], found.link)

    def _ask_for(self, found: _ForkServer, start: StartTask, link: socket.socket) -> None:
        """Send a fork server the request to fork its first waiting task.

        If the task cannot be started at all, it leaves the queue. If the request cannot be sent, the fork
        server is given up.

        Args:
            found: The fork server, which is idle.
            start: Its first waiting task.
            link: The socket to it.
        """
        tag = self._spawner.new_tag()
        fds: List[int] = []
        try:
            command = self._spawner.prepare(start.argv, start.env, start.workdir, start.venv, start.script)
            self._task_processes.expect(start.task, tag)
            request = {"argv": command.argv, "env": command.environment, "tag": tag, "cwd": os.getcwd()}
            fds += os.pipe()
            fds += os.pipe()
            output, writing, reading, go = fds
            rights = array.array("i", [writing, reading])
            packet = json.dumps(request).encode()
            link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except LaunchError:
            # A cold start fails in the same way, and reports the reason.
            self._on_refused(found.waiting.pop(0))
            return
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self._give_up(found, f"{start.task} cannot be passed on to its process: {error.strerror}")
            return
        os.close(writing)
        os.close(reading)
        os.set_blocking(output, False)
        found.is_idle, found.fork = False, _Fork(found.waiting.pop(0), output=output, go=go, tag=tag)
        found.due = time.monotonic() + _FORK_TIMEOUT_SECONDS

    # ------------------------------------------------------------------ what fork servers send

    def _read(self, found: _ForkServer, link: socket.socket) -> None:
        """Handle a message of a fork server: a pid, or the reason why it cannot serve.

        The pid is that of the fork server itself after the imports, and later that of a forked task.
        """
        try:
            answer = link.recv(_MAX_ANSWER_BYTES)
        except OSError:
            answer = b""
        if not answer:
            # Its process has ended. `reaped` will learn how.
            found.is_silent = True
            self._selector.unregister(link)
            return
        known = self._forked if found.is_ready else self._imported
        # The process of a cancelled fork exits by itself, so its pid is not used.
        cancelled = found.is_ready and found.fork is None
        if cancelled or (answer.isdigit() and known(found, int(answer))):
            found.is_ready, found.is_idle, found.due = True, True, None
            self._ask(found)
        else:
            why = "its process has gone" if answer.isdigit() else answer.decode("utf-8", "replace")
            self._give_up(found, why)

    def _imported(self, found: _ForkServer, pid: int) -> bool:
        """Handle the end of the imports. From now on a fork of the first process is the fork server.

        Args:
            found: The fork server.
            pid: The pid of that fork.

        Returns:
            Whether this process exists and is a child of the first one.
        """
        process = processes.read_process(pid)
        if process is None or process.parent != found.pid:
            return False
        self._task_processes.own.add(pid)
        # A process that has a child cannot have been reaped, so the pid is still that of the first one.
        os.kill(found.pid, signal.SIGKILL)
        found.pid = pid
        return True

    def _forked(self, found: _ForkServer, pid: int) -> bool:
        """Handle the pid of a forked task, and let the task run.

        Args:
            found: The fork server.
            pid: The pid of the task.

        Returns:
            Whether this process exists, is our child by now, and carries the tag of the task.
        """
        fork, process = found.fork, processes.read_process(pid)
        if fork is None or process is None or process.parent != os.getpid():
            return False
        if processes.tag_of(pid) != fork.tag:
            return False
        found.fork = None
        self._on_forked(fork.start, Started(pid, fork.output, fork.tag))
        # The task may have been killed meanwhile.
        with suppress(OSError):
            os.write(fork.go, b"1")
        os.close(fork.go)
        return True

    # ------------------------------------------------------------------ the end of fork servers

    def reaped(self, pid: int, status: int) -> None:
        """Give up a fork server whose process has ended.

        Args:
            pid: A child of the agent that was reaped. It need not be a fork server.
            status: Its wait status.
        """
        for found in self._fork_servers:
            while found.pid == pid and found.link is not None:
                if found.is_silent:
                    code = os.WEXITSTATUS(status)
                    killed = os.WIFSIGNALED(status) and f"was killed by {signal_name(os.WTERMSIG(status))}"
                    self._give_up(found, f"its process {killed or f'exited with code {code}'}")
                else:
                    self._read(found, found.link)

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it never is."""
        return min((found.due for found in self._fork_servers if found.due is not None), default=None)

    def on_time(self, now: float) -> None:
        """Give up the fork servers whose answer is overdue."""
        for found in self._fork_servers:
            if found.due is not None and found.due <= now:
                self._give_up(found, "its process takes too long")

    def close(self) -> None:
        """Stop all fork servers. Tasks that wait for one are not started."""
        for found in self._fork_servers:
            self._end(found)

    def _give_up(self, found: _ForkServer, why: str) -> None:
        """Stop a fork server that cannot serve, tell the user why, and let its waiting tasks start cold."""
        waiting = self._end(found)
        self._on_notice(f"--preload {','.join(found.command.modules)} has no effect: {why}")
        for start in waiting:
            self._on_refused(start)

    def _end(self, found: _ForkServer) -> List[StartTask]:
        """Stop a fork server for good.

        Returns:
            The tasks that waited for it.
        """
        if found.link is not None:
            if not found.is_silent:
                self._selector.unregister(found.link)
            found.link.close()
        # Until it is reaped, the pid belongs to the fork server.
        if found.pid in self._task_processes.own:
            os.kill(found.pid, signal.SIGKILL)
        waiting = [*found.cancel_fork(), *found.waiting]
        found.link, found.due, found.waiting = None, None, []
        return waiting


def _source_of(module: Any) -> str:
    """Return the source text of a module of ours, from its file or from what the launcher has sent."""
    if "__file__" not in vars(module):
        return str(module.__loader__.get_source(module.__name__))
    with open(module.__file__, encoding="utf-8") as file:
        return file.read()
