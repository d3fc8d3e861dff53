"""What goes to a task over its link: chunks, made of partitions as there is room, and a few words; a thread.

What it does next is decided with the lock of the feeder, and done without: making a chunk runs the user's
code, and sending one takes as long as the task does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.feed.remote.frames import Kind, hang_up, send_frame
from launcher.feed.remote.messages import AT_ONCE, number
from launcher.feed.usercode import read_by

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from launcher.feed.flow import Flow
    from launcher.feed.link import Link
    from launcher.feed.remote.codec import Buffer
    from launcher.feed.share import Made, Share

#: Bytes that a task may have without having begun with them.
WINDOW = 4 << 20


class Sender:
    """See the module.

    Args:
        link: what it sends for.
        flow: gives the present flow of the feed.
        ended: says whether the feed has ended.
    """

    def __init__(self, link: Link, flow: Callable[[], Flow | None], ended: Callable[[], bool]) -> None:
        self._link = link
        self._flow = flow
        self._ended = ended
        #: Results that the task is to know we have; ``None``: it knows.
        self._had: int | None = None
        #: Whether it was said that there is no more for now; and that there will be none.
        self._flushed, self._end_sent = True, False
        self._thread = threading.Thread(target=self._run, name=f"feed to {link.task}", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """There is a new connection; with the lock."""
        self._flushed = self._end_sent = False

    def confirm(self, results: int) -> None:
        """Let the task know how many results we have; with the lock."""
        self._had = results

    def join(self, patience: float) -> None:
        """Wait for the thread; the link is over."""
        self._thread.join(patience)

    def _run(self) -> None:
        while True:
            with self._link.wake:
                while (step := self._step()) is None:
                    self._link.wake.wait()
            if not step():
                return

    def _step(self) -> Callable[[], bool] | None:
        """What to do now, without the lock; ``None``: wait."""
        link = self._link
        if link.over:
            return self._farewell
        sock = link.sock
        if sock is None:
            return None
        if (had := self._had) is not None:
            self._had = None
            return lambda: self._send(sock, Kind.KEPT, [number(had)])
        if (frame := link.ledger.to_send()) is not None:
            return lambda: self._send(sock, *frame)
        flow = self._flow()
        if flow is not None and not flow.over and flow.error is None:
            return None if link.terminated else self._feed(flow, sock)
        if self._ended() and not self._end_sent:
            self._end_sent = True
            return lambda: self._send(sock, Kind.END, [AT_ONCE] if link.is_cut_off else [])
        return None

    def _feed(self, flow: Flow, sock: socket.socket) -> Callable[[], bool] | None:
        """Make a chunk, begin with a partition, or say that there is no more for now."""
        ledger = self._link.ledger
        if ledger.window >= WINDOW:
            return None
        if permitted := [number for number in ledger.shares if flow.permits(number)]:
            share = ledger.shares[min(permitted)]
            share.busy = True
            return lambda: self._make(flow, share)
        if (claimed := flow.claim(self._link)) is not None:
            ledger.shares[claimed.number] = claimed
            return lambda: True
        if flow.must_fetch(self._link):
            flow.begin_fetching(self._link)
            return lambda: self._fetch(flow)
        stuck = (flow.all_given and not ledger.shares) or (flow.full and self._link.hungry)
        if stuck and ledger.unconsumed and not self._flushed:
            self._flushed = True
            return lambda: self._send(sock, Kind.FLUSH)
        return None

    def _fetch(self, flow: Flow) -> bool:
        link = self._link
        try:
            partition = read_by(flow.fetch)
        except Exception as error:  # noqa: BLE001 - the user's; whoever called train() gets it
            with link.wake:
                flow.fail(error)
            return True
        with link.wake:
            share = flow.fetched(partition)
            if share is not None and (link.over or link.terminated):
                flow.feed_again(share)
            elif share is not None and not flow.over:
                link.ledger.shares[share.number] = share
        return True

    def _make(self, flow: Flow, share: Share) -> bool:
        link = self._link
        try:
            made = read_by(share.make)
        except Exception as error:  # noqa: BLE001 - the user's; whoever called train() gets it
            with link.wake:
                share.busy = False
                flow.fail(error)
            return True
        with link.wake:
            share.busy = False
            if link.terminated:  # perhaps it has ended, too
                flow.give_up(share)
            elif link.over:
                flow.feed_again(share)
            elif not flow.over:
                self._made(flow, share, made)
        return True

    def _made(self, flow: Flow, share: Share, made: Made | None) -> None:
        if made is None:
            share.complete = True
            self._link.ledger.shares.pop(share.number, None)
            flow.settle(share)
            flow.changed()
            return
        self._link.ledger.add(flow, share, made)
        self._link.hungry = self._flushed = False
        flow.made(share)

    def _send(self, sock: socket.socket, kind: Kind, buffers: Sequence[Buffer] = ()) -> bool:
        try:
            send_frame(sock, kind, buffers)
        except OSError:
            hang_up(sock)
            with self._link.wake:
                self._link.lost_connection(sock)
        return True

    def _farewell(self) -> bool:
        link = self._link
        sock = link.sock
        if sock is not None and not self._end_sent:
            kind = Kind.GONE if link.gone else Kind.END
            self._send(sock, kind, [link.gone.encode()] if link.gone else [])
        if sock is not None:
            hang_up(sock)
        return False
