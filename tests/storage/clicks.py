"""The example of clicks from HDFS to HDFS: the same on every backend."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable

import pytest

from tests.local.training import CACHE
from tests.seeing import ROOT
from tests.storage.stores import Hdfs


def train_and_score_clicks(run: Callable[..., str], hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train with lines on HDFS, and check the model and the scores that are stored there.

    Args:
        run: Runs an example with words, and returns what it printed.
        hdfs: The folder of the test.
        monkeypatch: Sets where the list of the Titanic's people is kept.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    lines = runpy.run_path(str(ROOT / "examples/ctr_embedding/ctr.py"))["titanic_lines"]()
    for name, part in {"day-1": lines[:800], "day-2": lines[800:-441], "today": lines[-441:]}.items():
        hdfs.put(f"{name}.txt", "".join(f"{line}\n" for line in part).encode())
    words = ["--data", hdfs.of("day-*.txt"), "--test", hdfs.of("today.txt"), "--output", hdfs.of("run")]
    out = run("ctr_embedding/ctr.py", "--epochs", "12", "--ps", "1", *words)
    found = re.findall(r"AUC ([\d.]+) on 441 lines", out)
    assert found and float(found[-1]) > 0.7, out[-4000:]
    names = hdfs.names()
    assert {"run/worker-0/model/ctr.index", "run/worker-0/model/ctr.data-00000-of-00001"} <= {*names}
    scores = [name for name in names if name.startswith("run/scores/")]
    assert len(b"".join(map(hdfs.read, scores)).splitlines()) == 441
