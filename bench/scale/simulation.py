"""One launch with simulated hosts: its launcher, and the processes that play the agents.

``python -m bench.scale`` makes one for each case. It leaves no process behind, even if the launch fails.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import processes

_HERE = Path(__file__).resolve().parent
_SIMULATORS = 2
#: With more tasks, hosts have addresses of three letters, because the variable CLUSTER_SPEC is limited to
#: 128 KiB.
_MANY_TASKS = 4000
#: Seconds between two checks of a process.
POLL_SECONDS = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")

#: Measured numbers by name. The end of a name is the unit.
Values = dict[str, float]


class Late(Exception):
    """A step of a case has taken longer than its limit."""


class Fault(Exception):
    """Launch has done what it must never do."""


class Size(NamedTuple):
    """The size of a job: the number of hosts, and that of tasks on each."""

    hosts: int
    tasks: int

    def __str__(self) -> str:
        return f"{self.hosts}x{self.tasks}"

    @property
    def all_tasks(self) -> int:
        """The number of tasks on all hosts."""
        return self.hosts * self.tasks

    def hostfile(self) -> str:
        """Return the hostfile, which has a line for each host."""
        short = self.all_tasks > _MANY_TASKS
        return "".join(
            f"n{n:04} slots={self.tasks}{f' address={_letters(n)}' if short else ''}\n"
            for n in range(self.hosts)
        )


def _letters(number: int) -> str:
    """Return a number as three letters."""
    return "".join(chr(97 + number // 26**place % 26) for place in (2, 1, 0))


class Simulation:
    """A launcher and its simulators, all of which are started.

    Args:
        size: The size of the job.
        folder: A new folder for the files.
        latency: How many seconds a message takes to a host.
        limit: The time limit for a step, in seconds.
    """

    def __init__(self, size: Size, folder: Path, latency: float, limit: float) -> None:
        self.size, self.run, self.limit = size, folder / "run", limit
        (folder / "sockets").mkdir()
        (folder / "hosts").write_text(size.hostfile())
        self._simulators = [
            subprocess.Popen(
                [sys.executable, "-I", _HERE / "agents.py", folder / "sockets" / str(n), str(latency)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(_SIMULATORS)
        ]
        for simulator in self._simulators:
            assert simulator.stdout is not None
            simulator.stdout.readline()
        words = f"--simulated sockets --hosts hosts --run-dir run --workers {size.all_tasks} -- true".split()
        self._errors = folder / "errors"
        with open(folder / "output", "wb") as output, self._errors.open("wb") as errors:
            self.began = time.monotonic()
            self.process = subprocess.Popen(
                [sys.executable, "-I", _HERE / "simulated.py", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                cwd=folder,
            )
        #: Steps that took too long, and what must never happen, after which the case continues.
        self.notes: list[str] = []
        self.faults: list[str] = []
        #: The largest resident size in bytes, and the largest number of threads, so far.
        self.memory = self.threads = 0
        #: The number of tasks that have started by ``events.jsonl``, and how many bytes of it were read.
        self.started, self._read = 0, 0
        self._usage: resource.struct_rusage | None = None

    def close(self) -> None:
        """Kill the launcher and the simulators, whatever they do."""
        if self._usage is None:
            processes.finish(self.process)
        for simulator in self._simulators:
            assert simulator.stdin is not None and simulator.stdout is not None
            simulator.kill()
            simulator.wait()
            simulator.stdin.close()
            simulator.stdout.close()

    def order(self, *words: object) -> None:
        """Send an order to all simulators."""
        for simulator in self._simulators:
            assert simulator.stdin is not None
            simulator.stdin.write(" ".join(map(str, words)) + "\n")
            simulator.stdin.flush()

    def look(self) -> list[Values]:
        """Return what each simulator has seen, as `bench.scale.agents.Simulator.look` describes it."""
        self.order("look")
        return [json.loads(simulator.stdout.readline()) for simulator in self._simulators if simulator.stdout]

    def cpu(self) -> float:
        """Return the CPU seconds of the launcher so far, including those of ended threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def wait(self, step: str, condition: Callable[[], bool], pause: float = POLL_SECONDS) -> float:
        """Wait until a condition holds, and return how many seconds that took.

        Args:
            step: The name of the step, for messages.
            condition: The condition.
            pause: Seconds between two checks.

        Raises:
            Late: The condition does not hold within the limit.
            Fault: The launcher has exited.
        """
        began = time.monotonic()
        while not condition():
            self._sample()
            if processes.ended(self.process, pause) and not condition():
                raise Fault(f"{step}: launch has exited with {self._exit()[0]}: {self._last_error()}")
            if time.monotonic() > began + self.limit:
                raise Late(f"{step}: not in {self.limit:.0f} s")
        self._sample()
        return time.monotonic() - began

    def _sample(self) -> None:
        """Note the memory and the threads of the launcher, if they are larger than before."""
        memory, threads = status_of(self.process.pid)
        self.memory, self.threads = max(self.memory, memory), max(self.threads, threads)

    def all_running(self) -> bool:
        """Return whether every task has started, according to the events that the launcher has written."""
        try:
            with open(self.run / "events.jsonl", "rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return False
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        self.started += whole.count(b'"state": "running"')
        return self.started >= self.size.all_tasks

    def all_taken(self) -> bool:
        """Return whether nothing is left to print, and the launcher has acknowledged all messages."""
        return not any(seen["left"] or seen["waiting"] for seen in self.look())

    def expect(self, code: int, step: str) -> float:
        """Wait until the launcher exits, and return its CPU seconds.

        Args:
            code: The expected exit code.
            step: The name of the step, for messages.

        Raises:
            Late: It does not exit within the limit.
            Fault: It exits with another code.
        """
        until = time.monotonic() + self.limit
        while not processes.ended(self.process, POLL_SECONDS):
            self._sample()
            if time.monotonic() > until:
                raise Late(f"{step}: not in {self.limit:.0f} s")
        got, cpu = self._exit()
        if got != code:
            raise Fault(f"{step}: launch exited with {got}, not {code}: {self._last_error()}")
        return cpu

    def _exit(self) -> tuple[int, float]:
        """Return the exit code of the launcher, which has exited, and its CPU seconds."""
        if self._usage is None:
            _, status, self._usage = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
        return self.process.returncode, self._usage.ru_utime + self._usage.ru_stime

    def _last_error(self) -> str:
        """Return the last line that the launcher has printed on stderr."""
        return (self._errors.read_text(errors="replace").splitlines() or ["nothing on stderr"])[-1][:300]


def status_of(pid: int) -> tuple[int, int]:
    """Return the largest resident size of a process so far in bytes, and the number of its threads.

    Both are 0 if the process has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields.get("VmHWM", "0").split()[0]) * 1024, int(fields["Threads"])


@contextmanager
def simulation(size: Size, scratch: Path, latency: float, limit: float) -> Iterator[Simulation]:
    """Start a launch with simulated hosts, and return a context with it once all its tasks run.

    Args:
        size: The size of the job.
        scratch: A folder for temporary files.
        latency: How many seconds a message takes to a host.
        limit: The time limit for a step, in seconds.
    """
    folder = scratch / "case"
    folder.mkdir()
    try:
        run = Simulation(size, folder, latency, limit)
        try:
            run.wait("start", run.all_running)
            yield run
        finally:
            run.close()
    finally:
        shutil.rmtree(folder)
