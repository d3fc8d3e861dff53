"""What the Python API promises of rows, on other machines."""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import InputMode, TFCluster

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


@pytest.mark.promise("`TFCluster` feeds functions; each row arrives")
@pytest.mark.slow
def test_each_of_a_million_rows_arrives_exactly_once():
    with TFCluster.run(note, None, 2, hosts="node1,node2", quiet=True, **HERE) as cluster:
        cluster.train(uneven())
    first, second = noted(cluster)
    assert len(first) and len(second)
    assert sorted([*first, *second]) == list(range(ROWS))
