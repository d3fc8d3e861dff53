"""The porter: keeps the agent of a host while connections to the launcher come and go.

::

    launcher ═══ sshd ── attach                        (one pair for each connection, the last one counts)
                    ╲       │ hands in
                     ╲      ▼
                      ═══ porter ══ guardian ── agent ── tasks

It is a daemon: neither the end of a connection nor that of the login session it came from touches it. The
agent has plain pipes, as everywhere; the porter carries them through a `Stream` over whichever connection
there is. It gives up, and closes the agent's orders, so that the agent ends everything, when

- the launcher says so,
- a connection that was alive is closed, and no other comes within seconds: the launcher was killed,
- nothing has been heard of the launcher for the lease.

If the porter itself is killed the agent sees the same end of its orders; one that is stopped is killed when
its lease is over (`launcher.agent.lease`). Nothing of it is on disk.
"""

from __future__ import annotations

import errno
import os
import select
import time
from functools import partial
from typing import TYPE_CHECKING

from launcher.agent import attach, daemon
from launcher.agent.door import Connection, Door
from launcher.agent.ward import Ward
from launcher.errors import WireError
from launcher.processes import kernel, sweep
from launcher.stream import Stream, refusal

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping, Optional, Tuple

    Watch = Dict[int, Tuple[int, Callable[[], None]]]

#: Seconds for a new connection after one was closed that was alive, and what counts as alive: the launcher
#: pings every 2 s. A connection that was silent before it was closed has been given up by the network, not
#: by the end of the launcher.
CLOSED_GRACE = 4.0
ALIVE = 4.5
#: Seconds for the agent to end all its tasks, and then itself, before that is done by force.
ENDING = 12.0
#: Bytes for the launcher that are kept until it has them, and orders that wait for the agent.
KEEP = 8 * 1024 * 1024
TAKE = 1024 * 1024
_READ = 256 * 1024
_MOMENT, _LONGEST_WAIT = 0.001, 1.0
#: Seconds to end what earlier runs left.
_LOST_SECONDS = 2.0


def main(
    arguments: Mapping[str, Any],
    abandoned: Callable[[], None] = lambda: None,
    start: Callable[[str, int], Ward] = Ward,
) -> int:
    """Start a porter, unless it lives already, and be its first connection.

    Args:
        arguments: ``host`` and ``agent`` (number) of the agent, ``lease`` in seconds, and what
            `launcher.agent.attach.main` needs.
        abandoned: called when all is over and no launcher was there to see it.
        start: starts the agent of a host, given its name and the agent's number.
    """
    try:
        door: Optional[Door] = Door(str(arguments["token"]))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        door = None  # this was asked before, and the answer got lost
    if door is not None:
        daemon.leave_behind(partial(_serve, door, arguments, abandoned, start))
        door.close()
    return attach.main(arguments)


def _serve(
    door: Door,
    arguments: Mapping[str, Any],
    abandoned: Callable[[], None],
    start: Callable[[str, int], Ward],
) -> None:
    """In the daemon."""
    kernel.become_subreaper("launch-porter")
    sweep.carry_mark(int(arguments["agent"]))
    try:
        ward = start(str(arguments["host"]), int(arguments["agent"]))
    except OSError as error:
        os.write(1, refusal(f"the agent can't be started: {error.strerror}"))
        raise
    daemon.let_go()
    kernel.show_as(f"tf-porter {arguments['host']}")
    if not Porter(door, ward, str(arguments["token"]), float(arguments["lease"])).run():
        abandoned()
    sweep.sweep_lost(_LOST_SECONDS)


