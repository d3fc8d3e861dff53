"""The fork servers of an agent: processes from which tasks are forked, with modules already imported.

`launcher.agent.fork_server` runs in them, and the agent calls `ForkServers`. A fork server that cannot serve
is given up for good: its tasks start cold, with Pythons of their own, and the user gets one line with the
reason.
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

# A task waits so long for the modules. The supervisor allows a start 60 seconds.
_IMPORT_TIMEOUT_SECONDS = 50.0
_FORK_TIMEOUT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 4096


class _Fork(Record):
    """A task that is being forked: our ends of its output and of ``go``, and its tag."""

    start: StartTask
    output: int
    go: int
    tag: int


class _ForkServer:
    """One fork server.

    Args:
        command: The command that asked for it, without its tasks.
        pid: The process.
        link: A socket to the process; None if the fork server was given up.
    """

    def __init__(self, command: Preload, pid: int, link: Optional[socket.socket]) -> None:
        self.command = command
        self.pid = pid
        self.link = link
        self.waiting: List[StartTask] = []
        #: Whether the modules are imported, and whether it can take a request.
        self.is_ready = self.is_idle = False
        #: Whether its last message was read.
        self.is_silent = False
        #: The task of its last request, unless that was cancelled.
        self.fork: Optional[_Fork] = None
        #: When it is given up (monotonic).
        self.due: Optional[float] = None

    def cancel_fork(self) -> List[StartTask]:
        """Cancel the fork under way, if there is one: its process exits. Returns the task."""
        fork, self.fork = self.fork, None
        if fork is None:
            return []
        os.close(fork.go)
        os.close(fork.output)
        return [fork.start]


class ForkServers:
    """The fork servers of an agent.

    Args:
        selector: Wakes the agent.
        spawner: Starts processes.
        task_processes: Knows which processes belong to tasks.
        on_forked: Called with a task that was forked, and its process.
        on_refused: Called with a task that no fork server can fork, although there was one for it.
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
        """Start a fork server, unless there is one with the same modules and environment."""
        without_tasks = replace(command, tasks=())
        same = [found for found in self._fork_servers if found.command == without_tasks]
        if not same:
            same = [self._started(without_tasks)]
            self._fork_servers += same
        self._by_task.update(dict.fromkeys(command.tasks, same[0]))

    def _started(self, command: Preload) -> _ForkServer:
        from launcher.agent import fork_server  # noqa: PLC0415 - few agents need runpy and ctypes

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = (command.python, "-c", fork_server.LOADER, fork_server.PADDING)
        try:
            prepared = self._spawner.prepare(argv, command.env, venv=command.venv)
            pid = self._spawner.spawn_with_stdin(prepared, theirs.fileno())
        except LaunchError:  # the tasks can't be started either, and report it
            ours.close()
            return _ForkServer(command, 0, None)
        finally:
            theirs.close()
        self._task_processes.own.add(pid)
        started = _ForkServer(command, pid, ours)
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._read(started, ours))
        with suppress(OSError):  # its end is reported where it is read
            ours.send(_source_of(fork_server).encode())
            ours.send(json.dumps(command.modules).encode())
        return started

    # ------------------------------------------------------------------ tasks

    def fork(self, start: StartTask) -> bool:
        """Fork a task as soon as possible. Returns False if there is no fork server for it."""
        found = self._by_task.get(start.task)
        if found is None or found.link is None:
            return False
        found.waiting.append(start)
        if found.due is None:
            found.due = time.monotonic() + _IMPORT_TIMEOUT_SECONDS
        self._ask(found)
        return True

    def cancel(self, tasks: Sequence[TaskId]) -> List[StartTask]:
        """Do not fork those of these tasks that have no process yet. Returns them."""
        cancelled: List[StartTask] = []
        for found in self._fork_servers:
            cancelled += [start for start in found.waiting if start.task in tasks]
            found.waiting = [start for start in found.waiting if start.task not in tasks]
            if found.fork is not None and found.fork.start.task in tasks:
                cancelled += found.cancel_fork()
        return cancelled

    def _ask(self, found: _ForkServer) -> None:
        """Let a fork server fork the next task that can be started, if it can."""
        while found.is_idle and found.waiting and found.link:
            self._ask_for(found, found.waiting[0], found.link)

    def _ask_for(self, found: _ForkServer, start: StartTask, link: socket.socket) -> None:
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
        except LaunchError:  # its cold start reports why
            self._on_refused(found.waiting.pop(0))
            return
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self._give_up(found, f"{start.task} can't be passed on to its process: {error.strerror}")
            return
        os.close(writing)
        os.close(reading)
        os.set_blocking(output, False)
        found.is_idle, found.fork = False, _Fork(found.waiting.pop(0), output=output, go=go, tag=tag)
        found.due = time.monotonic() + _FORK_TIMEOUT_SECONDS

    # ------------------------------------------------------------------ what fork servers send

    def _read(self, found: _ForkServer, link: socket.socket) -> None:
        try:
            answer = link.recv(_MAX_ANSWER_BYTES)
        except OSError:
            answer = b""
        if not answer:  # `reaped` tells how it ended
            found.is_silent = True
            self._selector.unregister(link)
            return
        known = self._forked if found.is_ready else self._imported
        cancelled = found.is_ready and found.fork is None  # its process may be killed before it has a pid
        if cancelled or (answer.isdigit() and known(found, int(answer))):
            found.is_ready, found.is_idle, found.due = True, True, None
            self._ask(found)
        else:
            why = "its process has gone" if answer.isdigit() else answer.decode("utf-8", "replace")
            self._give_up(found, why)

    def _imported(self, found: _ForkServer, pid: int) -> bool:
        """Handle the end of the imports: a fork of the fork server takes all later requests.

        Returns:
            Whether the process with this pid exists and is that fork.
        """
        process = processes.read_process(pid)
        if process is None or process.parent != found.pid:
            return False
        self._task_processes.own.add(pid)
        os.kill(found.pid, signal.SIGKILL)  # it has a child, so it was not reaped
        found.pid = pid
        return True

    def _forked(self, found: _ForkServer, pid: int) -> bool:
        """Handle the pid of a forked task: let the task run.

        Returns:
            Whether the process with this pid exists and is that task.
        """
        fork, process = found.fork, processes.read_process(pid)
        if fork is None or process is None or process.parent != os.getpid():
            return False
        if processes.tag_of(pid) != fork.tag:
            return False
        found.fork = None
        self._on_forked(fork.start, Started(pid, fork.output, fork.tag))
        with suppress(OSError):  # it was killed
            os.write(fork.go, b"1")
        os.close(fork.go)
        return True

    # ------------------------------------------------------------------ the end of fork servers

    def reaped(self, pid: int, status: int) -> None:
        """Give up a fork server that has ended, if this child of the agent is one."""
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
        """Give up fork servers that take too long."""
        for found in self._fork_servers:
            if found.due is not None and found.due <= now:
                self._give_up(found, "its process takes too long")

    def close(self) -> None:
        """End all fork servers. Tasks that wait for one are not started."""
        for found in self._fork_servers:
            self._end(found)

    def _give_up(self, found: _ForkServer, why: str) -> None:
        """Tell the user why a fork server cannot serve. Its tasks start cold."""
        waiting = self._end(found)
        self._on_notice(f"--preload {','.join(found.command.modules)} has no effect: {why}")
        for start in waiting:
            self._on_refused(start)

    def _end(self, found: _ForkServer) -> List[StartTask]:
        """End a fork server. Returns the tasks that waited for it."""
        if found.link is not None:
            if not found.is_silent:
                self._selector.unregister(found.link)
            found.link.close()
        if found.pid in self._task_processes.own:  # not reaped: the pid is still the fork server's
            os.kill(found.pid, signal.SIGKILL)
        waiting = [*found.cancel_fork(), *found.waiting]
        found.link, found.due, found.waiting = None, None, []
        return waiting


def _source_of(module: Any) -> str:
    """Return the text of a module of ours, from its file or from the launcher."""
    if "__file__" not in vars(module):
        return str(module.__loader__.get_source(module.__name__))
    with open(module.__file__, encoding="utf-8") as file:
        return file.read()
