"""What tests of ``--tensorboard`` share."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from tests.conftest import Started
from tests.seeing import STUBS, soon

#: A folder where ``python -m tensorboard.main`` is our stub.
FOLDER = STUBS / "board"


def waits_for(path: Path) -> list[str]:
    """A program that ends when there is such a file."""
    return ["sh", "-c", f"until test -e '{path}'; do sleep 0.05; done"]


def url_of(started: Started) -> str:
    """The URL that our line has."""
    started.until(lambda it: re.search(r"^launch: TensorBoard: \S+ \(.*\)\n", it.err, re.MULTILINE), 60)
    (url,) = re.findall(r"^launch: TensorBoard: (\S+) \(.*\)\n", started.err, re.MULTILINE)
    return str(url)


def page_of(url: str, seconds: float = 60.0) -> str:
    """The page there, as soon as it is served."""

    def read() -> str:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    return str(soon(read, seconds, f"nothing at {url}"))
