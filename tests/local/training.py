"""The trainings of `examples` that survive the death of a task: launch one, kill a task, look at the end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import Ended, Launch, Started
from tests.seeing import ROOT, RunFolder, run_of, soon

PYTHON = os.environ.get("LAUNCH_TEST_PYTHON", sys.executable)
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
#: Options for tasks that run with the tests' TensorFlow and data.
WITH_TENSORFLOW = ["--python", PYTHON, "-x", f"XDG_CACHE_HOME={CACHE}"]
#: Steps from checkpoint to checkpoint; the step from which on a task is killed.
SAVE_STEPS, KILL_AT = 200, 450
#: Seconds for a training to get that far, and for all of it, on a busy machine.
_UNDER_WAY, _ALL = 240.0, 500.0


class Training(NamedTuple):
    """A way of training."""

    #: Options of ``launch``, and the program below ``examples``.
    options: Sequence[str]
    program: str
    #: A test's number of steps: some ten seconds.
    steps: int
    #: It has the flags of the classic programs.
    classic: bool = False
    #: Its checkpoints count epochs of `SAVE_STEPS`.
    epochs: bool = False


_PS_WORKERS = ["--ps", "1", "--workers", "2"]
TRAININGS = {
    "async": Training([*_PS_WORKERS, "--flags"], "mnist_dist/mnist_dist.py", 3000, classic=True),
    "sync": Training(_PS_WORKERS, "mnist_dist/mnist_sync.py", 1200, classic=True),
    "coordinated": Training(["--chief", *_PS_WORKERS], "strategies/coordinated.py", 1500),
    "fit": Training(["--workers", "2"], "strategies/fit.py", 1200, epochs=True),
    "in_step": Training(["--workers", "2"], "strategies/in_step.py", 1200),
}
#: Each task that is killed, with those that start again with it.
VICTIMS = {
    ("async", "worker/0"): ["worker/0"],
    ("async", "worker/1"): ["worker/1"],
    ("async", "ps/0"): ["ps/0"],
    ("sync", "worker/0"): ["worker/0"],
    ("sync", "worker/1"): ["worker/1"],
    ("sync", "ps/0"): ["ps/0"],
    ("coordinated", "worker/0"): ["worker/0"],
    ("coordinated", "ps/0"): ["chief/0", "ps/0"],
    ("coordinated", "chief/0"): ["chief/0", "ps/0"],
    ("fit", "worker/0"): ["worker/0", "worker/1"],
    ("fit", "worker/1"): ["worker/0", "worker/1"],
    ("in_step", "worker/0"): ["worker/0", "worker/1"],
    ("in_step", "worker/1"): ["worker/0", "worker/1"],
}
#: A worker of these that is lost costs no step: nothing is restored.
_NOTHING_LOST = {("async", "worker/1"), ("sync", "worker/1"), ("coordinated", "worker/0")}

#: Signals a process of a task: its run, the task, its pid, the signal.
Kill = Callable[[RunFolder, str, int, int], None]


class Place(NamedTuple):
    """Where the tasks run."""

    launch: Launch
    #: Further options of ``launch``.
    options: Sequence[str]
    #: A folder that all tasks see.
    folder: Path
    kill: Kill


def here(launch: Launch, folder: Path) -> Place:
    """This machine."""

    def kill(run: RunFolder, task: str, pid: int, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signum)

    return Place(launch, [*WITH_TENSORFLOW, "--preload", "tensorflow"], folder, kill)


def tf_keras() -> str:
    """A folder with Keras 2 for the TensorFlow of the tests, made once: for ``PYTHONPATH``."""
    ask = [PYTHON, "-c", "import importlib.metadata as m; print(m.version('tensorflow-cpu'))"]
    version = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    folder = Path(CACHE, "tf-launcher-tests", f"tf_keras-{version}")
    if not (folder / "tf_keras").exists():
        pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        wanted = f"tf_keras~={version.rpartition('.')[0]}.0"
        subprocess.run([*pip, "--target", str(folder), wanted], check=True, timeout=300)
    return str(folder)


def start(place: Place, name: str, steps: int, restarts: int) -> tuple[Started, RunFolder]:
    """Launch a training; its run, once it has a folder."""
    training = TRAININGS[name]
    temporary = place.folder / "tmp"  # what TensorFlow writes there stays when a task is killed
    temporary.mkdir()
    started = place.launch.start(
        *training.options, *place.options, "--restarts", str(restarts),
        "-x", "TF_CPP_MIN_LOG_LEVEL=2", "-x", f"PYTHONPATH={tf_keras()}", "-x", f"TMPDIR={temporary}",
        str(ROOT / "examples" / training.program), f"--save_steps={SAVE_STEPS}",
        f"--{'train_steps' if training.classic else 'steps'}={steps}",
        f"--{'log_dir' if training.classic else 'folder'}={place.folder / 'run'}",
        cwd=ROOT,
    )  # fmt: skip
    started.until(lambda _: list(place.launch.state.glob("*/launcher.json")))
    run = run_of(place.launch, started)
    soon(lambda: (run.path / "events.jsonl").exists())
    return started, run


def running(run: RunFolder) -> dict[str, int]:
    """The pids of the tasks that run now."""
    pids: dict[str, int] = {}
    for event in run.events:
        if event.get("state") == "running":
            pids[event["task"]] = event["pid"]
        elif event.get("state") == "ended":
            pids.pop(event["task"], None)
    return pids


def step(run: RunFolder) -> int:
    """The last step that a task has printed."""
    logs = [path.read_bytes() for path in (run.path / "logs").glob("*.log")]
    return max((int(number) for log in logs for number in re.findall(rb"(?m)^step (\d+) ", log)), default=0)


def saved(training: Training, folder: Path) -> int:
    """The step of the last checkpoint."""
    states = []
    for place, _, names in os.walk(folder / "run"):
        if "checkpoint" in names:
            with contextlib.suppress(FileNotFoundError):  # Keras removes its last copy
                states.append(Path(place, "checkpoint").read_text())
    found = [re.search(r'^model_checkpoint_path: ".*ckpt-(\d+)"', state) for state in states]
    numbers = [int(match[1]) for match in found if match is not None]
    return max(numbers, default=0) * (SAVE_STEPS if training.epochs else 1)


def survive(place: Place, name: str, victim: str, signum: int = signal.SIGKILL) -> Ended:
    """Train, kill a task once, well after the first checkpoint: training goes on from the last one.

    The loss of a ps uses one restart, whatever fails because of it.
    """
    training = TRAININGS[name]
    started, run = start(place, name, training.steps, restarts=1 if victim.startswith("ps") else 2)
    started.until(lambda _: step(run) >= KILL_AT and saved(training, place.folder) >= SAVE_STEPS, _UNDER_WAY)
    last = saved(training, place.folder)
    place.kill(run, victim, running(run)[victim], signum)
    ended = started.wait(_ALL, code=0)
    accuracies = re.findall(r"\| test accuracy: ([01]\.\d+)", ended.out)
    assert accuracies and min(map(float, accuracies)) >= 0.9, ended.out[-3000:]
    _attempts(run.report, victim, VICTIMS[name, victim], signum)
    if (name, victim) not in _NOTHING_LOST:
        restores = "chief/0" if name == "coordinated" else "worker/0"
        _went_on(run.log(restores).decode(errors="replace"), last, training.steps)
    return ended


def _attempts(report: Any, victim: str, again: Sequence[str], signum: int) -> None:
    """The report names every attempt, and what ended the first one of the victim.

    The death of a ps may end a worker of a classic job, too, which then starts again as well.
    """
    tasks = {task["task"]: task for task in report["tasks"]}
    attempts = {name: task["attempt"] for name, task in tasks.items()}
    if victim.startswith("ps") and again == [victim]:
        assert attempts[victim] == 2
        assert report["restarts"] == sum(attempts.values()) - len(attempts)
    else:
        # Connections of workers to a killed ps may fail for seconds, which ends the chief once more.
        most = 2 if victim.startswith("ps") else 1
        assert 1 <= report["restarts"] <= most
        assert attempts == {name: 1 + report["restarts"] if name in again else 1 for name in tasks}
    assert {name: len(task["earlier"]) + 1 for name, task in tasks.items()} == attempts
    status = {"code": 42, "signal": None} if signum == signal.SIGTERM else {"code": None, "signal": signum}
    assert tasks[victim]["earlier"][0]["status"] == status


def _went_on(log: str, last: int, steps: int) -> None:
    """Training was restored from the last checkpoint or a later one, and no step below it was made again."""
    _, line, after = log.rpartition("restored from step ")
    assert line, log[-3000:]
    restored = int(after.split()[0])
    assert last <= restored < steps
    assert all(int(number) >= restored for number in re.findall(r"(?m)^step (\d+) ", after)), after