class Porter:
    """The one thread of it. Nothing in it waits for anybody but in `select.poll`.

    Args:
        door: where connections come in.
        ward: the agent.
        token: of the session.
        lease: seconds that the agent's tasks outlive a launcher of which nothing is heard.
    """

    def __init__(self, door: Door, ward: Ward, token: str, lease: float) -> None:
        now = time.monotonic()
        self._door = door
        self._ward = ward
        self._lease = lease
        self._stream = Stream(token.encode(), KEEP, TAKE, now)
        self._connection: Optional[Connection] = None
        self._attempt = -1
        #: When to give up if nothing is heard (monotonic).
        self._until = now + CLOSED_GRACE
        #: Nobody listens any more.
        self._gave_up = False
        #: When the agent, which has been told to end, is ended by force.
        self._force_at: Optional[float] = None
        #: Guardian and agent are gone, and all that they had started: how that was.
        self._how_it_ended: Optional[str] = None

    def run(self) -> bool:
        """Until the agent is over, and the launcher knows all, or will never ask. Whether it knows."""
        try:
            while not (self._stream.delivered or (self._gave_up and self._how_it_ended is not None)):
                self._turn()
        except BaseException as error:
            self._drop(f"the porter failed: {type(error).__name__}: {error}")
            raise
        self._door.close()
        self._drop()
        return not self._gave_up

    def _turn(self) -> None:
        watch = self._watch()
        poll = select.poll()
        for fd, (events, _) in watch.items():
            poll.register(fd, events)
        for fd, _ in poll.poll(self._milliseconds()):
            _, act = watch[fd]
            act()
        now = time.monotonic()
        self._on_time(now)
        self._give_orders(now)
        self._look_at_agent(now)
        self._ward.lease.hold(max(self._until, self._force_at or 0.0, now + _LONGEST_WAIT))
        self._send(now)

    # ------------------------------------------------------------------ what wakes us

    def _watch(self) -> Watch:
        """File descriptors to wait for: which events, and what to do then."""
        ward, connection = self._ward, self._connection
        watch: Watch = {}
        if not self._gave_up:
            watch[self._door.fileno()] = (select.POLLIN, self._door.enter)
            for fd in self._door.waiting():
                watch[fd] = (select.POLLIN, partial(self._welcome, fd))
        if ward.facts >= 0 and (self._stream.room or self._gave_up):
            watch[ward.facts] = (select.POLLIN, self._read_facts)
        if ward.errors >= 0:
            watch[ward.errors] = (select.POLLIN, ward.read_errors)
        if ward.orders >= 0 and self._stream.incoming():
            watch[ward.orders] = (select.POLLOUT, self._nothing)
        if connection is not None:
            watch[connection.reading] = (select.POLLIN, partial(self._receive, connection))
            watch[connection.bearer.fileno()] = (select.POLLIN, partial(self._lost, connection))
            if self._stream.output(time.monotonic()):
                watch[connection.writing] = (select.POLLOUT, self._nothing)
        return watch

    def _nothing(self) -> None:
        """Writing is tried in every turn."""

    def _milliseconds(self) -> float:
        now = time.monotonic()
        dues = [now + _LONGEST_WAIT if self._gave_up else self._until, self._stream.next_due()]
        if self._how_it_ended is None:
            dues.append(self._force_at)
            # Guardian and agent have let go of their pipe, and become zombies now: of that nothing wakes us.
            dues.append(now + _MOMENT if self._ward.errors < 0 else None)
        return max(0.0, min(due for due in dues if due is not None) - now) * 1000 + 1

    def _on_time(self, now: float) -> None:
        if self._connection is not None:
            self._until = self._stream.heard_at + self._lease
        if not self._gave_up and now >= self._until:
            self._give_up(now)

    # ------------------------------------------------------------------ connections

    def _welcome(self, bearer: int) -> None:
        connection = self._door.take(bearer)
        if connection is None:
            return
        if connection.attempt <= self._attempt:  # it was long on its way
            connection.close()
            return
        self._drop()
        self._attempt = connection.attempt
        self._connection = connection
        self._stream.connect()
        self._stream.heard_at = time.monotonic()

    def _drop(self, last_words: str = "") -> None:
        self._stream.disconnect()
        if self._connection is not None:
            self._connection.close(last_words)
            self._connection = None

    def _lost(self, connection: Connection, why: str = "") -> None:
        """It was closed."""
        if connection is not self._connection:
            return
        now = time.monotonic()
        heard = self._stream.heard_at
        self._drop(why)
        self._until = now + CLOSED_GRACE if now - heard < ALIVE else heard + self._lease

    def _receive(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        try:
            data = os.read(connection.reading, _READ)
            if data:
                self._stream.receive(data, time.monotonic())
            else:
                self._lost(connection)
        except BlockingIOError:
            return
        except OSError:
            self._lost(connection)
        except WireError as error:
            self._lost(connection, str(error))

    def _send(self, now: float) -> None:
        """Send what the connection takes."""
        while self._connection is not None and (data := self._stream.output(now)):
            try:
                self._stream.sent(os.write(self._connection.writing, data))
            except BlockingIOError:
                return
            except OSError:
                self._lost(self._connection)

    # ------------------------------------------------------------------ the agent

    def _read_facts(self) -> None:
        data = self._ward.read_facts(_READ if self._gave_up else min(_READ, self._stream.room))
        if data and not self._gave_up:
            self._stream.write(data)

    def _pass_on(self, remark: bytes) -> None:
        if remark and not self._gave_up:
            self._stream.write(remark)

    def _give_orders(self, now: float) -> None:
        """Hand on what came; after the last of it the agent is to end."""
        stream = self._stream
        try:
            while self._ward.orders >= 0 and (pieces := stream.incoming()):
                stream.took(os.writev(self._ward.orders, pieces))
        except BlockingIOError:
            pass
        except OSError:  # the agent reads no more: it is ending
            self._ward.close_orders()
        if self._ward.orders < 0:
            for piece in stream.incoming():
                stream.took(len(piece))
        if stream.last_words is not None:
            self._force_at = self._force_at or now + ENDING
            if not stream.incoming():
                self._ward.close_orders()

    def _give_up(self, now: float) -> None:
        """Nobody will ever listen again."""
        self._gave_up = True
        self._door.close()
        self._drop()
        self._ward.close_orders()
        self._force_at = self._force_at or now + ENDING

    def _look_at_agent(self, now: float) -> None:
        """Notice its end, end what it left, and tell the launcher when all it said is on its way."""
        if self._how_it_ended is None:
            self._pass_on(self._ward.remark(now))
            if self._ward.over():
                self._end_rest()
            elif self._is_to_be_forced(now):
                self._end_rest(forced=True)
        if self._how_it_ended is not None and self._ward.facts < 0:
            self._stream.finish(self._how_it_ended)

    def _is_to_be_forced(self, now: float) -> bool:
        ending = self._force_at is not None
        return (ending and now >= (self._force_at or 0.0)) or self._ward.is_deaf(now, ending)

    def _end_rest(self, forced: bool = False) -> None:
        left = self._ward.kill()
        words = self._ward.last_words(forced)
        self._how_it_ended = f"{words}; processes that can't be killed: {left}" if left else words
