"""What the Python API promises of rows, on other machines: a million rows, MNIST."""

from __future__ import annotations

import argparse
import array
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launcher import InputMode, TFCluster
from tests.local.seeing import ROOT
from tests.ssh.host import LabHost

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("caller", "hosts")]
#: The same minor version of Python as ours.
HERE: dict[str, Any] = {"python": sys.executable, "workdir": "/", "input_mode": InputMode.FEED}
ROWS = 1_000_003


def uneven() -> Iterator[range]:
    """Partitions of 0 to 40,000 rows that hold each number below `ROWS` once."""
    start, number = 0, 0
    while start < ROWS:
        size = min(number * 7919 % 40_000, ROWS - start)
        yield range(start, start + size)
        start, number = start + size, number + 1


def note(args: Any, ctx: Any) -> None:
    """Write each batch down before the next one is asked for."""
    import array

    feed = ctx.get_data_feed()
    with open(f"{ctx.output_dir}/rows", "ab", buffering=0) as file:
        while not feed.should_stop():
            file.write(array.array("I", feed.next_batch(500)).tobytes())


def noted(cluster: TFCluster) -> list[array.array[int]]:
    """What each worker has written down."""
    found = []
    for worker in (0, 1):
        rows = array.array("I")
        path = Path(cluster.run_dir, "output", f"worker-{worker}", "rows")
        rows.frombytes(path.read_bytes() if path.exists() else b"")
        found.append(rows)
    return found


@pytest.mark.slow
def test_each_of_a_million_rows_arrives_exactly_once():
    with TFCluster.run(note, None, 2, hosts="node1,node2", quiet=True, **HERE) as cluster:
        cluster.train(uneven())
    first, second = noted(cluster)
    assert len(first) and len(second)
    assert sorted([*first, *second]) == list(range(ROWS))


def program(path: Path) -> ModuleType:
    """A program of the examples, imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_program_that_came_from_tensorflowonspark(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], hosts: list[LabHost]
):
    folder = ROOT / "examples" / "tfos_migration"
    monkeypatch.syspath_prepend(str(folder))
    after = program(folder / "after.py")
    args = argparse.Namespace(batch_size=100)
    for host in hosts:
        host.expected.append(".keras")  # Keras's own
    with TFCluster.run(after.main_fun, args, 3, 1, hosts="node1,node2,node3", **HERE) as cluster:
        cluster.train(after.mnist_rows(8000), 1)
    message = capfd.readouterr().out
    assert message.count("done at step") == 2, message
