"""What a task does once it has our modules: is told what it is to be, and does that, once or as a slot."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from launcher.api.context import TFNodeContext
from launcher.api.instances import serve
from launcher.api.runner import Reply, leave, work
from launcher.api.talk import Word, hear
from launcher.feed.remote.connect import Connector

#: Roles whose tasks serve the others until they are ended.
_SERVERS = ("ps",)


def main(line: socket.socket, doors: Connector) -> None:
    """Do what the driver says on this connection, then leave the process.

    Raises:
        SystemExit: always.
    """
    said = hear(line)
    if said is None or said.word is not Word.WORK:
        sys.exit(f"{doors.hello['task']}: the program that drives the job has nothing to do for it")
    _prepare(said.facts)
    if said.facts["slot"]:
        serve(line, doors, said)
        sys.exit(0)
    code = work(said, TFNodeContext.of_task(said.facts, doors), Reply(line, doors, {"again": True}))
    if code == 0 and doors.hello["task"].partition("/")[0] in _SERVERS:
        while True:  # what serves the others stays until it is ended, even with nothing to do
            signal.pause()
    leave(code)


def _prepare(facts: Mapping[str, Any]) -> None:
    """Make this process like the driver's, as far as its function may count on that."""
    for folder in facts["path"]:
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)
