"""Samples of tasks: ``launch ps``, the file, ``--no-samples``, and GPUs by a simulated ``nvidia-smi``."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.job import RunPaths
from launcher.runs.samples import SampleReader
from tests.conftest import Launch, executable
from tests.seeing import last_run, soon

BUSY = """\
import itertools, os, pathlib, time
pathlib.Path(os.environ["PID"]).write_text(str(os.getpid()))
for step in itertools.count():
    print(f"step {step}/5000 loss 0.5", flush=True)
    time.sleep(0.01)
"""
#: GPU 1 is busy, and the task, whose pid is in a file, uses 300 MiB of it.
NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
*--query-gpu=index,uuid*) printf '0, GPU-aa, 0\\n1, GPU-bb, 90\\n' ;;
*--query-compute-apps*) echo "$(cat $PID), GPU-bb, 300" ;;
*) printf '0, Simulated, 1 MiB\\n1, Simulated, 1 MiB\\n' ;;
esac
"""


def tasks_of(launch: Launch) -> list[dict[str, Any]]:
    """The tasks of the newest run, as ``launch ps --json`` has them."""
    tasks: list[dict[str, Any]] = json.loads(launch.here("ps", "latest", "--json").out)
    return tasks


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").exists(), reason="this machine has GPUs of its own")
@pytest.mark.promise("`launch ps RUN`: steps, CPU, GPUs of tasks; `samples.jsonl`")
def test_steps_and_use_of_a_task(launch: Launch, tmp_path: Path):
    pid_file = tmp_path / "pid"
    command = executable(tmp_path / "bin" / "nvidia-smi", NVIDIA_SMI)
    env = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PID": str(pid_file)}
    started = launch.start("--workers", "1", "--gpus", "1", "--", sys.executable, "-c", BUSY, env=env)
    started.until(lambda it: "step 1/" in it.out)

    def measured() -> list[dict[str, Any]]:
        return [task for task in tasks_of(launch) if task["steps_per_s"] and task["gpu_memory"]]

    (task,) = soon(measured)
    assert task["total"] == 5000 and task["metrics"] == {"loss": 0.5}
    assert 0 < task["seconds_left"] < 5000 and 1 < task["steps_per_s"] < 110
    assert 0 < task["cpu"] < 2 and 1 << 20 < task["memory"] < 1 << 30
    # Launch has assigned GPU 0, whatever the task uses.
    assert (task["gpu"], task["gpu_memory"]) == (0.0, 300 << 20)
    shown = launch.here("ps", "latest").out
    assert "STEPS/S" in shown and "/5000" in shown and " 0%" in shown
    reader = SampleReader(RunPaths(str(last_run(launch).path)))
    assert reader.read() and reader.series["worker/0"][-1].attempt == 1
    assert started.stop(signal.SIGINT).code == 130


def test_no_samples(launch: Launch):
    started = launch.start("--workers", "1", "--no-samples", "--", "sh", "-c", "echo step 1; sleep 60")
    started.until(lambda it: "step 1" in it.out)
    (task,) = tasks_of(launch)
    assert task["memory"] > 1 << 10 and task["step"] is None and task["cpu"] is None
    assert not os.path.exists(last_run(launch).path / "samples.jsonl")
    assert started.stop(signal.SIGINT).code == 130
