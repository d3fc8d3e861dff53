"""Measures goodput: how long a training takes without kills, as a part of its time with a kill every 30 s.

`bench.run` calls `measure`. It trains with TensorFlow under launch, and with PyTorch under torchrun.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench import peers, processes, tables
from bench.setting import Setting

_PROGRAMS = Path(__file__).resolve().parent / "programs"
_WORKERS = 2
#: The number of steps, each of 50 ms.
_STEPS, _QUICK_STEPS = 2400, 900
#: Seconds from one kill to the next.
_PAUSE = 30.0
#: The time limit in seconds for one training, and for its first step.
_TIME_LIMIT = 400.0
#: The largest number of restarts in one training.
_RESTARTS = 50


class Trainer(NamedTuple):
    """A launcher with its training."""

    name: str
    #: Returns the command line for a folder and a number of steps.
    command: Callable[[Path, int], list[str]]
    #: Why it cannot be measured. It is empty if it can.
    missing: str = ""


class Run(NamedTuple):
    """The results of one training."""

    #: From the start of the command to its end.
    seconds: float
    kills: int
    #: Seconds from each kill until all workers have made another step.
    back: list[float]
    #: Why the training failed. It is empty if it succeeded.
    fault: str = ""
    #: CPU seconds of all processes.
    cpu: float = 0.0


def measure(setting: Setting) -> None:
    """Train with each launcher, without and with kills, and print the table."""
    steps = _QUICK_STEPS if setting.quick else _STEPS
    head = ["s", "without kills", "with kills", "goodput", "kills", "from a kill to the next step"]
    head += ["CPU s without", "with"]
    rows = [_row(setting, trainer, steps) for trainer in _trainers(setting)]
    what = f"{_WORKERS} workers in step, {steps} steps of 50 ms, SIGKILL of one every {_PAUSE:.0f} s"
    tables.show(f"goodput: {what}", head, rows)


def _row(setting: Setting, trainer: Trainer, steps: int) -> list[str]:
    """Train with one launcher, without and with kills, and return its row of the table."""
    if trainer.missing:
        return [trainer.name, "MISSING: " + trainer.missing, *["-"] * 6]
    calm, killed = (_once(setting, trainer, steps, kills) for kills in (False, True))
    if fault := calm.fault or killed.fault:
        if trainer.name.startswith("launch"):
            setting.faults.append(f"{trainer.name}: goodput: {fault}")
        return [trainer.name, fault, *["-"] * 6]
    back = tables.times(killed.back) if killed.back else "-"
    shown = [f"{calm.seconds:.1f}", f"{killed.seconds:.1f}", f"{calm.seconds / killed.seconds:.3f}"]
    return [trainer.name, *shown, str(killed.kills), back, f"{calm.cpu:.0f}", f"{killed.cpu:.0f}"]


def _trainers(setting: Setting) -> list[Trainer]:
    """Return the launchers with their trainings, including those that are missing."""
    tensorflow, torchrun = peers.tensorflow(), peers.torchrun()
    program = ["--workers", str(_WORKERS), "--restarts", str(_RESTARTS), "--python", tensorflow.path]

    def launch(folder: Path, steps: int, *options: str) -> list[str]:
        return [setting.launch, *options, *program, str(_PROGRAMS / "goodput_tf.py"), str(folder), str(steps)]

    def preloaded(folder: Path, steps: int) -> list[str]:
        return launch(folder, steps, "--preload", "tensorflow")

    def torch(folder: Path, steps: int) -> list[str]:
        how = ["--standalone", "--nproc-per-node", str(_WORKERS), "--max-restarts", str(_RESTARTS)]
        return [torchrun.path, *how, str(_PROGRAMS / "goodput_torch.py"), str(folder), str(steps)]

    no_preload = "" if _has(setting.launch, "--preload") else "this launch has no --preload"
    return [
        Trainer("launch, TensorFlow", launch, tensorflow.missing),
        Trainer("launch --preload, TensorFlow", preloaded, tensorflow.missing or no_preload),
        Trainer("torchrun --max-restarts, PyTorch", torch, torchrun.missing),
    ]


def _has(launch: str, option: str) -> bool:
    """Return whether a launch, which may be an earlier one, has an option."""
    shown = subprocess.run([launch, "--help-all"], capture_output=True, text=True, check=False).stdout
    return option in shown


def _once(setting: Setting, trainer: Trainer, steps: int, kills: bool) -> Run:
    """Train once.

    Args:
        setting: The setting.
        trainer: The launcher with its training.
        steps: The number of steps.
        kills: Whether workers are killed in turn, one after each pause.
    """
    folder = setting.folder("goodput")
    before, began = processes.spent(), time.monotonic()
    process = processes.start(trainer.command(folder, steps))
    back: list[float] = []
    killed = 0
    try:
        up = _up(folder, began, process)
        up = up and kills
        turn = time.monotonic()
        while up and not processes.ended(process, max(0.0, turn + _PAUSE - time.monotonic())):
            turn = time.monotonic()
            up = turn < began + _TIME_LIMIT
            if not _kill(folder, killed % _WORKERS):
                continue
            killed += 1
            if _up(folder, turn, process):
                back.append(time.monotonic() - turn)
        in_time = processes.ended(process, max(0.0, began + _TIME_LIMIT - time.monotonic()))
        seconds = time.monotonic() - began
        code = processes.finish(process)
        fault = "" if code == 0 else f"exit code {code}" if in_time else f"not done in {_TIME_LIMIT:.0f} s"
        if not fault and min(_step(folder, number) for number in range(_WORKERS)) != steps:
            fault = "it ended before its last step"
        processes.sweep()
        return Run(seconds, killed, back, fault, processes.spent() - before)
    finally:
        processes.finish(process)
        processes.sweep()
        shutil.rmtree(folder)


def _up(folder: Path, since: float, process: subprocess.Popen[bytes]) -> bool:
    """Wait until all workers have made a step since a certain time.

    Args:
        folder: The folder in which the workers note their steps.
        since: The time, on the monotonic clock.
        process: The launcher.

    Returns:
        Whether they have. False means that the launcher has exited, or the time limit is over.
    """
    while not all(_stepped(folder, number) > since for number in range(_WORKERS)):
        if processes.ended(process, 0.02) or time.monotonic() > since + _TIME_LIMIT:
            return False
    return True


def _stepped(folder: Path, number: int) -> float:
    """Return when a worker has made its last step, on the monotonic clock, or 0 before its first one."""
    try:
        age = time.time() - (folder / f"task.{number}").stat().st_mtime
    except FileNotFoundError:
        return 0.0
    return time.monotonic() - age


def _noted(folder: Path, number: int) -> list[int]:
    """Return what a worker has noted last: its pid, and the number of its step."""
    return [int(word) for word in (folder / f"task.{number}").read_text().split()]


def _step(folder: Path, number: int) -> int:
    """Return the number of the last step of a worker."""
    return _noted(folder, number)[1]


def _kill(folder: Path, number: int) -> bool:
    """Kill a worker, and return whether it was still there."""
    try:
        os.kill(_noted(folder, number)[0], signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
