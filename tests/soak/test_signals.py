"""A stop is one stop: no second request of another kind takes the time in which tasks save their state.

All ordered pairs of requests, 50 ms apart; the tasks need 5 s of their 20 s of grace. ``LAUNCH_SOAK=N``
repeats each pair N times; without it each is tried once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.local.stops import CODES, Stoppable, ask_each, until

TIMES = int(os.environ.get("LAUNCH_SOAK", "1"))
#: Launches side by side.
WIDTH = int(os.environ.get("LAUNCH_SOAK_WIDTH", "12"))


@pytest.mark.promise("a stop is one stop: no signal, `scancel` or closed pipe or terminal shortens it")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", CODES)
def test_two_requests(launch: Launch, tmp_path: Path, first: str):
    pairs = [(first, second) for second in CODES for _ in range(TIMES)]
    faults = []
    for number, start in enumerate(range(0, len(pairs), WIDTH)):
        folder = tmp_path / str(number)
        faults += ask_each(launch, folder, pairs[start : start + WIDTH], 0.05, 5.0)
    print(f"{first}: {len(pairs)} launches, {len(faults)} faults")
    assert not faults, "\n".join(faults)


def test_ctrl_c_twice(launch: Launch, tmp_path: Path):
    """Half a second apart: nothing is waited for."""
    jobs = [Stoppable(launch, tmp_path / str(number), 30.0) for number in range(TIMES)]
    try:
        until(jobs, lambda job: job.is_up, 120)
        for presses in range(2):
            time.sleep(0.5 * presses)
            for job in jobs:
                job.ask("Ctrl-C")
        since = time.monotonic()
        until(jobs, lambda job: False, 120)
        print(f"Ctrl-C twice: {TIMES} launches, gone after {time.monotonic() - since:.1f} s")
        assert [job.process.returncode for job in jobs] == [130] * TIMES
        assert not any(job.saved() for job in jobs)
        assert time.monotonic() - since < 10
    finally:
        for job in jobs:
            job.close()
