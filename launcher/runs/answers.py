"""Looks at folders that may never answer: of a file server that is gone, say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeVar

    Found = TypeVar("Found")


def answers(look: Callable[[str], Found], paths: Sequence[str], seconds: float) -> dict[str, Found]:
    """What ``look`` finds at each path, as far as it comes back within so many seconds.

    Each has a thread of its own; one that hangs in the kernel stays there, and goes with this process.
    """
    found: dict[str, Found] = {}

    def one(path: str) -> None:
        found[path] = look(path)

    threads = [threading.Thread(target=one, args=(path,), daemon=True) for path in paths]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    there = dict(found)  # one that comes now is too late
    return {path: there[path] for path in paths if path in there}
