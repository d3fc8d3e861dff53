"""What carries bytes between two pipes of ours and the porter of a host, over whichever connection there is.

A thread for each host: it sends and receives, notices silence, has the host dialled anew, and gives up when
the lease is over. `launcher.agent.porter` is the other end, `launcher.stream` what goes between them.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.errors import ConnectionLost, TransportError, WireError
from launcher.stream import Refused, Stream
from launcher.text import nothing_started
from launcher.transport.base import Errand
from launcher.transport.ssh.entries import ATTACH, CARRYING, CONTAINER, PORTER
from launcher.transport.ssh.pipes import Pipes
from launcher.transport.ssh.redial import Dialling, Redial, await_errand
from launcher.transport.ssh.wake import Wake

if TYPE_CHECKING:
    from typing import Any

#: Seconds between two pings, and without any answer until a connection counts as lost.
PING = 2.0
SILENCE = 5.0
#: The same for a new connection: our program must get there first, and start.
FIRST_ANSWER = 15.0
#: Seconds between two tries to connect, at first and at most.
BACKOFF, MOST_BACKOFF = 0.2, 1.0
#: Seconds that the host's own lease is shorter, so that all has ended there when ours is over; of a short
#: lease it is a part.
HEAD_START, _LEAST_SHARE = 2.0, 0.7
#: Seconds for the last acknowledgement to be on its way, and for the end when nobody waits for it any more.
LAST_WORD = 1.0
CLOSING = 10.0
#: Seconds in which a connection that was lost may well be back.
HOPE = 3.0
#: Bytes that wait for the connection, and for the reader.
KEEP = 1024 * 1024
TAKE = 8 * 1024 * 1024
_READ = 256 * 1024
#: Seconds between two looks at a connection that takes nothing, and at anything.
_LOOK, _LONGEST_WAIT = 0.05, 10.0


class Carrier(threading.Thread):
    """The thread of one host.

    Args:
        host: its name.
        fleet: connects.
        porter: its arguments: ``host``, ``agent``, ``lease``, ``token``; ``job`` if files were brought there;
            ``container`` if the agent is to be in one.
        facts, orders: our ends of two pipes, for what the agent says and what it is told; closed at the end.
        tell: gets a line for the user when the connection is lost, and when it is back.
    """

    def __init__(
        self,
        host: str,
        fleet: Dialling,
        porter: dict[str, Any],
        facts: int,
        orders: int,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(name=f"ssh-{host}", daemon=True)
        now = time.monotonic()
        self._host, self._fleet, self._tell = host, fleet, tell
        self._lease = float(porter["lease"])
        self._porter = {**porter, "lease": max(self._lease - HEAD_START, self._lease * _LEAST_SHARE)}
        self._entry = CONTAINER if "container" in porter else CARRYING if porter.get("job") else PORTER
        self._stream = Stream(str(porter["token"]).encode(), KEEP, TAKE, now, PING)
        self._pipes = Pipes(facts, orders, self._stream, now)
        self._began = now
        self._wake = Wake()
        self._errand: Errand | None = None
        self._redial: Redial | None = None
        #: Connections so far; when the last of them was begun, and how long to wait for the next.
        self._attempts = 0
        self._tried_at = now
        self._backoff = 0.0
        self._why_not = "the network to it, or the host itself, is down"
        #: Whether the porter has ever answered.
        self._met = False
        #: When the connection was lost; ``None``: it is there.
        self._lost_at: float | None = None
        #: See `hold` and `go_on`.
        self._held = self._killed = False
        #: When to go, whatever there is: nobody waits for the end.
        self._leave_at: float | None = None
        #: All is over.
        self.over = threading.Event()
        #: How it ended; empty if all is well.
        self.last_words = "the thread that carries its bytes failed"

    # ------------------------------------------------------------------ for others to call

    def discard(self) -> None:
        """Nobody reads any more what the agent says."""
        self._pipes.discards = True
        self._wake.ring()

    @property
    def hopeless(self) -> bool:
        """Whether there has been no connection for a while: nothing is to be had from the host soon."""
        lost_at = self._lost_at
        return lost_at is not None and time.monotonic() >= lost_at + HOPE

    def hold(self) -> None:
        """The agent is being killed, over the connection there is: make no other."""
        self._held = True

    def go_on(self, killed: bool) -> None:
        """After `hold`: whether nothing is left of the agent."""
        self._held, self._killed = False, killed
        self._wake.ring()

    def leave(self) -> None:
        """Nobody waits for the end."""
        self._leave_at = time.monotonic() + CLOSING
        self.discard()

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self.last_words = self._carry()
            self._send_last()
        finally:
            self._close()

    def _carry(self) -> str:
        try:
            self._use(self._fleet.errand(self._host, self._entry, self._arguments()))
        except TransportError as error:
            if not self._may_try_again(error):
                return self._bare(error)
            self._lose(self._bare(error))
        while True:
            self._wait()
            words = self._exchange()
            if words is None:
                words = self._look_at_time(time.monotonic())
            if words is not None:
                return words

    def _exchange(self) -> str | None:
        """Move what can be moved; the last words if there is nobody to exchange with."""
        self._pipes.take_orders()
        try:
            self._receive()
            self._note_return(time.monotonic())
            self._pipes.deliver(time.monotonic())
            self._send()
        except Refused as error:
            return str(error)
        except (TransportError, WireError) as error:
            if not self._may_try_again(error):
                return self._bare(error)
            self._drop_errand()
            self._lose(self._bare(error))
        return None

    def _may_try_again(self, error: Exception) -> bool:
        """Whether another connection may do better than the one that failed.

        Before the porter has answered that holds once: what breaks again breaks because of us.
        """
        if self._met or self._redial is not None:
            return True
        return isinstance(error, ConnectionLost) and self._attempts == 1

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        self._pipes.watch(poll)
        if self._errand is not None:
            poll.register(self._errand, select.POLLIN)
        poll.poll(max(0.0, self._next_due() - time.monotonic()) * 1000 + 1)
        self._wake.clear()

    def _next_due(self) -> float:
        now = time.monotonic()
        dues = [now + _LONGEST_WAIT, self._stream.next_due(), self._pipes.next_due(), self._leave_at]
        if self._stream.output(now):
            dues.append(now + _LOOK)
        if self._stream.last_words is None:
            dues.append(self._stream.heard_at + self._lease)
            if self._redial is None and not self._held:
                dues.append(max(self._tried_at + self._backoff, self._silent_at() if self._errand else 0.0))
        return min(due for due in dues if due is not None)

    def _look_at_time(self, now: float) -> str | None:
        words = self._stream.last_words
        if words is not None:
            return None if self._stream.incoming() else words
        if now >= self._stream.heard_at + self._lease:
            tasks = "; its agent ends the tasks there by itself" if self._met else ""
            return f"no answer for {self._lease:.0f} s: {self._why_not}{tasks}"
        if self._leave_at is not None and (now >= self._leave_at or self._lost_at is not None):
            return "nobody waited for its end"
        if self._killed and self._errand is None:
            return "it was killed"
        self._look_at_connection(now)
        return None

    # ------------------------------------------------------------------ connections

    def _look_at_connection(self, now: float) -> None:
        """Is it silent, is it back, is it time to try again?"""
        if self._redial is not None and self._redial.over:
            self._take_new(self._redial)
        silent = self._errand is None or now >= self._silent_at()
        if silent:
            if self._errand is not None and not self._met:
                self._why_not = nothing_started(FIRST_ANSWER)
            self._lose(f"no answer for {now - self._stream.heard_at:.0f} s" if self._met else self._why_not)
            if self._redial is None and not self._held and now >= self._tried_at + self._backoff:
                self._begin_redial()

    def _note_return(self, now: float) -> None:
        """It is said before what comes over it is shown."""
        back = self._errand is not None and self._stream.met and now < self._silent_at()
        if back and self._lost_at is not None:
            self._say(f"connected again after {now - self._lost_at:.0f} s")
            self._lost_at = None
            self._backoff = 0.0

    def _silent_at(self) -> float:
        """When the present connection counts as lost if nothing comes."""
        if self._stream.met:
            return self._stream.heard_at + SILENCE
        return max(self._stream.heard_at, self._tried_at) + FIRST_ANSWER

    def _lose(self, why: str) -> None:
        """The connection broke, or is silent: then it may still come back before there is another."""
        if self._lost_at is None and self._stream.last_words is None:
            self._lost_at = time.monotonic()
            left = self._stream.heard_at + self._lease - self._lost_at
            what = "its tasks go on, trying again" if self._met else "trying again"
            self._say(f"connection lost ({why}); {what} for {left:.0f} s")

    def _begin_redial(self) -> None:
        entry = ATTACH if self._met else self._entry
        self._redial = Redial(self._fleet, self._host, entry, self._arguments(), self._wake.ring)
        self._redial.start()

    def _take_new(self, redial: Redial) -> None:
        self._redial = None
        self._tried_at = time.monotonic()
        self._backoff = min(MOST_BACKOFF, self._backoff * 2 or BACKOFF)
        if redial.error:
            self._why_not = self._bare(redial.error)
        errand = redial.take()
        if errand is not None:
            self._use(errand)

    def _use(self, errand: Errand) -> None:
        self._drop_errand()
        self._errand = errand
        self._tried_at = time.monotonic()
        self._stream.connect()

    def _drop_errand(self) -> None:
        if self._errand is not None:
            self._errand.close()
            self._errand = None
            self._stream.disconnect()

    def _arguments(self) -> dict[str, Any]:
        self._attempts += 1
        return {**self._porter, "attempt": self._attempts, "age": time.monotonic() - self._began}

    # ------------------------------------------------------------------ bytes

    def _receive(self) -> None:
        errand = self._errand
        while errand is not None and (data := errand.recv(_READ)) is not None:
            if not data:
                raise TransportError(self._why_ended(errand))
            self._stream.receive(data, time.monotonic())
            self._met = self._met or self._stream.met

    def _why_ended(self, errand: Errand) -> str:
        said = errand.said().strip().splitlines()
        if self._met:
            return said[-1] if said else "it was closed"
        return f"the agent can't be started: {said[-1] if said else 'it was killed'}"

    def _send(self) -> None:
        now = time.monotonic()
        while self._errand is not None and (data := self._stream.output(now)):
            sent = self._errand.send(data)
            if not sent:
                return
            self._stream.sent(sent)

    # ------------------------------------------------------------------ the end

    def _send_last(self) -> None:
        """The porter waits to hear that we have all it said."""
        until = time.monotonic() + LAST_WORD
        try:
            while self._errand is not None and self._stream.output(0.0) and time.monotonic() < until:
                self._send()
                await_errand(self._errand, _LOOK if self._stream.output(0.0) else 0.0)
        except TransportError:
            return

    def _close(self) -> None:
        self._pipes.close()
        late = self._redial.take() if self._redial is not None else None
        if late is not None:
            late.close()
        self._drop_errand()
        self._wake.close()
        self.over.set()

    def _say(self, text: str) -> None:
        if not self._pipes.hung_up:
            self._tell(f"{self._host}: {text}")

    def _bare(self, error: object) -> str:
        """An error of this host, without its name."""
        return str(error).removeprefix(f"{self._host}: ")
