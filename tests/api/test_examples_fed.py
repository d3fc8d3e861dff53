"""The examples that use the Python API, run as their READMEs say, with real data and real TensorFlow."""

from __future__ import annotations

import ast
import difflib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.training import CACHE
from tests.storage.clicks import train_and_score_clicks
from tests.storage.stores import Hdfs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run an example in a folder of the test; gives what it printed."""

    def run(script: str, *args: str) -> str:
        state = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": CACHE}
        ended = subprocess.run(
            [sys.executable, str(EXAMPLES / script), *args],
            cwd=tmp_path, env={**os.environ, **state}, capture_output=True, text=True, timeout=350,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    return run


def number(pattern: str, text: str) -> float:
    """The last number that was printed in this way."""
    found = re.findall(pattern, text)
    assert found, f"no {pattern} in:\n{text[-4000:]}"
    return float(found[-1])


@pytest.mark.long
def test_click_through_rate(run: Run, tmp_path: Path):
    out = run("ctr_embedding/ctr.py", "--epochs", "12")
    assert re.search(r"the table: \[10000, 16\] on /job:ps/task:0; \[10000, 16\] on /job:ps/task:1", out)
    assert number(r"AUC ([\d.]+) on 441 lines", out) > 0.7
    ends = re.findall(r"worker/\d \| done: (\d+) steps here, loss ([\d.]+) -> ([\d.]+)", out)
    assert len(ends) == 2 and sum(int(steps) for steps, _, _ in ends) >= 1766 * 12 // 64
    # Of the worker that began first: a late worker begins with what the others have learnt already.
    assert max(float(before) - float(after) for _, before, after in ends) > 0.05
    assert (tmp_path / "ctr_run" / "worker-0" / "model" / "ctr.index").is_file()


@pytest.mark.long
def test_click_through_rate_from_hdfs_to_hdfs(run: Run, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch):
    train_and_score_clicks(run, hdfs, monkeypatch)


@pytest.mark.long
def test_wide_and_deep(run: Run, tmp_path: Path):
    out = run("wide_deep/wide_deep.py", "--epochs", "2")
    folder = tmp_path / "wide_deep_run"
    assert "2 nodes, batches of 2 x 32" in out
    assert number(r"test accuracy: ([\d.]+)", out) > 0.72
    assert len(list((folder / "shards").glob("*.tfrecord"))) == 8
    assert (folder / "chief-0" / "model" / "saved_model.pb").is_file()
    assert len(list(folder.rglob("events.out.tfevents.*"))) == 1, "the chief alone writes events"
    assert len(re.findall(r"right about \d+ of 27[56]", out)) == 2


@pytest.mark.long
def test_wide_and_deep_from_hdfs_to_hdfs(run: Run, hdfs: Hdfs):
    out = run("wide_deep/wide_deep.py", "--epochs", "2", "--workers", "2", "--folder", hdfs.of("people"))
    assert number(r"test accuracy: ([\d.]+)", out) > 0.72
    names = [name.removeprefix("people/") for name in hdfs.names()]
    assert len([name for name in names if name.startswith("shards/")]) == 8
    assert "chief-0/model/saved_model.pb" in names
    assert len([name for name in names if name.startswith("chief-0/events/events.out.tfevents.")]) == 1
    found = [hdfs.read(f"people/{name}").split() for name in names if name.startswith("predictions/")]
    assert len(found) == 2 and sum(map(len, found)) == 551


@pytest.mark.long
def test_mnist_fed_and_then_inference(run: Run, tmp_path: Path):
    fed = run("mnist_dist/mnist_fed.py", "--epochs", "1", "--batch_size", "200")
    counts = [int(count) for count in re.findall(r"worker/\d \| done: (\d+) images", fed)]
    assert len(counts) == 2 and sum(counts) == 60_000
    inferred = run("mnist_dist/mnist_inference.py", "--output", "digits.txt", "--min_accuracy", "0.88")
    assert number(r"10000 digits, accuracy ([\d.]+)", inferred) > 0.88
    assert len((tmp_path / "digits.txt").read_text().splitlines()) == 10_000


@pytest.mark.long
def test_text_search(run: Run, tmp_path: Path):
    words = ["--context", "2", "6", "--rate", "0.01", "--steps", "150", "--at_once", "2"]
    out = run("text_search/text_search.py", *words)
    tried = re.findall(r"^context (\d)  rate 0.01    ([\d.]+) bits a character$", out, re.MULTILINE)
    assert [context for context, _ in tried] == ["2", "6"]
    assert all(2.0 < float(bits) < 4.5 for _, bits in tried)
    assert f"best: context {min(tried, key=lambda found: float(found[1]))[0]}" in out
    runs = re.findall(r"worker/[01] \| context \d, rate 0.01", out)
    assert len(runs) == 4, "two instances, then two workers"
    assert (tmp_path / "text_model" / "saved_model.pb").is_file()


@pytest.mark.long
def test_the_migrated_program(run: Run):
    out = run("tfos_migration/after.py", "--images", "6000", "--cluster_size", "2")
    (step,) = re.findall(r"done at step (\d+): ", out)
    assert int(step) >= 59  # of 60: the last one may be in progress when the step is read
    assert number(r"accuracy of the last batch ([\d.]+)", out) > 0.7


def test_what_migration_changes():
    """The function is the same to the letter, and the rest has only lost words."""
    before, after = ((EXAMPLES / "tfos_migration" / f"{name}.py").read_text() for name in ("before", "after"))
    functions = [ast.get_source_segment(text, _main_fun(text)) for text in (before, after)]
    assert functions[0] == functions[1]
    sequence = difflib.ndiff(before.splitlines()[1:], after.splitlines()[1:])
    added = [line[2:] for line in sequence if line.startswith("+ ") and line.strip() != "+"]
    assert [line.strip() for line in added] == [
        "from launcher import TFCluster",
        "data = mnist_rows(args.images)",
        "cluster = TFCluster.run(main_fun, args, args.cluster_size, 1, input_mode=TFCluster.InputMode.SPARK)",
        "cluster.shutdown()",
    ]


def _main_fun(text: str) -> ast.FunctionDef:
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in found] == ["main_fun"]
    return found[0]
