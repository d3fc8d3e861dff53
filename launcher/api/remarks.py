"""What the program's user is told beside the nodes' output: a line on stderr, as ``launch`` does it."""

from __future__ import annotations

import sys


def remark(text: str) -> None:
    """Say it, also in a job that is to be quiet: for what is not as it should be, and raises nothing."""
    stream = sys.stderr
    if stream is not None:
        print(f"launch: {text}", file=stream, flush=True)
