"""Measures what the tasks of a host use: memory, CPU time and GPUs of all their processes.

The agent calls `Measurements`, which must never block. Children of the agent run ``nvidia-smi``, because that
may take seconds.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Collection, Dict, List, Optional, Sequence, Tuple

from launcher.agent import host, lookup, processes
from launcher.agent.connection import LauncherConnection
from launcher.agent.processes import Process
from launcher.agent.remote_programs import Children
from launcher.agent.stopping import RunningTask
from launcher.common import events
from launcher.common.cluster import TaskId

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: The shortest time between two calls of ``nvidia-smi``, each of which may cost 0.1 s of CPU time.
_MIN_GPU_SECONDS = 5.0
_GPUS_QUERY = "--query-gpu=index,uuid,utilization.gpu"
_GPU_PROCESSES_QUERY = "--query-compute-apps=pid,gpu_uuid,used_memory"

#: Returns the tasks with all their living processes.
ListProcesses = Callable[[], Sequence[Tuple[RunningTask, List[Process]]]]


class Measurements:
    """Measures what the tasks use, when and as often as the launcher wants to know it.

    Args:
        children: Runs ``nvidia-smi``.
        list_processes: Finds the processes of the tasks.
        connection: The connection to the launcher.
    """

    def __init__(
        self, children: Children, *, list_processes: ListProcesses, connection: LauncherConnection
    ) -> None:
        """Prepare to measure. Nothing is measured until the launcher asks for it."""
        self._list_processes = list_processes
        self._connection = connection
        #: The seconds between two measurements, and when the next one is due (monotonic).
        self._every = 0.0
        self._due: Optional[float] = None
        #: What is known about the use of GPUs.
        self._gpus = GpuUse(children)

    def measure(self, command: events.Measure) -> None:
        """Measure at once, or from now on every ``command.every`` seconds if that is not 0."""
        if not command.every:
            self._connection.send(self._measured(self._list_processes()))
            return
        self._every = command.every
        # The hosts of a large job, which all get the command now, must not answer all at the same moment.
        self._due = time.monotonic() + self._every * (os.urandom(1)[0] + 1) / 256

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it never is."""
        return self._due

    def on_time(self, now: float) -> None:
        """Measure if that is due, unless there is no task.

        Args:
            now: The time (monotonic).
        """
        if self._due is None or self._due > now:
            return
        self._due = now + self._every
        tasks = self._list_processes()
        if tasks:
            self._connection.send_with_next(self._measured(tasks))
            self._gpus.refresh(now)

    def _measured(self, tasks: Sequence[Tuple[RunningTask, List[Process]]]) -> events.Measured:
        """Return what the processes of the tasks use."""
        memory: Dict[TaskId, int] = {}
        cpu: Dict[TaskId, float] = {}
        gpu: Dict[TaskId, float] = {}
        gpu_memory: Dict[TaskId, int] = {}
        for task, members in tasks:
            memory[task.id] = sum(processes.resident(process.pid) for process in members)
            cpu[task.id] = sum(process.cpu for process in members) / _TICKS_PER_SECOND
            use, used_bytes = self._gpus.of(task.gpus, {process.pid for process in members})
            if use is not None:
                gpu[task.id] = use
            if used_bytes:
                gpu_memory[task.id] = used_bytes
        return events.Measured("", events.now(), memory, cpu, gpu, gpu_memory)


class GpuUse:
    """The use of the GPUs of this host, as ``nvidia-smi`` has told it a moment ago.

    Args:
        children: Runs ``nvidia-smi``.
    """

    def __init__(self, children: Children) -> None:
        """Know nothing about GPUs at first."""
        self._children = children
        #: When to ask again (monotonic). It is None while the program runs, and if it does not work here.
        self._due: Optional[float] = 0.0
        #: How busy each GPU is in percent, by its id (``GPU-...``), and the ids by the numbers of the GPUs.
        self._busy: Dict[str, float] = {}
        self._ids: Dict[str, str] = {}
        #: The processes that use GPUs: pid, id of the GPU, and bytes.
        self._users: List[Tuple[int, str, int]] = []

    def refresh(self, now: float) -> None:
        """Ask ``nvidia-smi`` for the present use, if it has not been asked for some seconds.

        Args:
            now: The time (monotonic).
        """
        if self._due is None or self._due > now:
            return
        self._due = None
        if lookup.is_command(host.NVIDIA_SMI[0]):
            self._ask(_GPUS_QUERY, self._on_gpus)

    def _ask(self, query: str, on_answer: Callable[[bytes], None]) -> None:
        """Let a child ask ``nvidia-smi``."""
        # Without a process for it, no more is found out about GPUs.
        with suppress(OSError):
            self._children.ask(
                partial(host.become_nvidia_smi, query, ",nounits"),
                host.GPU_TIMEOUT_SECONDS,
                on_answer=on_answer,
            )

    def _on_gpus(self, answer: bytes) -> None:
        """Note how busy the GPUs are, and ask for their processes. Without GPUs nothing is asked again."""
        self._busy, self._ids = {}, {}
        for number, gpu, busy in _rows(answer):
            self._ids[number] = gpu
            # A GPU may not tell it, as "[N/A]".
            if busy.isdigit():
                self._busy[gpu] = min(100.0, float(busy))
        if self._ids:
            self._ask(_GPU_PROCESSES_QUERY, self._on_users)

    def _on_users(self, answer: bytes) -> None:
        """Note which processes use GPUs."""
        self._users = [
            (int(pid), gpu, int(size) << 20 if size.isdigit() else 0)
            for pid, gpu, size in _rows(answer)
            if pid.isdigit()
        ]
        self._due = time.monotonic() + _MIN_GPU_SECONDS

    def of(self, assigned: str, pids: Collection[int]) -> Tuple[Optional[float], int]:
        """Return how busy the GPUs of a task are in percent, and how many bytes it uses on them.

        Args:
            assigned: The GPUs of the task as in ``CUDA_VISIBLE_DEVICES``. If it is empty, the GPUs that the
                task uses count.
            pids: The processes of the task. The driver may know those of a container by other numbers.

        Returns:
            The two numbers. None and 0 if the task has no GPU or nothing is known.
        """
        used = [(gpu, size) for pid, gpu, size in self._users if pid in pids]
        names = [self._ids.get(name, name) for name in assigned.split(",")] if assigned else ()
        busy = [self._busy[gpu] for gpu in names or {gpu for gpu, _ in used} if gpu in self._busy]
        return sum(busy) / len(busy) if busy else None, sum(size for _, size in used)


def _rows(answer: bytes) -> List[List[str]]:
    """Return the rows of three columns that ``nvidia-smi`` has printed. Messages are left out."""
    lines = answer.decode("utf-8", "replace").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [row for row in rows if len(row) == 3 and row[0].isdigit()]
