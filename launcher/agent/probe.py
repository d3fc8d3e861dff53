"""The errand of ``launch check``: what this host sees of itself and of the others.

One errand serves the whole check, one request after the other (see `launcher.agent.answering`):

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

import time
from typing import TYPE_CHECKING

from launcher.agent.answering import serve
from launcher.agent.probe_connect import connect
from launcher.agent.probe_facts import facts
from launcher.agent.probe_listen import Listener
from launcher.agent.probe_names import resolve
from launcher.agent.probe_work import Commands

if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

    from launcher.agent.answering import Answer, Step


def main(_: object) -> int:
    """Answer requests until stdin ends.

    Returns:
        0; 2 after a request that nobody understands.
    """
    return Probe().serve(0, 1)


class Probe:
    """Answers, and what it needs for that."""

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
        return serve(self._steps, self._commands, reading, writing)

    def _listen(self, request: Mapping[str, Any]) -> Answer:
        """Serve a port from now until the end."""
        try:
            self._listener = Listener(request["challenge"], request["token"])
        except OSError as error:
            return {"port": 0, "why": error.strerror or str(error)}
        return {"port": self._listener.port, "why": ""}
