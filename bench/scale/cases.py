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
from bench.scale.simulation import LOOK, Fault, Simulation, Values, status_of

#: Seconds to come to rest; to measure idle, and ``launch attach``.
_SETTLE, _IDLE = 2.0, 5.0
#: Lines a second of all tasks together, and where each is a message; seconds of output, and before a failure.
LINES, SINGLE_LINES, _PRINTING, _WARM = 100_000, 20_000, 5, 2.0


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
    run.order("print", LINES / run.size.all_tasks, 1 << 30, 0)
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
    """All tasks print for some seconds, each twice a second; every line must be in its log."""
    values["lines_per_s"], values["us_per_line"] = _output(run, LINES, single=False)


def output_single(run: Simulation, values: Values) -> None:
    """The same, where each line is written, and sent, by itself."""
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
    """Let all tasks print so many lines a second; lines a second taken, and CPU microseconds for each."""
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
        memory = _watch(process, run.limit)
        seconds = time.monotonic() - began
        code, cpu = _finish(process)
    if code == -signal.SIGKILL:
        run.notes.append(f"launch {name}: not in {run.limit:.0f} s")
    elif _is_right(run, path, code, 0):
        values |= {f"{name}_s": seconds, f"{name}_cpu_s": cpu, f"{name}_rss_bytes": memory}


def _attach(run: Simulation, values: Values) -> None:
    """``launch attach`` for some seconds in which the tasks print nothing, then Ctrl-C."""
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
    """Whether a command has exited as it should and printed a line for each task; if not, note that."""
    text = output.read_text(errors="replace")
    right = code == expected and text.count("worker/") >= run.size.all_tasks
    if not right:
        last = (text.splitlines() or ["nothing"])[-1][:300]
        run.faults.append(f"launch {output.name} exited with {code}, and printed last: {last}")
    return right


def _watch(process: subprocess.Popen[bytes], limit: float) -> int:
    """Wait until a command exits, or for so many seconds; its largest resident size so far."""
    until, memory = time.monotonic() + limit, 0
    while time.monotonic() < until:
        memory = max(memory, status_of(process.pid)[0])
        if processes.ended(process, LOOK):
            break
    return memory


def _finish(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """End a command; its exit code, and its CPU seconds."""
    os.kill(process.pid, signal.SIGKILL)  # `Popen.kill` would take its status
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime
