"""Reads files in a cluster: a program of the tests, as the libraries below fsspec leave threads behind.

It gets JSON: the arguments of ``TFCluster.run``, and pairs of the name of a class and a URL. For each pair it
prints a line of JSON: the rows, or the text of the error. A cluster that fails is followed by another one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import launcher
from launcher import InputMode, LaunchError, TFCluster
from tests.seeing import ROOT


def echo(args: Any, ctx: Any) -> None:
    """Return each row as its result."""
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results(feed.next_batch(100))


def read(pairs: Sequence[tuple[str, str]], **options: Any) -> list[Any]:
    """What becomes of these sources: a list of rows, or the text of an error."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.api.reading"], input=json.dumps([options, pairs]), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, timeout=150, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in ended.stdout.splitlines()]


def _printed(options: dict[str, Any], pairs: list[tuple[str, str]]) -> None:
    """Read as many of the sources as a cluster can, until it fails, and print what becomes of them."""
    options = {**options, "input_mode": InputMode.FEED, "quiet": True}
    try:
        with TFCluster.run(echo, None, 1, **options) as cluster:
            while pairs:
                name, url = pairs.pop(0)
                try:
                    printed: Any = list(cluster.inference(getattr(launcher, name)(url)))
                except launcher.TaskFailed:
                    raise
                except LaunchError as error:
                    printed = str(error)
                print(json.dumps(printed), flush=True)
    except LaunchError as error:
        print(json.dumps(str(error)), flush=True)


if __name__ == "__main__":
    options, pairs = json.load(sys.stdin)
    while pairs:
        _printed(options, pairs)
