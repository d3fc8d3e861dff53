"""What is told before a job has a console, and by commands that have none."""

from __future__ import annotations

import sys

from launcher.text import printable


def tell(text: str) -> None:
    """Before the job has a console of its own. Hosts have written some of it: no terminal acts on that."""
    for line in text.rstrip("\n").split("\n"):
        print(f"launch: {printable(line)}", file=sys.stderr, flush=True)
