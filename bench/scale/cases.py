"""The cases: each is a launch of its own, with simulators of its own."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from bench import processes
from bench.scale import agents

_HERE = Path(__file__).resolve().parent
_SIMULATORS = 2
#: Above so many tasks hosts have addresses of three letters: CLUSTER_SPEC is a variable, and has 128 KiB.
_MANY_TASKS = 4000
#: Seconds between two looks at the launcher; to come to rest; to measure idle, and ``launch attach``.
_LOOK, _SETTLE, _IDLE = 0.02, 2.0, 5.0
#: Lines a second of all tasks together, and for how many seconds; how long they print before one fails.
LINES, _PRINTING, _WARM = 100_000, 5, 2.0
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


# ---------------------------------------------------------------------- one launch


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
        words: list[str | Path] = [
            "--simulated",
            folder / "sockets",
            "--hosts",
            folder / "hosts",
            "--run-dir",
            self.run,
        ]
        words += ["--workers", str(size.all_tasks), "--", "true"]
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

    def wait(self, step: str, condition: Callable[[], bool], pause: float = _LOOK) -> float:
        """Wait for a condition; the seconds that took.

        Raises:
            Late: it did not come within the limit.
            Fault: the launcher has exited.
        """
        began = time.monotonic()
        while not condition():
            self._sample()
            if processes.ended(self.process, pause) and not condition():
                raise Fault(f"{step}: launch has exited with {self.exit()[0]}: {self.last_error()}")
            if time.monotonic() > began + self.limit:
                raise Late(f"{step}: not in {self.limit:.0f} s")
        self._sample()
        return time.monotonic() - began

    def _sample(self) -> None:
        memory, threads = _status(self.process.pid)
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
        self.started += whole.count(b'"TaskStarted"')
        return self.started >= self.size.all_tasks

    def all_taken(self) -> bool:
        """Whether nothing is left to print, and the launcher has taken all messages."""
        return not any(seen["left"] or seen["waiting"] for seen in self.look())

    def exited(self, step: str) -> tuple[int, float]:
        """Wait for the end of the launcher.

        Returns:
            Its exit code, and its CPU seconds from its start.

        Raises:
            Late: it did not end within the limit.
        """
        until = time.monotonic() + self.limit
        while not processes.ended(self.process, _LOOK):
            self._sample()
            if time.monotonic() > until:
                raise Late(f"{step}: not in {self.limit:.0f} s")
        return self.exit()

    def exit(self) -> tuple[int, float]:
        """The same when it has ended."""
        if self._usage is None:
            _, status, self._usage = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
        return self.process.returncode, self._usage.ru_utime + self._usage.ru_stime

    def last_error(self) -> str:
        """The last line that the launcher printed on stderr."""
        return (self._errors.read_text(errors="replace").splitlines() or ["nothing on stderr"])[-1][:300]

    def expect(self, code: int, step: str) -> float:
        """Wait for the end of the launcher with this exit code; its CPU seconds.

        Raises:
            Late: it did not end within the limit.
            Fault: it ended with another code.
        """
        got, cpu = self.exited(step)
        if got != code:
            raise Fault(f"{step}: launch exited with {got}, not {code}: {self.last_error()}")
        return cpu


def _status(pid: int) -> tuple[int, int]:
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


# ---------------------------------------------------------------------- cases


def start(run: Simulation, values: Values) -> None:
    """From the command to all tasks running; idle; commands about the run; its end."""
    values["start_s"], values["start_cpu_s"] = time.monotonic() - run.began, run.cpu()
    values["start_cpu_ms_a_host"] = 1000 * values["start_cpu_s"] / run.size.hosts
    values["start_simulators_cpu_s"] = sum(seen["cpu"] for seen in run.look())
    values["plan_bytes"] = (run.run / "plan.json").stat().st_size
    run.wait("start", run.all_taken)
    time.sleep(_SETTLE)
    before, began = processes.cpu_seconds(run.process.pid), time.monotonic()
    time.sleep(_IDLE)
    idle = processes.cpu_seconds(run.process.pid) - before
    values["idle_percent"] = 100 * idle / (time.monotonic() - began)
    values["rss_bytes"], values["threads"] = run.memory, run.threads
    _command(run, "ps", [], values)
    _command(run, "logs", ["-n", "1"], values)
    _attach(run, values)
    before, began = run.cpu(), time.monotonic()
    run.order("end")
    cpu = run.expect(0, "end")
    values["end_s"], values["end_cpu_s"] = time.monotonic() - began, cpu - before
    values["rss_bytes"] = max(values["rss_bytes"], run.memory)


def fail(run: Simulation, values: Values) -> None:
    """One task fails: from its exit to the last host's StopTasks."""
    time.sleep(_SETTLE)
    values["stop_s"] = _fail(run)


