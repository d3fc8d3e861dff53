"""The errand of ``launch check``: what this host sees of itself and of the others.

One errand serves the whole check: requests and answers are JSON objects, a line each, one answer for each
request, in order. The end of stdin ends it, whatever it is doing.

=============  =============================================================================================
request        answer
=============  =============================================================================================
``clock``      ``at``: this host's clock, seconds since the epoch
``facts``      see `launcher.agent.probe_facts`
``names``      of each of ``names``: what it resolves to here
``listen``     ``port``: held as a task's is, and served beside the holder as TensorFlow serves it
``connect``    of each of ``peers``: what became of a connection to it
=============  =============================================================================================
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time

from launcher.agent.probe_connect import connect
from launcher.agent.probe_facts import facts
from launcher.agent.probe_listen import Listener
from launcher.agent.probe_names import resolve
from launcher.agent.probe_work import Commands
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, Mapping, Optional

    Answer = Dict[str, Any]
    Step = Callable[[Mapping[str, Any]], Answer]

#: Bytes of one request; a thousand hosts' addresses take a tenth of it.
_LONGEST = 1024 * 1024


def main(arguments: Mapping[str, Any]) -> int:
    """Answer requests until stdin ends.

    Args:
        arguments: ``host``: its name in the hostfile; for all else there are requests.

    Returns:
        0; 2 after a request that nobody understands.
    """
    return Probe().serve(0, 1)


class Probe:
    """Answers one request after the other, while a thread watches for the end."""

    def __init__(self) -> None:
        self._commands = Commands()
        self._listener: Optional[Listener] = None
        self._steps: Dict[str, Step] = {
            "clock": lambda _: {"at": time.time()},
            "facts": lambda request: {"facts": facts(request, self._commands)},
            "names": lambda request: {"names": resolve(request["names"], request["seconds"])},
            "listen": self._listen,
            "connect": lambda request: {"pairs": connect(request)},
        }

    def serve(self, reading: int, writing: int) -> int:
        """Answer what comes from ``reading`` into ``writing``; see `main`."""
        requests: queue.Queue[Optional[bytes]] = queue.Queue()
        threading.Thread(target=self._read, args=(reading, requests), daemon=True).start()
        while True:
            line = requests.get()
            if line is None:
                return 0
            request = json.loads(line)
            step = self._steps.get(request.get("do"))
            if step is None:
                print(f"no such request: {line[:200]!r}", file=sys.stderr)
                return 2
            if not _say(writing, step(request)):
                return 0

    def _read(self, reading: int, requests: queue.Queue[Optional[bytes]]) -> None:
        """Hand on requests; at the end of them end what runs, so that nobody waits for it."""
        for line in _lines(reading):
            requests.put(line)
        self._commands.end_all()
        requests.put(None)

    def _listen(self, request: Mapping[str, Any]) -> Answer:
        """Serve a port from now until the end."""
        try:
            self._listener = Listener(request["challenge"], request["token"])
        except OSError as error:
            return {"port": 0, "why": error.strerror or str(error)}
        return {"port": self._listener.port, "why": ""}


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
