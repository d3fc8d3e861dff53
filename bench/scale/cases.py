"""The cases of the bench: each is a launch of its own, with simulators of its own.

``python -m bench.scale`` runs them one after the other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from bench import processes
from bench.scale import agents
from bench.scale.simulation import POLL_SECONDS, Fault, Simulation, Values, status_of

#: Seconds in which a launch comes to rest.
_SETTLE = 2.0
#: Seconds in which the idle launcher, and ``launch attach``, are measured.
_IDLE = 5.0
#: Lines a second of all tasks together, and the same where each line is a message of its own.
LINES, SINGLE_LINES = 100_000, 20_000
#: Seconds in which tasks print.
_PRINTING = 5
#: Seconds in which tasks print before one of them fails.
_WARM = 2.0


def start(run: Simulation, values: Values) -> None:
    """Measure the start until all tasks run, the idle launcher, commands about the run, and its end."""
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
    """Measure the time from the failure of one task until the last host has received StopTasks."""
    time.sleep(_SETTLE)
    values["stop_s"] = _fail(run)


def fail_printing(run: Simulation, values: Values) -> None:
    """Measure the same as `fail` while all tasks print."""
    run.order("print", LINES / run.size.all_tasks, 1 << 30, 0)
    time.sleep(_WARM)
    values["stop_printing_s"] = _fail(run)


def fail_all(run: Simulation, values: Values) -> None:
    """Measure the time from the failure of all tasks to the end of the launcher."""
    time.sleep(_SETTLE)
    before, began = run.cpu(), time.monotonic()
    run.order("fail")
    cpu = run.expect(agents.CODE, "failure of all")
    values["all_fail_s"], values["all_fail_cpu_s"] = time.monotonic() - began, cpu - before


def output(run: Simulation, values: Values) -> None:
    """Measure the output of all tasks, each of which writes twice a second. Every line must be in its log."""
    values["lines_per_s"], values["us_per_line"] = _output(run, LINES, single=False)


def output_single(run: Simulation, values: Values) -> None:
    """Measure the same as `output` where each line is written, and sent, by itself."""
    values["single_lines_per_s"], values["us_per_single_line"] = _output(run, SINGLE_LINES, single=True)


CASES = {
    "start": start,
    "fail": fail,
    "fail while printing": fail_printing,
    "fail all": fail_all,
    "output": output,
    "output line by line": output_single,
}


def _output(run: Simulation, lines: int, single: bool) -> tuple[float, float]:
    """Let all tasks print for some seconds, and check every log.

    Args:
        run: The launch.
        lines: The lines a second of all tasks together.
        single: Whether each line is a message of its own.

    Returns:
        The lines that the launcher has received in a second, and its CPU microseconds for each line.

    Raises:
        Fault: A log is not what its task has printed.
    """
    each = lines * _PRINTING // run.size.all_tasks
    run.wait("start", run.all_taken)
    before, began = run.cpu(), time.monotonic()
    run.order("print", each / _PRINTING, each, int(single))
    run.wait("output", run.all_taken, pause=0.1)
    seconds, cpu = time.monotonic() - began, run.cpu() - before
    run.order("end")
    run.expect(0, "end")
    wrong = [task for task in range(run.size.all_tasks) if not _is_whole(run.run, task, each)]
    if wrong:
        raise Fault(f"output: {len(wrong)} logs are not what their tasks printed: worker/{wrong[0]}")
    return each * run.size.all_tasks / seconds, 1e6 * cpu / (each * run.size.all_tasks)


def _is_whole(run: Path, number: int, count: int) -> bool:
    """Return whether the log of a task is what the task has printed."""
    name = f"worker/{number}"
    log = (run / "logs" / f"worker-{number}.log").read_bytes()
    return log == agents.lines(name, 0, agents.FIRST_LINES + count)


def _fail(run: Simulation) -> float:
    """Let one task fail, and return the seconds until each host with another task has received StopTasks."""
    number = run.size.all_tasks // 2
    run.order("fail", f"worker/{number}")
    hosts = run.size.hosts - (run.size.tasks == 1)
    seen: list[Values] = []

    def stopped() -> bool:
        """Return whether all these hosts have received it."""
        seen[:] = run.look()
        return sum(one["stopped"] for one in seen) >= hosts

    run.wait("stop", stopped, pause=0.1)
    seconds = max(one["stopped_at"] for one in seen) - max(one["failed_at"] for one in seen)
    run.expect(agents.CODE, "end after a failure")
    return seconds


# ---------------------------------------------------------------------- commands about a run


def _launch(words: Sequence[object], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command of launch, such as ``ps``."""
    argv = [sys.executable, "-I", "-m", "launcher", *map(str, words)]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=nothing, stdout=output, stderr=output, start_new_session=True)


def _command(run: Simulation, name: str, words: Sequence[str], values: Values) -> None:
    """Measure a command about the run, and check what it prints.

    Args:
        run: The launch.
        name: The command, ``ps`` or ``logs``.
        words: Its arguments after the run.
        values: Receives its seconds, its CPU seconds and its largest resident size.
    """
    path = run.run.parent / name
    with path.open("wb") as output:
        began = time.monotonic()
        process = _launch([name, run.run, *words], output)
        memory = _watch(process, run.limit)
        seconds = time.monotonic() - began
        code, cpu = _finish(process)
    if code == -signal.SIGKILL:
        run.notes.append(f"launch {name}: not in {run.limit:.0f} s")
    elif _is_right(run, path, code, 0):
        values |= {f"{name}_s": seconds, f"{name}_cpu_s": cpu, f"{name}_rss_bytes": memory}


def _attach(run: Simulation, values: Values) -> None:
    """Measure ``launch attach`` for some seconds in which the tasks print nothing, and end it by Ctrl-C."""
    path = run.run.parent / "attach"
    with path.open("wb") as output:
        process = _launch(["attach", run.run], output)
        memory = _watch(process, _IDLE)
        os.kill(process.pid, signal.SIGINT)
        memory = max(memory, _watch(process, run.limit))
        code, cpu = _finish(process)
    if _is_right(run, path, code, 130):
        values |= {"attach_cpu_s": cpu, "attach_rss_bytes": memory}


def _is_right(run: Simulation, output: Path, code: int, expected: int) -> bool:
    """Return whether a command has exited as it should and printed a line for each task.

    If it has not, a fault is added.
    """
    text = output.read_text(errors="replace")
    right = code == expected and text.count("worker/") >= run.size.all_tasks
    if not right:
        last = (text.splitlines() or ["nothing"])[-1][:300]
        run.faults.append(f"launch {output.name} exited with {code}, and printed last: {last}")
    return right


def _watch(process: subprocess.Popen[bytes], limit: float) -> int:
    """Wait until a command exits, but at most a number of seconds, and return its largest resident size."""
    until, memory = time.monotonic() + limit, 0
    while time.monotonic() < until:
        memory = max(memory, status_of(process.pid)[0])
        if processes.ended(process, POLL_SECONDS):
            break
    return memory


def _finish(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Kill a command if it still runs, and return its exit code and its CPU seconds."""
    os.kill(process.pid, signal.SIGKILL)  # `Popen.kill` would take its status
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime
