"""Lets the hosts of a job take the Python stacks of tasks, by the program of py-spy, while the tasks go on.

`launcher.launch.control` and the orchestrator call it. All runs in the loop but the reading of the program,
which travels to a host only for this, in small pieces, so that commands to the host do not wait for it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError, ProtocolError, TransportError
from launcher.common.validation import FieldReader
from launcher.event_loop import EventLoop, TimerHandle
from launcher.runs.stacks import StackGroup, TaskStacks, fold, program_path, stack_lines, summary_lines

if TYPE_CHECKING:
    from concurrent.futures import Future

    from launcher.backends.programs import RemoteProgram

#: How long the stacks of the tasks of a host may take, once its turn has come, and how long on the host.
_HOST_SECONDS, _SECONDS_THERE = 25.0, 20.0
#: So many hosts are sent the program at a time.
_MAX_HOSTS_AT_ONCE = 16
#: So many lines say where tasks hang, and so many show all functions.
_MAX_SUMMARY_LINES, _MAX_LINES = 10, 200
_NO_TIME = "there was no time for it"
_ENTRY = "launcher.agent.stacks:take"
_PIECE_BYTES = 64 << 10
#: A host may answer with so many bytes for each task.
_MAX_TASK_BYTES = 256 << 10


class StackTaker:
    """Takes the stacks of tasks. Whoever asks for those of a task that are being taken gets the same ones.

    Args:
        loop: Drives it.
        run: Starts a program of ours as a child of the agent of a host, by entry and arguments.
    """

    def __init__(self, loop: EventLoop, run: Callable[[str, str, object], RemoteProgram]) -> None:
        self._loop, self._run = loop, run
        #: The tasks whose stacks are being taken, and the last stacks of the others.
        self.taking: set[TaskId] = set()
        self.taken: dict[TaskId, TaskStacks] = {}
        #: The hosts whose turn has not come, with the pids of their tasks.
        self._waiting: deque[tuple[str, Mapping[TaskId, int]]] = deque()
        self._dumps: set[_HostDump] = set()
        #: The program, compressed, and what hosts must know about it. Empty until it was first needed.
        self._program, self._facts = b"", dict[str, object]()
        self._is_reading = False
        #: Those who wait for the stacks of tasks.
        self._waiters: list[tuple[frozenset[TaskId], Callable[[], object]]] = []

    def take(
        self, pids: Mapping[str, Mapping[TaskId, int]], on_done: Callable[[], object] = lambda: None
    ) -> None:
        """Begin to take stacks.

        Args:
            pids: The pids of the tasks of each host.
            on_done: Called once, later, when those of all these tasks are taken, or cannot be.
        """
        self._waiters.append((frozenset(task for on_host in pids.values() for task in on_host), on_done))
        for host, on_host in pids.items():
            if wanted := {task: pid for task, pid in on_host.items() if task not in self.taking}:
                self.taking.update(wanted)
                self._waiting.append((host, wanted))
        if self._program:
            self._start()
        elif self._waiting and not self._is_reading:
            self._is_reading = True
            self._loop.run_in_thread(read_program, self._on_program)

    def forget(self, tasks: Collection[TaskId]) -> None:
        """Forget the stacks of tasks that were taken before."""
        for task in self.taken.keys() & tasks:
            del self.taken[task]

    def groups(self, tasks: Iterable[TaskId]) -> list[StackGroup]:
        """Return the stacks of those of these tasks for which they are known, folded."""
        return fold(self.taken[task] for task in tasks if task in self.taken)

    def describe(self, tasks: Iterable[TaskId]) -> tuple[list[str], str]:
        """Return where tasks are, for the user: a line for each group, and a text with all functions."""
        groups = [group for group in self.groups(tasks) if group.threads]
        lines = itertools.islice(stack_lines(groups), _MAX_LINES)
        return [*itertools.islice(summary_lines(groups), _MAX_SUMMARY_LINES)], "\n".join(lines)

    def give_up(self) -> None:
        """Give up what is under way, so that commands to the hosts need not wait for it."""
        while self._waiting:
            self._note(self._waiting.popleft()[1], _NO_TIME)
        for dump in [*self._dumps]:
            dump.finish(_NO_TIME)

    def _on_program(self, reading: Future[tuple[bytes, dict[str, object]]]) -> None:
        """Begin with the hosts that wait for the program, or note why there is none."""
        self._is_reading = False
        try:
            self._program, self._facts = reading.result()
        except (LaunchError, OSError) as error:
            while self._waiting:
                self._note(self._waiting.popleft()[1], str(error))
        self._start()

    def _start(self) -> None:
        """Ask hosts that wait, as many as may be asked at a time."""
        while self._waiting and self._program and len(self._dumps) < _MAX_HOSTS_AT_ONCE:
            host, pids = self._waiting.popleft()
            try:
                program = self._run(host, _ENTRY, {**self._facts, "tasks": pids, "seconds": _SECONDS_THERE})
            except TransportError as error:
                self._note(pids, str(error))
                continue
            self._dumps.add(_HostDump(self._loop, program, self._program, pids, self._on_done))

    def _on_done(self, dump: _HostDump, stacks: Mapping[TaskId, TaskStacks], note: str) -> None:
        """Keep what a host has answered, and ask the next one."""
        self._dumps.discard(dump)
        self.taken.update(stacks)
        self.taking.difference_update(stacks)
        self._note([task for task in dump.tasks if task not in stacks], note)
        self._start()

    def _note(self, tasks: Collection[TaskId], note: str) -> None:
        """Note why there are no stacks of tasks, and call those who wait for nothing else."""
        self.taken.update((task, TaskStacks(task, note=note)) for task in tasks)
        self.taking.difference_update(tasks)
        done = [waiter for waiter in self._waiters if not waiter[0] & self.taking]
        self._waiters = [waiter for waiter in self._waiters if waiter not in done]
        for _, on_done in done:
            self._loop.call_soon(on_done)


class _HostDump:
    """A program of ours on a host that takes the stacks of tasks there, driven by the loop.

    Args:
        loop: Drives it.
        program: The program, which reads py-spy from its stdin.
        content: What is sent to it.
        tasks: The tasks.
        on_done: Called once at the end, with the stacks, and why those of other tasks are missing.
    """

    def __init__(
        self,
        loop: EventLoop,
        program: RemoteProgram,
        content: bytes,
        tasks: Collection[TaskId],
        on_done: Callable[[_HostDump, Mapping[TaskId, TaskStacks], str], None],
    ) -> None:
        self.tasks = frozenset(tasks)
        self._loop, self._program, self._on_done = loop, program, on_done
        self._unsent, self._answer = memoryview(content), b""
        self._timer: TimerHandle | None = loop.call_at(
            time.monotonic() + _HOST_SECONDS, lambda: self.finish(f"no answer within {_HOST_SECONDS:g}s")
        )
        loop.watch(program.fileno(), self._continue)
        loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Send a piece of py-spy, and read what has come of the answer."""
        if self._timer is None:
            return
        try:
            with suppress(TransportError):  # The program has ended, perhaps with an answer.
                while sent := self._program.send(self._unsent[:_PIECE_BYTES]):
                    self._unsent = self._unsent[sent:]
            while data := self._program.recv(_PIECE_BYTES):
                self._answer += data
            if data == b"":
                self.finish("its agent did not answer")
            elif len(self._answer) > _MAX_TASK_BYTES * len(self.tasks):
                self.finish("its agent answers too much")
        except TransportError as error:
            self.finish(str(error))

    def finish(self, note: str) -> None:
        """End the program, and pass on its answer. A second call does nothing.

        Args:
            note: Why the stacks of tasks are missing that are not in the answer.
        """
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._loop.watch(self._program.fileno())  # Without a function it is no longer watched.
        self._program.close()
        stacks: dict[TaskId, TaskStacks] = {}
        with suppress(ValueError, RecursionError, TypeError, ProtocolError):  # It has not come, or is wrong.
            reader = FieldReader(tasks=self.tasks)
            found = [TaskStacks(*reader.read(TaskStacks, fields)) for fields in json.loads(self._answer)]
            stacks = {each.task: each for each in found}
        self._on_done(self, stacks, note)


def read_program() -> tuple[bytes, dict[str, object]]:
    """Return the program of py-spy, compressed, and what hosts must know about it. This blocks.

    Raises:
        LaunchError: There is none.
        OSError: It cannot be read.
    """
    with open(program_path(), "rb") as file:
        content = file.read()
    compressed, sha256 = zlib.compress(content, 1), hashlib.sha256(content).hexdigest()
    return compressed, {"size": len(compressed), "sha256": sha256, "machine": os.uname().machine}
