"""Lets the hosts of a job take the Python stacks of tasks, by the program of py-spy, while the tasks go on.

`launcher.launch.control` and the orchestrator call it. All runs in the loop but the reading of the program,
which travels to a host only for this, in small pieces, so that commands to the host do not wait for it.
"""

from __future__ import annotations

import functools
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
from launcher.common.record import replace
from launcher.common.validation import FieldReader
from launcher.event_loop import EventLoop, TimerHandle
from launcher.runs.stacks import Stacks, fold, program_path, stack_lines, summary_lines

if TYPE_CHECKING:
    from concurrent.futures import Future

    from launcher.backends.programs import RemoteProgram

#: How long the stacks of the tasks of a host may take, once its turn has come, and how long on the host.
_HOST_SECONDS, _SECONDS_THERE = 25.0, 20.0
#: So many hosts are sent the program at a time.
_MAX_HOSTS_AT_ONCE = 16
#: The largest number of lines that name where tasks hang, and of lines with whole stacks.
_MAX_SUMMARY_LINES, _MAX_LINES = 10, 200
_ENTRY = "launcher.agent.stacks:take"
_PIECE_BYTES = 64 << 10
#: The largest answer of a host, in bytes for each of its tasks.
_MAX_TASK_BYTES = 256 << 10


class StackTaker:
    """Takes the stacks of tasks. Whoever asks for those of a task that are being taken gets the same ones.

    Args:
        loop: Drives it.
        run: Starts a program of ours as a child of the agent of a host, by entry and arguments.
    """

    def __init__(self, loop: EventLoop, run: Callable[[str, str, object], RemoteProgram]) -> None:
        self._loop, self._run = loop, run
        #: The tasks whose stacks are being taken.
        self.taking: set[TaskId] = set()
        #: The last stacks of each task.
        self._taken: dict[TaskId, Stacks] = {}
        #: The hosts whose turn has not come, with the pids of their tasks.
        self._waiting: deque[tuple[str, Mapping[TaskId, int]]] = deque()
        #: The hosts whose turn it is: the program is sent to them, or takes stacks there.
        self._dumps: set[_HostDump] = set()
        #: The program, compressed, and what hosts must know about it. Empty until it was first needed.
        self._program, self._facts = b"", dict[str, object]()

    def take(self, pids: Mapping[str, Mapping[TaskId, int]]) -> None:
        """Begin to take the stacks of tasks, except of those whose stacks are being taken already.

        Args:
            pids: The pid of each task, by the names of their hosts.
        """
        for host, on_host in pids.items():
            if wanted := {task: pid for task, pid in on_host.items() if task not in self.taking}:
                self.taking.update(wanted)
                self._waiting.append((host, wanted))
        # The program has megabytes, so a thread reads and compresses it while the loop goes on.
        self._loop.run_in_thread(read_program, self._on_program)

    def groups(self, tasks: Iterable[TaskId]) -> list[Stacks]:
        """Return the stacks that were taken of these tasks, with equal ones folded."""
        known = (task for task in tasks if task in self._taken and task not in self.taking)
        return fold(map(self._taken.__getitem__, known))

    def describe(self, tasks: Iterable[TaskId]) -> tuple[list[str], str]:
        """Return where tasks are, for the user: a line for each group, and a text with all functions."""
        groups = [group for group in self.groups(tasks) if group.threads]
        lines = itertools.islice(stack_lines(groups), _MAX_LINES)
        return [*itertools.islice(summary_lines(groups), _MAX_SUMMARY_LINES)], "\n".join(lines)

    def give_up(self, note: str = "there was no time for it") -> None:
        """Give up what is under way, so that commands to the hosts need not wait for it."""
        while self._waiting:
            self._keep(_without_stacks(self._waiting.popleft()[1], note))
        for dump in [*self._dumps]:
            dump.finish(note)

    def _on_program(self, reading: Future[tuple[bytes, dict[str, object]]]) -> None:
        """Begin with the hosts that wait for the program, or note why there is none."""
        try:
            self._program, self._facts = reading.result()
            self._start()
        except (LaunchError, OSError) as error:
            self.give_up(str(error))

    def _start(self) -> None:
        """Ask hosts that wait, as many as may be asked at a time."""
        while self._waiting and len(self._dumps) < _MAX_HOSTS_AT_ONCE:
            host, pids = self._waiting.popleft()
            try:
                program = self._run(host, _ENTRY, {**self._facts, "tasks": pids, "seconds": _SECONDS_THERE})
            except TransportError as error:
                self._keep(_without_stacks(pids, str(error)))
                continue
            self._dumps.add(_HostDump(self._loop, program, self._program, pids, self._on_done))

    def _on_done(self, dump: _HostDump, stacks: Mapping[TaskId, Stacks]) -> None:
        """Keep what a host has answered, and ask the next one."""
        self._dumps.discard(dump)
        self._keep(stacks)
        self._start()

    def _keep(self, stacks: Mapping[TaskId, Stacks]) -> None:
        """Keep the stacks of tasks, or the notes why there are none."""
        self._taken.update(stacks)
        self.taking.difference_update(stacks)


