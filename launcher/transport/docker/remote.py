"""The link to an agent in a container of another machine: that of SSH, and at its end ``docker run``.

::

    orchestrator ══ pipes ══ carrier ══ ssh ══ porter ══ docker run ══ engine ══ agent

The agent's own code goes the whole way: the image's Python is greeted here, as one of this machine is.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from launcher.errors import TransportError
from launcher.job import Host
from launcher.model.container import ENDED, ENDED_THERE, GOES_ON, UNSEEN
from launcher.transport.docker.frames import Demultiplexer
from launcher.transport.old import OldLink
from launcher.transport.ssh.link import SshLink, SshTransport
from launcher.transports.docker.container import Container
from launcher.transports.docker.faults import end_fault
from launcher.transports.docker.here import Arrival

if TYPE_CHECKING:
    from typing import Any

    from launcher.transport.ssh.redial import Dialling

#: Seconds for the pipe to the carrier to take our code, of which it holds nearly all.
_BRING = 10.0
_WARNING = "WARNING: "
_GOES_ON = (
    "what runs in its container may go on until the engine is back: then the next launch there removes it, "
    "or `launch clean --hosts ...`"
)
_MADE_LATER = (
    "what it may still make of the container is removed by the next launch there, or by "
    "`launch clean --hosts ...`"
)
_NOT_KILLED = "some of what ran in its container can't be killed"
_ENDED_THERE = "all that ran in its container was ended without it"
_HANGS = "is it stopped, or stuck? `docker info` there waits, too, while it is"
#: Characters of what can't be understood that are quoted; bytes of a remark that are kept.
_MOST_QUOTED, _MOST_REMARKED = 200, 16 * 1024
_BY_FORCE = "it did not end, so it and all it had started were killed"


class Berth:
    """One container on another machine, before it exists.

    Args:
        container: what it is to be like.
        run: the words that start it.
        name: what it is called there.
        env: variables that say where the engine is.
    """

    def __init__(self, container: Container, run: list[str], name: str, env: Mapping[str, str]) -> None:
        self.container = container
        self.arrival = Arrival(container, "launcher.agent.inside:main")
        self.there = {"run": run, "name": name, "env": dict(env), "mark": self.arrival.mark}


class RemoteTransport:
    """Opens links to agents in containers of other machines; see `SshTransport` for the other arguments.

    Args:
        berths: of each host, the container that is to be started there.
    """

    def __init__(
        self,
        berths: Mapping[str, Berth],
        fleet: Dialling,
        tell: Callable[[str], None],
        lease: float,
        job: str = "",
    ) -> None:
        self._berths = berths
        self._tell = tell
        self._ssh = SshTransport(fleet, tell, lease, job)

    def open(self, host: Host) -> OldLink:
        """Start the container of ``host``; see `Transport.open`."""
        berth = self._berths[host.name]
        link = self._ssh.open(host, berth.there)
        return OldLink(host.name, RemoteLink(link, berth, self._tell))


class RemoteLink:
    """One link; see `launcher.transport.base.Link`."""

    same_clock = False

    def __init__(self, link: SshLink, berth: Berth, tell: Callable[[str], None]) -> None:
        self._link = link
        self._tell = tell
        self._passed_on: set[str] = set()
        self._demultiplexer = Demultiplexer()
        self._remarks = b""
        #: Whoever reads has seen the end, and will ask for its reason.
        self._at_end = False
        self.reading, self.writing = link.reading, link.writing
        self._container = berth.container
        self._arrival = berth.arrival
        try:
            self._send(self._arrival.unsent)
        except TransportError:
            link.close()
            raise

    def _send(self, data: bytes) -> None:
        """All of it, to the carrier: that takes it whether or not there is a connection just now.

        Raises:
            TransportError: it does not.
        """
        until = time.monotonic() + _BRING
        left = memoryview(data)
        poll = select.poll()
        poll.register(self._link.writing, select.POLLOUT)
        while left:
            left = left[self._link.write(left) :]
            if left and (time.monotonic() > until or _is_closed(poll.poll(100))):
                raise TransportError(f"{self._container.host}: our program could not be sent")

    def read(self, size: int) -> bytes | None:
        """See `Link.read`; what comes before the agent itself is not for the reader."""
        data = self._link.read(size)
        if self._arrival.fault:
            return b""
        if not data:
            self._at_end = self._at_end or data == b""
            return data
        said, remarks = self._demultiplexer.feed(data)
        self._tell_remarks(remarks)
        out = said if self._arrival.ready else self._arrival.feed(said)
        return b"" if self._arrival.fault else out or None

    def _tell_remarks(self, data: bytes) -> None:
        """What the host has to say, a line each."""
        *lines, rest = (self._remarks + data).split(b"\n")
        self._remarks = rest[:_MOST_REMARKED]
        for line in lines:
            self._tell(f"{self._container.host}: {line.decode('utf-8', 'replace')}")

    def write(self, data: bytes | memoryview) -> int:
        """See `Link.write`."""
        return self._link.write(data)

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`."""
        words = self._link.wait(seconds)
        return None if words is None else self._arrival.fault or self._told(words)

    def _told(self, words: str) -> str:
        if not words.startswith(ENDED):
            return words
        found: dict[str, Any]
        try:
            found, end = json.JSONDecoder().raw_decode(words[len(ENDED) :])
        except ValueError:
            return f"its container ended; how can't be understood: {words[len(ENDED) :][:_MOST_QUOTED]!r}"
        said = self._without_warnings(str(found["said"]))
        if not self._at_end and found["inside"] in (GOES_ON, UNSEEN):
            self._tell_once(self._what_is_left(found["inside"]))
        return self._how(found, said) + words[len(ENDED) + end :]

    def _how(self, found: Mapping[str, Any], said: str) -> str:
        code, left = found["code"], self._what_is_left(found["inside"])
        if found["silent"]:
            what = f"its Docker engine has not answered for {found['silent']:.0f} s: {_HANGS}"
            return f"{what}; {left}"
        if found["forced"]:
            return f"{_BY_FORCE}{left and '; '}{left}"
        if code is None:
            return f"its `docker run` was killed{left and '; '}{left}"
        how = end_fault(code, self._container, self._arrival.ready, said)
        return f"{how}; {left}" if left else how

    def _what_is_left(self, inside: str) -> str:
        """What became of the processes that the engine did not end; empty: it did."""
        if inside == UNSEEN and not self._arrival.ready:
            return _MADE_LATER
        return {ENDED_THERE: _ENDED_THERE, GOES_ON: _NOT_KILLED, UNSEEN: _GOES_ON}.get(inside, "")

    def _without_warnings(self, said: str) -> str:
        """What is left when the command's own remarks are passed on, each once."""
        lines = said.splitlines()
        warnings = [line for line in lines if line.startswith(_WARNING)]
        for warning in warnings:
            self._tell_once(warning.removeprefix(_WARNING))
        return "\n".join(line for line in lines if line not in warnings)

    def _tell_once(self, text: str) -> None:
        if text not in self._passed_on:
            self._passed_on.add(text)
            self._tell(f"{self._container.host}: {text}")

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`; the container is removed."""
        words = self._link.kill(seconds)
        return None if words is None else self._told(words)

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        self._link.hang_up()
        self.writing = self._link.writing

    def close(self) -> None:
        """See `Link.close`."""
        self._link.close()
        self.reading, self.writing = self._link.reading, self._link.writing


def _is_closed(events: list[tuple[int, int]]) -> bool:
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in events)
