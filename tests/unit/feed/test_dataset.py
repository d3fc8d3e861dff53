"""A ``tf.data.Dataset`` over a feed, in a process of its own: TensorFlow stays out of all other tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("dataset_cases.py")


@pytest.mark.tensorflow
@pytest.mark.timeout(300)
def test_the_cases_of_a_dataset():
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=250", str(CASES)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert "passed" in ended.stdout
