"""A slot: a task that runs one instance of a function after another, each in a process of its own.

The slot imports nothing of the user's, so an instance is a fork of it that takes a millisecond, and finds
everything as a fresh process would: TensorFlow has no memory of the instance before.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.api.context import TFNodeContext
from launcher.api.runner import Reply, leave, work
from launcher.api.talk import Said, Word, hear, say
from launcher.feed.remote.connect import PAUSE, Connector

#: What a task of a cluster has in its environment, and an instance that is alone must not.
_OF_CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC", "TASK_ADDRESS")
#: Seconds for which a broken connection to the driver is tried to be mended.
_PATIENCE = 60.0


class _Running(NamedTuple):
    """An instance that runs."""

    number: int
    pid: int
    handle: int


class _Slot:
    """The slot's side of its connection, which may break and come again.

    What was said last is said again over a new one: the driver knows each instance's end by its number.
    """

    def __init__(self, line: socket.socket, doors: Connector) -> None:
        self.line = line
        self._doors = doors
        self._last: Said | None = None
        self._mended = -PAUSE

    def say(self, said: Said) -> None:
        """Tell the driver.

        Raises:
            OSError: it is gone for good.
        """
        self._last = said
        try:
            say(self.line, said)
        except OSError:
            self._mend()

    def hear(self) -> Said:
        """What the driver says next. That a connection ends says nothing: one that is relayed ends so when
        the way breaks.

        Raises:
            OSError: the driver is gone for good.
        """
        try:
            if (said := hear(self.line)) is not None:
                return said
        except OSError:  # it has broken
            pass
        self._mend()
        return Said(Word.THANKS)

    def _mend(self) -> None:
        time.sleep(max(0.0, self._mended + PAUSE - time.monotonic()))  # it may break as soon again
        self._mended = time.monotonic()
        until = time.monotonic() + _PATIENCE
        while True:
            self.line.close()
            self.line = self._doors.connect("member", max(0.0, until - time.monotonic()), again=True)
            try:
                if self._last is not None:
                    say(self.line, self._last)
                return
            except OSError:
                if time.monotonic() > until:
                    raise


def serve(line: socket.socket, doors: Connector, said: Said) -> None:
    """Run instances as the driver says, until it says that there are no more.

    Args:
        line: to the driver.
        doors: for the instances' own connections.
        said: its pickle is the function.
    """
    for name in _OF_CLUSTERS:
        os.environ.pop(name, None)
    slot = _Slot(line, doors)
    slot.say(Said(Word.ENDED, {"number": None, "code": None, "signal": None}))
    running: _Running | None = None
    begun: set[int] = set()
    while True:
        if running is not None and _over(slot.line, running):
            end = _end_of(running)
            running = None
            slot.say(end)
            continue
        order = slot.hear()
        if order.word is Word.START and running is None:
            number = order.facts["number"]
            if number is None:
                return
            if number not in begun:  # it answers each time that something is said again
                begun.add(number)
                running = _start(slot.line, doors, said, order)


def _over(line: socket.socket, running: _Running) -> bool:
    """Whether the instance is over; waits for that, or for the driver to say something."""
    poll = select.poll()
    poll.register(running.handle, select.POLLIN)
    poll.register(line, select.POLLIN)
    return any(number == running.handle for number, _ in poll.poll())


def _end_of(running: _Running) -> Said:
    _, status = os.waitpid(running.pid, 0)
    os.close(running.handle)
    code = os.waitstatus_to_exitcode(status)
    facts = {
        "number": running.number,
        "code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
    }
    return Said(Word.ENDED, facts)


def _start(line: socket.socket, doors: Connector, said: Said, order: Said) -> _Running:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        line.close()
        _run(doors, said, order)
    return _Running(order.facts["number"], pid, os.pidfd_open(pid))


def _run(doors: Connector, said: Said, order: Said) -> None:
    """Be an instance.

    Raises:
        SystemExit: always.
    """
    number: int = order.facts["number"]
    doors.hello = {**doors.hello, "pid": os.getpid()}
    hello = {"again": True, "number": number}
    line = doors.connect("instance", _PATIENCE, **hello)
    reply = Reply(line, doors, hello, "instance")
    whole = Said(Word.WORK, {"results": True}, [*said.pickles, *order.pickles])
    leave(work(whole, _context(said.facts, number), reply))


def _context(facts: Mapping[str, Any], number: int) -> TFNodeContext:
    """What an instance is given: a cluster of one."""
    output = os.environ.get("OUTPUT_DIR", "")
    if output:
        output = os.path.join(output, str(number))
        os.makedirs(output, exist_ok=True)
    return TFNodeContext(
        number, "worker", 0, working_dir=os.getcwd(), num_workers=facts["instances"], output_dir=output
    )
