"""What a porter says of a container, which only the launcher can put into words."""

from __future__ import annotations

#: Begins the last words of an agent in a container on another machine; JSON follows: ``code``, the exit code
#: of ``docker run`` (``None``: it was killed), ``said``, what came from its stderr, ``silent``, for how many
#: seconds the engine had not answered (0: it did), ``forced``, whether it was ended by force, and ``inside``.
ENDED = "container ended: "
#: What became of the processes in a container that the engine did not end (``inside``; empty: it did): they
#: were ended on their host; they can't be; they are not to be seen there.
ENDED_THERE, GOES_ON, UNSEEN = "ended", "goes on", "unseen"
#: Numbers of the streams in what a porter passes on, each piece with a head: what the
#: container says, and remarks for the user, a line each.
SAID, REMARK = 1, 2


def framed(stream: int, data: bytes) -> bytes:
    """A piece of a stream, with the head of Docker's own attached streams: number, three zeros, size."""
    return bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data
