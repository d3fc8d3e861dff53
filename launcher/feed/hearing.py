"""What a task says over its connection, and what that means for its link; in the thread of the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import FeedError
from launcher.feed.remote.codec import decode
from launcher.feed.remote.frames import FeedRefused, Kind, ReadAhead, recv_frame
from launcher.feed.remote.messages import Progress, only, to_counted, to_number

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from launcher.feed.link import Link
    from launcher.feed.remote.blocks import Block


def hear(link: Link, sock: socket.socket) -> None:
    """Take what the task says until its connection ends."""
    try:
        ahead = ReadAhead(sock)
        while (frame := recv_frame(ahead)) is not None:
            _heard(link, *frame)
    except FeedError as error:
        _refused(link, str(error), error.__cause__)
    except Exception as error:  # noqa: BLE001 - whatever it is: unheard, it would come again and again
        if isinstance(error, FeedRefused) or not isinstance(error, OSError):
            _refused(link, f"what it says can't be understood: {type(error).__name__}: {error}", error)
    finally:
        with link.wake:
            link.lost_connection(sock)
        sock.close()


def _refused(link: Link, why: str, cause: BaseException | None) -> None:
    """It would say the same again: whoever waits for it raises this, and so does its function."""
    error = FeedError(f"{link.task}: {why}")
    error.__cause__ = cause
    with link.wake:
        link.fail(error)
        link.lose(why)


def _heard(link: Link, kind: int, buffers: list[memoryview]) -> None:
    if kind == Kind.RESULTS:
        if len(buffers) < 2:
            raise FeedRefused("results without any")
        first, results = to_number(buffers[0]), _decoded(buffers[1:])  # takes long: without the lock
        with link.wake:
            link.answered(first, list(results), sum(map(len, buffers)))
        return
    with link.wake:
        if kind == Kind.PROGRESS:
            link.progressed(Progress.unpack(only(buffers)))
        elif kind == Kind.COUNTED:
            link.ledger.counted(*to_counted(only(buffers)))
        elif kind == Kind.TERMINATE:
            link.terminate(returned=bool(buffers))
        else:
            raise FeedRefused(f"a frame of kind {kind} was not expected")


def _decoded(buffers: Sequence[memoryview]) -> Block:
    advice = "make them of what the driver can import, or of texts, numbers and arrays"
    return decode(buffers, f"results that came can't be read by the driver ({{why}}); {advice}")