class _HostDump:
    """A program of ours on a host that takes the stacks of tasks there, driven by the loop.

    Args:
        loop: Drives it.
        program: The program, which reads py-spy from its stdin.
        content: What is sent to it.
        tasks: The tasks.
        on_done: Called once at the end, with the stacks of all these tasks, or notes why there are none.
    """

    def __init__(
        self,
        loop: EventLoop,
        program: RemoteProgram,
        content: bytes,
        tasks: Collection[TaskId],
        on_done: Callable[[_HostDump, Mapping[TaskId, Stacks]], None],
    ) -> None:
        self.tasks = frozenset(tasks)
        self._loop, self._program, self._on_done = loop, program, on_done
        #: The rest of the program that was not sent yet, and the part of the answer that has arrived.
        self._unsent, self._answer = memoryview(content), b""
        #: Ends the wait for the answer. None if this has finished.
        self._timer: TimerHandle | None = loop.call_at(
            time.monotonic() + _HOST_SECONDS, lambda: self.finish(f"no answer within {_HOST_SECONDS:g}s")
        )
        loop.watch(program.fileno(), self._continue)
        loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Send a piece of py-spy, and read what has come of the answer."""
        if self._timer is None:  # It has finished.
            return
        try:
            with suppress(TransportError):  # The program has ended, perhaps with an answer.
                while sent := self._program.send(self._unsent[:_PIECE_BYTES]):
                    self._unsent = self._unsent[sent:]
            while data := self._program.recv(_PIECE_BYTES):
                self._answer += data
            if data == b"":  # The end of the output. It is None if nothing more has arrived yet.
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
        stacks = _without_stacks(self.tasks, note)
        with suppress(ValueError, RecursionError, TypeError, ProtocolError):  # It has not come, or is wrong.
            reader = FieldReader(tasks=self.tasks)
            for each in [Stacks(*reader.read(Stacks, fields)) for fields in json.loads(self._answer)]:
                stacks.update((task, replace(each, tasks=(task,))) for task in each.tasks)
        self._on_done(self, stacks)


def _without_stacks(tasks: Iterable[TaskId], note: str) -> dict[TaskId, Stacks]:
    """Return the note why there are no stacks of tasks, for each of them."""
    return {task: Stacks((task,), note=note) for task in tasks}


@functools.cache
def read_program() -> tuple[bytes, dict[str, object]]:
    """Return the program of py-spy, compressed, and what hosts must know about it. This blocks.

    It is read once in a process, because to compress 8 MB takes a while.

    Raises:
        LaunchError: There is none.
        OSError: It cannot be read.
    """
    with open(program_path(), "rb") as file:
        content = file.read()
    compressed, sha256 = zlib.compress(content, 1), hashlib.sha256(content).hexdigest()
    return compressed, {"size": len(compressed), "sha256": sha256, "machine": os.uname().machine}
