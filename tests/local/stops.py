"""Launches that are asked to stop in several ways at once, as terminals, shells and service managers do."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.conftest import Launch
from tests.local.terminal import Terminal
from tests.seeing import alive, kill

#: What a launch exits with after each kind of request. A closed pipe is noticed at the next line of a task.
CODES = {
    "Ctrl-C": {130}, "SIGTERM": {143}, "SIGHUP": {129}, "pipe": {141}, "terminal": {129}, "group": {143},
    "service": {143},
}  # fmt: skip
#: Prints all the time, so that a closed pipe is noticed; on SIGTERM it saves its state, which takes its time.
SAVES = """\
save() {
    for turn in $(seq $1); do echo saving; sleep 0.5; done
    echo saved
    exit 0
}
trap "save $1" TERM
echo up
while :; do echo tick; sleep 0.5; done
"""


class Stoppable(Terminal):
    """A launch at a terminal of its own, whose output goes through a pipe.

    Args:
        launch: Whose home to use.
        folder: For its run.
        seconds: How long its tasks need to save their state.
        words: More options.
    """

    def __init__(self, launch: Launch, folder: Path, seconds: float, *words: str) -> None:
        self._folder = folder
        self.out = b""
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        options = ["--run-dir", str(folder), "--workers", "2", "--grace", "20", *words]
        program = ["sh", "-c", SAVES, "sh", f"{seconds / 0.5:.0f}"]
        super().__init__(launch, *options, "--", *program, stdout=writing)
        os.close(writing)

    def pump(self) -> None:
        """Read what it prints."""
        with suppress(OSError):
            self.out += os.read(self._reading, 65536)
        if self.is_open:
            self._read(0.0)

    @property
    def is_up(self) -> bool:
        """Whether its tasks run."""
        return self.out.count(b"| up") == 2

    def ask(self, kind: str) -> None:
        """Ask it to stop, in one of the ways of `CODES`."""
        if kind == "Ctrl-C" and not self.is_open:  # nobody can press it
            os.kill(self.process.pid, signal.SIGINT)
        elif kind == "Ctrl-C":
            self.press("\x03")
        elif kind == "pipe":
            self._close_pipe()
        elif kind == "terminal":
            self.hang_up()
        elif kind in ("group", "service"):
            for pid in [*processes_of(self.process.pid, with_tasks=kind == "service")]:
                kill(pid, signal.SIGTERM)
        else:
            kill(self.process.pid, getattr(signal, kind))

    def report(self) -> Mapping[str, Any]:
        """Its report; empty: it has written none."""
        try:
            return dict(json.loads((self._folder / "report.json").read_bytes()))
        except FileNotFoundError:
            return {}

    def saved(self) -> int:
        """How many of its tasks have saved their state."""
        return sum(b"saved\n" in log.read_bytes() for log in self._folder.glob("logs/worker-*.log"))

    def close(self) -> None:
        """Kill what is left."""
        self._close_pipe()
        self.hang_up()
        self.process.kill()
        self.process.wait()

    def _close_pipe(self) -> None:
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1


def processes_of(launcher: int, with_tasks: bool = True) -> Iterator[int]:
    """A launcher and what it has started: its watchdog and agent; the tasks and what they started, too."""
    depth, level = 0, [launcher]
    while level and (with_tasks or depth < 3):
        yield from level
        depth, level = depth + 1, [child for pid in level for child in _children(pid)]


def _children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, file.read_text().split())
    return [child for child in found if alive(child)]


def until(jobs: Iterable[Stoppable], condition: Callable[[Stoppable], object], seconds: float) -> None:
    """Wait until something is true of all of these, or one has ended; read what they print meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        for job in jobs:
            job.pump()
        if all(condition(job) or job.process.poll() is not None for job in jobs):
            return
        assert time.monotonic() < deadline, [job.out[-500:] for job in jobs if not condition(job)]
        time.sleep(0.02)


def ask_each(
    launch: Launch, folder: Path, pairs: Iterable[tuple[str, str]], apart: float, seconds: float, *words: str
) -> list[str]:
    """Ask launches to stop, each in two ways one shortly after the other; all side by side.

    Args:
        launch: Whose home to use.
        folder: For their runs.
        pairs: The two ways of each.
        apart: Seconds between the two.
        seconds: How long the tasks need to save their state.
        words: More options.

    Returns:
        A line for each launch that did not let its tasks save their state, or that reported another end.
    """
    jobs = {
        Stoppable(launch, folder / str(number), seconds, *words): pair for number, pair in enumerate(pairs)
    }
    faults = []
    try:
        until(jobs, lambda job: job.is_up, 120)
        for job, (first, second) in jobs.items():
            job.ask(first)
            time.sleep(apart)
            job.ask(second)
        until(jobs, lambda job: False, 120)
        for job, (first, second) in jobs.items():
            code, report, saved = job.process.returncode, job.report(), job.saved()
            expected = CODES[first] | (CODES[second] if first == "pipe" else set())
            reason = (report.get("failure") or {}).get("reason")
            reported = report.get("exit_code")
            if code not in expected or reported != code or reason != "interrupted" or saved != 2:
                text = f"exit code {code}, reported {reported} ({reason}), {saved} of 2 tasks saved"
                faults.append(f"{first}, then {second}: {text}")
    finally:
        for job in jobs:
            job.close()
    return faults
