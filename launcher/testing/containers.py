"""The containers of a test's job, by way of the engine that its launch uses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.errors import TransportError
from launcher.testing import inside
from launcher.testing.trouble import ClusterError

if TYPE_CHECKING:
    from launcher.transport.docker.engine import Engine
    from launcher.transport.docker.leftovers import Thing

#: Seconds that a Python in a container may take for what `launcher.testing.inside` does.
_PATIENCE = 30.0
#: Seconds in which agents end what a launcher that was killed has left to them; and between two looks.
_AGENTS, _LOOK = 10.0, 0.1


class _Cable(NamedTuple):
    """What a container that was disconnected is to have again."""

    address: str
    names: tuple[str, ...]


class Containers:
    """Reaches into containers; nothing is imported and no engine asked before that is needed.

    Args:
        environ: of the launch: says where the engine is.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._found: Engine | None = None
        self._cut: dict[str, _Cable] = {}

    @property
    def _engine(self) -> Engine:
        if self._found is None:
            from launcher.transport.docker.engine import connect

            self._found = connect(self._environ)
        return self._found

    def signal(self, job: str, host: str, number: int, pid: int, whom: str) -> str | None:
        """Signal a task in the container of a host, see `launcher.testing.inside`.

        Returns:
            How its processes are then, a letter for each; ``None``: it has just ended.

        Raises:
            ClusterError: there is no such container, it is paused, or does not answer.
        """
        from launcher.transport.docker.execute import execute

        with _told(host):
            container = self._container(job, host)
            python = container["Config"]["Entrypoint"][0]
            argv = [python, "-I", "-S", "-c", _source(), str(number), str(pid), whom]
            done = execute(self._engine, container["Id"], argv, _PATIENCE)
        if done.code is None:
            raise ClusterError(f"the container of {host} does not answer within {_PATIENCE:g} s")
        answered = done.out.endswith(b"\n") and not done.errors  # its container may have ended with the task
        if done.code and not answered:
            said = (done.errors or done.out).decode("utf-8", "replace").strip().splitlines()
            last = said[-1] if said else f"exit code {done.code}"
            raise ClusterError(f"not to be done in the container of {host}: {last}")
        states: str | None = json.loads(done.out)
        return states

    def cut(self, job: str, host: str) -> None:
        """Disconnect the container of a host from the job's network; nothing if it is.

        Raises:
            ClusterError: there is no such container, or the engine refuses.
        """
        network = _network(job)
        with _told(host):
            container = self._container(job, host)
            joined = container["NetworkSettings"]["Networks"].get(network)
            if joined is None:
                if container["Id"] not in self._cut:
                    raise ClusterError(f"the container of {host} is not on a network of the job's own")
                return
            self._cut[container["Id"]] = _Cable(joined["IPAddress"], tuple(joined.get("Aliases") or ()))
            client = self._engine.client
            self._engine.asked(
                "it can't be disconnected",
                lambda: client.disconnect_container_from_network(container["Id"], network),
            )

    def mend(self, job: str, host: str) -> None:
        """Connect it again, with the address and the names that it had; nothing if it was not cut by us.

        Raises:
            ClusterError: there is no such container, or the engine refuses.
        """
        network = _network(job)
        with _told(host):
            container = self._container(job, host)
            cable = self._cut.get(container["Id"])
            if cable is None:
                return
            client = self._engine.client
            self._engine.asked(
                "it can't be connected",
                lambda: client.connect_container_to_network(
                    container["Id"], network, ipv4_address=cable.address, aliases=list(cable.names)
                ),
            )
            del self._cut[container["Id"]]

    def _container(self, job: str, host: str) -> Mapping[str, Any]:
        """What the engine knows of it; it is provably this job's.

        Raises:
            TransportError: there is none.
        """
        from docker.errors import NotFound

        from launcher.transport.docker.settings import JOB, container_name

        def inspect() -> Mapping[str, Any]:
            try:
                found: Mapping[str, Any] = self._engine.client.inspect_container(container_name(job, host))
            except NotFound:
                return {}
            return found

        found = self._engine.asked("it can't be looked for", inspect)
        if not found or found["Config"]["Labels"].get(JOB) != job:
            where = self._engine.where.address
            raise TransportError(f"the engine at {where} has none of the job {job}")
        return found

    def remove_what_is_left(self, owner: str) -> list[str]:
        """Remove what a launch that was killed has left, but for what it was to keep.

        Its agents get time to end their containers, which the engine removes then.

        Args:
            owner: how its label begins: the launcher's pid and its start.

        Returns:
            What had not ended, in words.
        """
        from launcher.transport.docker import leftovers
        from launcher.transport.docker.settings import KEPT, OWNER

        def ours() -> list[Thing]:
            said = leftovers.things(self._engine)
            mine = (thing for thing in said if thing.labels.get(OWNER, "").startswith(f"{owner}:"))
            return [thing for thing in mine if KEPT not in thing.labels]

        try:
            until = time.monotonic() + _AGENTS
            while alive := [thing for thing in ours() if thing.kind == "container"]:
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK)
            left = leftovers.remove(self._engine, ours())
        except TransportError as error:
            return [f"what is at the engine ({error})"]
        return left + [f"container {thing.name}" for thing in alive]

    def close(self) -> None:
        """Let go of the engine."""
        if self._found is not None:
            self._found.close()
            self._found = None


@contextmanager
def _told(host: str) -> Iterator[None]:
    """What the engine could not do is told to the test."""
    try:
        yield
    except TransportError as error:
        raise ClusterError(f"the container of {host} can't be reached: {error}") from error


def _network(job: str) -> str:
    from launcher.transport.docker.settings import network_name

    return network_name(job)


def _source() -> str:
    return Path(inside.__file__).read_text(encoding="utf-8")
