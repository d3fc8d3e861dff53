"""A stop is one stop: no second request of another kind takes the time in which tasks save their state.

All ordered pairs of requests, 50 ms apart; the tasks need 5 s of their 20 s of grace. ``LAUNCH_SOAK=N``
repeats each pair N times; without it each is tried once.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.local.stops import CODES, ask_each

TIMES = int(os.environ.get("LAUNCH_SOAK", "1"))
#: Launches side by side.
WIDTH = int(os.environ.get("LAUNCH_SOAK_WIDTH", "12"))


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
