"""An errand that is asked one thing after the other: requests and answers are JSON objects, a line each.

One answer for each request, in order. The end of stdin ends it, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import TYPE_CHECKING

from launcher.agent.probe_work import Commands

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, Mapping, Optional

    Answer = Dict[str, Any]
    Step = Callable[[Mapping[str, Any]], Answer]

#: Bytes of one request; a thousand hosts' addresses take a tenth of it.
_LONGEST = 1024 * 1024


def serve(steps: Mapping[str, Step], commands: Commands, reading: int, writing: int) -> int:
    """Answer what comes from ``reading`` into ``writing``, while a thread watches for the end.

    Args:
        steps: what to do, by what a request has at ``do``.
        commands: what they run; all of it is ended when nobody asks any more.
        reading, writing: file descriptors.

    Returns:
        0; 2 after a request that nobody understands.
    """
    requests: queue.Queue[Optional[bytes]] = queue.Queue()
    threading.Thread(target=_read, args=(reading, requests, commands), daemon=True).start()
    while True:
        line = requests.get()
        if line is None:
            return 0
        request = json.loads(line)
        step = steps.get(request.get("do"))
        if step is None:
            print(f"no such request: {line[:200]!r}", file=sys.stderr)
            return 2
        if not _say(writing, step(request)):
            return 0


def _read(reading: int, requests: queue.Queue[Optional[bytes]], commands: Commands) -> None:
    """Hand on requests; at the end of them end what runs, so that nobody waits for it."""
    for line in _lines(reading):
        requests.put(line)
    commands.end_all()
    requests.put(None)


def _lines(fd: int) -> Iterator[bytes]:
    """Whole lines, until the end or one too long to be ours."""
    kept = b""
    while len(kept) <= _LONGEST:
        try:
            data = os.read(fd, 65536)
        except OSError:
            return
        if not data:
            return
        *whole, kept = (kept + data).split(b"\n")
        yield from whole


def _say(fd: int, answer: Answer) -> bool:
    """Send an answer; whether somebody is there to take it."""
    data = json.dumps(answer).encode("ascii") + b"\n"
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        return False
    return True
