"""The Python API with tasks in pods: they reach the program over the network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.cluster import Cluster
from tests.seeing import ROOT

PROGRAM = """
import sys
from launcher import InputMode, TFCluster

def square(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([row * row for row in feed.next_batch(10)])

options = ["--kubernetes", sys.argv[1]]
with TFCluster.run(square, None, 2, input_mode=InputMode.FEED, options=options) as cluster:
    print(sum(cluster.inference(range(1000))))
"""


def test_rows_get_to_pods_and_results_back(kubernetes: Cluster, clean: None, tmp_path: Path):
    environ = {**os.environ, **kubernetes.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*kubernetes.enter, sys.executable, "-c", PROGRAM, kubernetes.image],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert str(sum(row * row for row in range(1000))) in ended.stdout.splitlines()
    assert "of all network interfaces" in ended.stderr
