"""The pipe by which the Python API and the pytest plug-in follow a ``launch``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import Launch


@pytest.mark.timeout(120)
@pytest.mark.parametrize("gone", [False, True])
def test_a_reader_that_stops_reading_or_is_gone_holds_nothing_up(launch: Launch, gone: bool):
    """The pipe holds 64 KiB; 300 tasks have more events."""
    reading, writing = os.pipe()
    argv = [sys.executable, "-m", "launcher", "--events-fd", str(writing), "--workers", "300", "--", "true"]
    environ = {**os.environ, **launch.environment()}
    with subprocess.Popen(argv, env=environ, pass_fds=[writing], stdout=subprocess.DEVNULL) as process:
        try:
            os.close(writing)
            if gone:
                os.close(reading)
            assert process.wait(60) == 0
        finally:
            process.kill()
    if not gone:
        os.close(reading)
    assert launch("ps", "--all").out.rstrip().endswith(" --workers 300 -- true")
