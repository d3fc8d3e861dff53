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
#: Above so many tasks hosts have addresses of three letters: CLUSTER_SPEC is a variable, and has 128 KiB.
_MANY_TASKS = 4000
#: Seconds between two looks at a process.
LOOK = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")

#: Numbers by name; the end of a name is the unit.
Values = dict[str, float]


class Late(Exception):
    """A step took longer than its limit."""


class Fault(Exception):
    """Launch did what it must never do."""


class Size(NamedTuple):
    """So many hosts, each with so many tasks."""

    hosts: int
    tasks: int

    def __str__(self) -> str:
        return f"{self.hosts}x{self.tasks}"

    @property
    def all_tasks(self) -> int:
        """Tasks on all hosts."""
        return self.hosts * self.tasks

    def hostfile(self) -> str:
        """A line for each host."""
        short = self.all_tasks > _MANY_TASKS
        return "".join(
            f"n{n:04} slots={self.tasks}{f' address={_letters(n)}' if short else ''}\n"
            for n in range(self.hosts)
        )


def _letters(number: int) -> str:
    return "".join(chr(97 + number // 26**place % 26) for place in (2, 1, 0))


class Simulation:
    """A launcher and its simulators, all started.

    Args:
        size: of the job.
        folder: a new one.
        latency: seconds each way.
        limit: seconds that a step may take.
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
        #: What took too long, and what must never be, of steps after which the case goes on.
        self.notes: list[str] = []
        self.faults: list[str] = []
        #: Largest so far: resident bytes, and number of threads.
        self.memory = self.threads = 0
        #: Tasks that ``events.jsonl`` says are started; what of it was read.
        self.started, self._read = 0, 0
        self._usage: resource.struct_rusage | None = None

    def close(self) -> None:
        """End the launcher and the simulators, whatever they do."""
        if self._usage is None:
            processes.finish(self.process)
        for simulator in self._simulators:
            assert simulator.stdin is not None and simulator.stdout is not None
            simulator.kill()
            simulator.wait()
            simulator.stdin.close()
            simulator.stdout.close()

    def order(self, *words: object) -> None:
        """Give all simulators an order."""
        for simulator in self._simulators:
            assert simulator.stdin is not None
            simulator.stdin.write(" ".join(map(str, words)) + "\n")
            simulator.stdin.flush()

    def look(self) -> list[Values]:
        """What each simulator sees, see `bench.scale.agents.Simulator.look`."""
        self.order("look")
        return [json.loads(simulator.stdout.readline()) for simulator in self._simulators if simulator.stdout]

    def cpu(self) -> float:
        """CPU seconds of the launcher so far, those of ended threads too."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def wait(self, step: str, condition: Callable[[], bool], pause: float = LOOK) -> float:
        """Wait for a condition; the seconds that took.

        Raises:
            Late: it did not come within the limit.
            Fault: the launcher has exited.
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
        memory, threads = status_of(self.process.pid)
        self.memory, self.threads = max(self.memory, memory), max(self.threads, threads)

    def all_running(self) -> bool:
        """Whether the launcher knows that every task has started: it writes that to ``events.jsonl``."""
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
        """Whether nothing is left to print, and the launcher has taken all messages."""
        return not any(seen["left"] or seen["waiting"] for seen in self.look())

    def expect(self, code: int, step: str) -> float:
        """Wait for the end of the launcher with this exit code; its CPU seconds from its start.

        Raises:
            Late: it did not end within the limit.
            Fault: it ended with another code.
        """
        until = time.monotonic() + self.limit
        while not processes.ended(self.process, LOOK):
            self._sample()
            if time.monotonic() > until:
                raise Late(f"{step}: not in {self.limit:.0f} s")
        got, cpu = self._exit()
        if got != code:
            raise Fault(f"{step}: launch exited with {got}, not {code}: {self._last_error()}")
        return cpu

    def _exit(self) -> tuple[int, float]:
        """The exit code of the launcher, which has ended, and its CPU seconds."""
        if self._usage is None:
            _, status, self._usage = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
        return self.process.returncode, self._usage.ru_utime + self._usage.ru_stime

    def _last_error(self) -> str:
        """The last line that the launcher printed on stderr."""
        return (self._errors.read_text(errors="replace").splitlines() or ["nothing on stderr"])[-1][:300]


def status_of(pid: int) -> tuple[int, int]:
    """The largest resident size so far, in bytes, and the number of threads; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields.get("VmHWM", "0").split()[0]) * 1024, int(fields["Threads"])


@contextmanager
def simulation(size: Size, scratch: Path, latency: float, limit: float) -> Iterator[Simulation]:
    """A launch whose tasks all run."""
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
