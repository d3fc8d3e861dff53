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
        """Record a fork server (a process from which tasks are forked) whose process was just started."""
        #: The command that asked for it. An equal one of other tasks shares this fork server.
        self.command = command
        #: The pid of its process. It changes once: after the imports a fork of the process takes its place.
        self.pid = pid
        #: The socket to the process, or None if it was given up or stopped.
        self.link = link
        #: Tasks that it was not yet asked to fork.
        self.waiting: List[StartTask] = []
        #: Whether the modules are imported.
        self.is_ready = False
        #: Whether it can accept a request now.
        self.is_idle = False
        #: Whether its end of the socket is closed, so no message will follow.
        self.is_silent = False
        #: The task that it was asked to fork and has not forked yet. It is None after a cancellation, too,
        #: although an answer to that request may still arrive.
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
        # The forked process waits for a byte from this pipe, and exits when it is closed instead.
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
        on_refused: Called with a task that has a fork server which cannot fork it. The task is started in a
            new process.
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
        """Manage the fork servers of an agent, of which there are none at first."""
        self._selector = selector
        self._spawner = spawner
        self._task_processes = task_processes
        self._on_forked = on_forked
        self._on_refused = on_refused
        self._on_notice = on_notice
        #: All fork servers that were started, also those that were given up.
        self._fork_servers: List[_ForkServer] = []
        #: The fork server of each task that has one. Several tasks may share it.
        self._by_task: Dict[TaskId, _ForkServer] = {}

    def start(self, command: Preload) -> None:
        """Start a fork server for tasks, unless one with the same modules and environment can be shared.

        Args:
            command: The names of the tasks, the Python, its environment and the modules.
        """
        # Two commands are equal if nothing but their tasks differs.
        without_tasks = replace(command, tasks=())
        shared = [server for server in self._fork_servers if server.command == without_tasks]
        if not shared:
            shared = [self._start_server(without_tasks)]
            self._fork_servers += shared
        self._by_task.update(dict.fromkeys(command.tasks, shared[0]))

    def _start_server(self, command: Preload) -> _ForkServer:
        """Start the process of a fork server, and send it its program and the names of the modules.

        Args:
            command: The Python, its environment and the modules.

        Returns:
            The fork server. If its process cannot be started, it has no link and is given up already.
        """
        from launcher.agent import fork_server  # noqa: PLC0415 - few agents need runpy and ctypes

        # Each message on such a socket is received as a whole.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The loader reads the source of the program from the socket. The padding makes room for the command
        # lines of the tasks, which process lists show.
        argv = (command.python, "-c", fork_server.LOADER, fork_server.PADDING)
        try:
            prepared = self._spawner.prepare(argv, command.env, venv=command.venv)
            pid = self._spawner.spawn_with_stdin(prepared, theirs.fileno())
        except LaunchError:
            # The tasks cannot be started either, and will report the reason.
            ours.close()
            return _ForkServer(command, pid=0, link=None)
        finally:
            theirs.close()
        # This process belongs to the agent, and must not be taken for one that a task has left behind.
        self._task_processes.own_children.add(pid)
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

        The task waits until the fork server has imported its modules and has no other request.

        Returns:
            Whether the task has a fork server. Otherwise it is to be started in a new process.
        """
        server = self._by_task.get(start.task)
        # A fork server without a link was given up.
        if server is None or server.link is None:
            return False
        server.waiting.append(start)
        # The time for the imports runs only while a task waits for them. If they are done, asking the fork
        # server sets another time, for its answer.
        if server.due is None:
            server.due = time.monotonic() + _IMPORT_TIMEOUT_SECONDS
        self._ask(server)
        return True

    def cancel(self, tasks: Sequence[TaskId]) -> List[StartTask]:
        """Do not fork tasks that are to be stopped before they have a process.

        Args:
            tasks: The names of the tasks that are to be stopped.

        Returns:
            The start commands of those tasks that waited for a fork server, which will not be forked.
        """
        cancelled: List[StartTask] = []
        for server in self._fork_servers:
            cancelled += [start for start in server.waiting if start.task in tasks]
            server.waiting = [start for start in server.waiting if start.task not in tasks]
            # A fork that is under way is cancelled, too.
            if server.fork is not None and server.fork.start.task in tasks:
                cancelled += server.cancel_fork()
        return cancelled

    def _ask(self, server: _ForkServer) -> None:
        """Let an idle fork server fork the first of its waiting tasks that can be started.

        Do nothing if it is busy, was given up, or no task waits for it.
        """
        # A request that is sent makes the fork server busy. A task that cannot be started leaves the queue.
        while server.is_idle and server.waiting and server.link:
            self._ask_for(server, server.waiting[0], server.link)

    def _ask_for(self, server: _ForkServer, start: StartTask, link: socket.socket) -> None:
        """Send a fork server the request to fork its first waiting task.

        A fork server is a process that has imported the modules of ``--preload``, so a task that is forked
        from it need not import them. If the task cannot be started at all, it leaves the queue. If the
        request cannot be sent, the fork server is given up.

        Args:
            server: The fork server, which is idle.
            start: Its first waiting task.
            link: The socket to it.
        """
        # The process and its descendants inherit this number, by which the agent finds them.
        tag = self._spawner.new_tag()
        fds: List[int] = []
        try:
            command = self._spawner.prepare(start.argv, start.env, start.workdir, start.venv, start.script)
            # The process may exist before the answer arrives, and belongs to the task by its tag.
            self._task_processes.expect(start.task, tag)
            request = {"argv": command.argv, "env": command.environment, "tag": tag, "cwd": os.getcwd()}
            # The task permits this process, the agent, to trace it, so that its stacks can be shown.
            request["tracer"] = self._spawner.tracer
            fds += os.pipe()
            fds += os.pipe()
            # The first pipe carries the output of the task to the agent, from `writing` to `output`. On the
            # second one the task waits for a byte that the agent writes, from `go` to `reading`. If `go` is
            # closed instead, because the fork was cancelled, the process of the task exits.
            output, writing, reading, go = fds
            rights = array.array("i", [writing, reading])
            packet = json.dumps(request).encode()
            link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except LaunchError:
            # The task cannot be started at all. Its start in a new process fails in the same way, and reports
            # the reason.
            self._on_refused(server.waiting.pop(0))
            return
        except OSError as error:
            for fd in fds:
                os.close(fd)
            # The task is still the first one that waits, so it is started in a new process like the others.
            self._give_up(server, f"{start.task} cannot be passed on to its process: {error.strerror}")
            return
        # The fork server has its own copies of these two by now.
        os.close(writing)
        os.close(reading)
        os.set_blocking(output, False)
        server.is_idle, server.fork = False, _Fork(server.waiting.pop(0), output=output, go=go, tag=tag)
        server.due = time.monotonic() + _FORK_TIMEOUT_SECONDS

    # ------------------------------------------------------------------ what fork servers send

    def _read(self, server: _ForkServer, link: socket.socket) -> None:
        """Handle a message of a fork server: a pid, or the reason why it cannot serve.

        - The first pid is that of the fork server itself, after its imports.
        - Each later pid is that of the task of the last request. If the fork was cancelled, it is not used.
        - No bytes: the process has ended.
        - A pid of a process that no longer exists, or a text: the fork server is given up.

        After each pid, even that of a cancelled fork, the next waiting task is asked for.

        Args:
            server: The fork server.
            link: The socket to it, which can be read.
        """
        try:
            answer = link.recv(_MAX_ANSWER_BYTES)
        except OSError:
            answer = b""
        if not answer:
            # Its process has ended. `on_reaped` will learn how.
            server.is_silent = True
            self._selector.unregister(link)
            return
        handle_pid = self._on_task_forked if server.is_ready else self._on_imported
        # The process of a cancelled fork exits by itself, so its pid is not used.
        was_cancelled = server.is_ready and server.fork is None
        if was_cancelled or (answer.isdigit() and handle_pid(server, int(answer))):
            server.is_ready, server.is_idle, server.due = True, True, None
            self._ask(server)
        else:
            why = "its process has gone" if answer.isdigit() else answer.decode("utf-8", "replace")
            self._give_up(server, why)

    def _on_imported(self, server: _ForkServer, pid: int) -> bool:
        """Handle the end of the imports. From now on a fork of the first process is the fork server.

        The first process is killed. Its fork does not map the memory that only the imports needed.

        Args:
            server: The fork server.
            pid: The pid of that fork.

        Returns:
            False if this process does not exist or is not a child of the first one. Then nothing has changed.
        """
        process = processes.read_process(pid)
        if process is None or process.parent != server.pid:
            return False
        # It is a child of the agent as soon as the first process is dead, and belongs to no task.
        self._task_processes.own_children.add(pid)
        # A process that has a child cannot have been reaped, so the pid is still that of the first one.
        os.kill(server.pid, signal.SIGKILL)
        server.pid = pid
        return True

    def _on_task_forked(self, server: _ForkServer, pid: int) -> bool:
        """Handle the pid of a forked task, and let the task run.

        Args:
            server: The fork server.
            pid: The pid of the task.

        Returns:
            False if this process does not exist, is not our child by now, or does not carry the process tag
            of the task (a number by which its processes are recognized). Then nothing has changed.
        """
        fork, process = server.fork, processes.read_process(pid)
        if fork is None or process is None or process.parent != os.getpid():
            return False
        # A process without the tag is not the one that was forked for this task.
        if processes.tag_of(pid) != fork.tag:
            return False
        server.fork = None
        self._on_forked(fork.start, Started(pid, fork.output, fork.tag))
        # The task may have been killed meanwhile.
        with suppress(OSError):
            os.write(fork.go, b"1")
        os.close(fork.go)
        return True

    # ------------------------------------------------------------------ the end of fork servers

    def on_reaped(self, pid: int, status: int) -> None:
        """Give up a fork server whose process has ended.

        Args:
            pid: A child of the agent that was reaped. It need not be a fork server.
            status: Its wait status.
        """
        for server in self._fork_servers:
            # Its last messages are read first: one may contain the reason, or a new pid of the fork server.
            while server.pid == pid and server.link is not None:
                if not server.is_silent:
                    self._read(server, server.link)
                elif os.WIFSIGNALED(status):
                    self._give_up(server, f"its process was killed by {signal_name(os.WTERMSIG(status))}")
                else:
                    self._give_up(server, f"its process exited with code {os.WEXITSTATUS(status)}")

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it never is."""
        due_times = [server.due for server in self._fork_servers if server.due is not None]
        return min(due_times, default=None)

    def on_time(self, now: float) -> None:
        """Give up the fork servers whose answer is overdue.

        Args:
            now: The time (monotonic).
        """
        for server in self._fork_servers:
            if server.due is not None and server.due <= now:
                self._give_up(server, "its process takes too long")

    def close(self) -> None:
        """Stop all fork servers. Tasks that wait for one are not started.

        The agent calls this when it stops all of its tasks.
        """
        for server in self._fork_servers:
            # The tasks that this returns are dropped.
            self._end(server)

    def _give_up(self, server: _ForkServer, why: str) -> None:
        """Stop a fork server that cannot serve, tell the user why, and let its waiting tasks start cold.

        To start cold means to start in a Python of its own, which has to import all modules itself.
        """
        waiting = self._end(server)
        self._on_notice(f"--preload {','.join(server.command.modules)} has no effect: {why}")
        for start in waiting:
            self._on_refused(start)

    def _end(self, server: _ForkServer) -> List[StartTask]:
        """Stop a fork server for good: close its socket, and kill its process.

        Returns:
            The tasks that waited for it, and the one whose fork was under way.
        """
        if server.link is not None:
            # When the other end was closed, `_read` has stopped watching the socket.
            if not server.is_silent:
                self._selector.unregister(server.link)
            server.link.close()
        # As long as its process was not reaped, no other process can have the pid.
        if server.pid in self._task_processes.own_children:
            os.kill(server.pid, signal.SIGKILL)
        waiting = [*server.cancel_fork(), *server.waiting]
        # Without a link it counts as given up, so it gets no further tasks.
        server.link, server.due, server.waiting = None, None, []
        return waiting


def _source_of(module: Any) -> str:
    """Return the source text of a module of launch, from its file or from what the launcher has sent."""
    # On another machine, the loader of `launcher.agent` modules holds their text in memory.
    if "__file__" not in vars(module):
        return str(module.__loader__.get_source(module.__name__))
    with open(module.__file__, encoding="utf-8") as file:
        return file.read()
