"""The link to an agent on another machine: a pair of pipes here, whatever becomes of the connection.

::

    orchestrator ══ pipes ══ carrier (a thread) ══ ssh ══ porter ══ pipes ══ agent
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.errors import TransportError
from launcher.job import Host
from launcher.model.watermark import agent_number
from launcher.transport.base import Errand
from launcher.transport.pipelink import PipeLink, enlarge
from launcher.transport.ssh.carrier import Carrier
from launcher.transport.ssh.redial import Dialling, await_errand

KILL = "launcher.processes.sweep:kill"
#: The same of an agent in a container.
KILL_CONTAINER = "launcher.agent.container:kill"

#: Seconds for a carrier to notice that its agent was killed.
_NOTICE = 1.0
#: Seconds between two looks whether an end is still to be waited for.
_LOOK = 0.1


class SshTransport:
    """Opens links to agents on other machines.

    Args:
        fleet: has connections to them.
        tell: gets a line for the user when one is lost, and when it is back; called by other threads.
        lease: seconds that the tasks of a host outlive a lost connection.
        job: the run whose files were brought to the hosts; empty: none were.
    """

    def __init__(
        self, fleet: Dialling, tell: Callable[[str], None], lease: float = 60.0, job: str = ""
    ) -> None:
        self._job = job
        self._fleet = fleet
        self._tell = tell
        self._lease = lease

    def open(self, host: Host, container: Mapping[str, Any] | None = None) -> SshLink:
        """Start the agent of ``host``; see `Transport.open`.

        Args:
            host: where.
            container: what `launcher.agent.container` needs to start it in one; ``None``: in none.
        """
        try:
            return SshLink(host.name, self._fleet, self._tell, self._lease, self._job, container)
        except (OSError, RuntimeError) as error:
            raise TransportError(f"{host.name}: there can't be a link to it: {error}") from error


class SshLink(PipeLink):
    """One link; see `launcher.transport.base.Link`.

    Raises:
        OSError, RuntimeError: there is no pipe, or no thread, to be had.
    """

    same_clock = False

    def __init__(
        self,
        host: str,
        fleet: Dialling,
        tell: Callable[[str], None],
        lease: float,
        job: str = "",
        container: Mapping[str, Any] | None = None,
    ) -> None:
        self._host = host
        self._container = container
        self._fleet = fleet
        self._number = agent_number(int.from_bytes(os.urandom(8), "little"))
        fds: list[int] = []
        try:
            fds.extend(os.pipe())
            fds.extend(os.pipe())
            reading, facts, orders, writing = fds
            super().__init__(reading, writing)
            for fd in fds:
                os.set_blocking(fd, False)
            for fd in (facts, orders):
                enlarge(fd)
            porter: dict[str, Any] = {
                "host": host,
                "agent": self._number,
                "lease": lease,
                "token": os.urandom(16).hex(),
            }
            if job:
                porter["job"] = job
            if container is not None:
                porter["container"] = container
            self._carrier = Carrier(host, fleet, porter, facts, orders, tell)
            self._carrier.start()
        except (OSError, RuntimeError):
            for fd in fds:
                os.close(fd)
            raise

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`."""
        if self.writing < 0:
            self._carrier.discard()
        until = time.monotonic() + seconds
        while not self._carrier.over.wait(max(0.0, min(_LOOK, until - time.monotonic()))):
            if self._carrier.hopeless or time.monotonic() >= until:
                return None
        return self._carrier.last_words

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`; what the agent started, it, its guardian and its porter carry its watermark."""
        until = time.monotonic() + seconds
        self.hang_up()
        self._carrier.hold()
        killed = not self._carrier.hopeless and self._kill_there(until)
        self._carrier.go_on(killed)
        return self.wait(_NOTICE if killed else 0.0)

    def _kill_there(self, until: float) -> bool:
        """Whether nothing is left of it for certain."""
        inside = self._container is not None
        arguments = {"agent": self._number, **({"container": self._container} if inside else {})}
        try:
            errand = self._fleet.errand(self._host, KILL_CONTAINER if inside else KILL, arguments)
        except TransportError:
            return False
        try:
            return _status(errand, until) == 0
        finally:
            errand.close()

    def close(self) -> None:
        """See `Link.close`. What is left to be said to the agent is said by the carrier, which ends soon."""
        self.hang_up()
        self._carrier.leave()
        if self.reading >= 0:
            os.close(self.reading)
            self.reading = -1


def _status(errand: Errand, until: float) -> int | None:
    """The exit status of an errand that says nothing; ``None``: not in time."""
    try:
        while (left := until - time.monotonic()) > 0:
            if errand.recv(1) == b"":
                return errand.wait(left)
            await_errand(errand, left)
    except TransportError:
        pass
    return None