def fail_printing(run: Simulation, values: Values) -> None:
    """The same while all tasks print."""
    run.order("print", LINES / run.size.all_tasks, 1 << 30)
    time.sleep(_WARM)
    values["stop_printing_s"] = _fail(run)


def fail_all(run: Simulation, values: Values) -> None:
    """All tasks fail at once: from the first exit to the end of the launcher."""
    time.sleep(_SETTLE)
    before, began = run.cpu(), time.monotonic()
    run.order("fail")
    cpu = run.expect(agents.CODE, "failure of all")
    values["all_fail_s"], values["all_fail_cpu_s"] = time.monotonic() - began, cpu - before


def output(run: Simulation, values: Values) -> None:
    """All tasks print for some seconds; every line must be in its log."""
    each = LINES * _PRINTING // run.size.all_tasks
    run.wait("start", run.all_taken)
    before, began = run.cpu(), time.monotonic()
    run.order("print", each / _PRINTING, each)
    run.wait("output", run.all_taken, pause=0.1)
    values["lines_per_s"] = each * run.size.all_tasks / (time.monotonic() - began)
    values["us_per_line"] = 1e6 * (run.cpu() - before) / (each * run.size.all_tasks)
    run.order("end")
    run.expect(0, "end")
    wrong = [task for task in range(run.size.all_tasks) if not _is_whole(run.run, task, each)]
    if wrong:
        raise Fault(f"output: {len(wrong)} logs are not what their tasks printed: worker/{wrong[0]}")


CASES = {
    "start": start,
    "fail": fail,
    "fail while printing": fail_printing,
    "fail all": fail_all,
    "output": output,
}


def _is_whole(run: Path, number: int, count: int) -> bool:
    """Whether the log of a task is what the task printed."""
    name = f"worker/{number}"
    log = (run / "logs" / f"worker-{number}.log").read_bytes()
    return log == agents.lines(name, 0, agents.FIRST_LINES + count)


def _fail(run: Simulation) -> float:
    """One task in the middle fails; seconds until each host with another task has heard StopTasks."""
    number = run.size.all_tasks // 2
    run.order("fail", f"worker/{number}")
    hosts = run.size.hosts - (run.size.tasks == 1)
    seen: list[Values] = []

    def stopped() -> bool:
        seen[:] = run.look()
        return sum(one["stopped"] for one in seen) >= hosts

    run.wait("stop", stopped, pause=0.1)
    seconds = max(one["stopped_at"] for one in seen) - max(one["failed_at"] for one in seen)
    run.expect(agents.CODE, "end after a failure")
    return seconds


# ---------------------------------------------------------------------- commands about a run


def _launch(words: Sequence[object], output: IO[bytes]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", "-m", "launcher", *map(str, words)]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=nothing, stdout=output, stderr=output, start_new_session=True)


def _command(run: Simulation, name: str, words: Sequence[str], values: Values) -> None:
    """``launch ps`` or ``launch logs``: seconds, CPU seconds, largest resident size."""
    path = run.run.parent / name
    with path.open("wb") as output:
        began = time.monotonic()
        process = _launch([name, run.run, *words], output)
        in_time = _watch(process, run.limit, name, values)
        values[f"{name}_s"] = time.monotonic() - began
        code = _finish(process, name, values)
    text = path.read_text(errors="replace")
    if not in_time:
        run.notes.append(f"launch {name}: not in {run.limit:.0f} s")
    elif code or text.count("worker/") < run.size.all_tasks:
        run.faults.append(f"launch {name} exited with {code}: {(text.splitlines() or [''])[-1][:300]}")


def _attach(run: Simulation, values: Values) -> None:
    """``launch attach`` for some seconds in which the tasks print nothing, then Ctrl-C."""
    with (run.run.parent / "attach").open("wb") as output:
        process = _launch(["attach", run.run], output)
        _watch(process, _IDLE, "attach", values)
        os.kill(process.pid, signal.SIGINT)
        _watch(process, run.limit, "attach", values)
        code = _finish(process, "attach", values)
    if code != 130:
        run.faults.append(f"launch attach exited with {code}, not 130")


def _watch(process: subprocess.Popen[bytes], limit: float, name: str, values: Values) -> bool:
    """Note the largest resident size of a command until it exits; whether it did within the limit."""
    until, key = time.monotonic() + limit, f"{name}_rss_bytes"
    while time.monotonic() < until:
        values[key] = max(values.get(key, 0), _status(process.pid)[0])
        if processes.ended(process, _LOOK):
            return True
    return False


def _finish(process: subprocess.Popen[bytes], name: str, values: Values) -> int:
    """End a command; its exit code."""
    os.kill(process.pid, signal.SIGKILL)  # `Popen.kill` would take its status
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    values[f"{name}_cpu_s"] = usage.ru_utime + usage.ru_stime
    return process.returncode
