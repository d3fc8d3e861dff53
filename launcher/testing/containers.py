"""The containers of a test's job, by way of the engine that its launch uses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.errors import TransportError
from launcher.testing import signals
from launcher.testing.waiting import ClusterError
from launcher.transports.docker import engine
from launcher.transports.docker.container import JOB, KEPT, container_name, network_name
from launcher.transports.docker.engine import Result, Thing

#: Seconds for a command of the engine's, and for a Python in a container.
_PATIENCE = 30.0
#: Seconds in which agents end what a launcher that was killed has left; and between two looks.
_AGENTS, _LOOK = 10.0, 0.1


class _Place(NamedTuple):
    """Where a container that was disconnected is connected again."""

    address: str
    names: tuple[str, ...]


class Containers:
    """The containers of one job. The engine is asked only when that is needed.

    Args:
        environ: of the launch: says where the engine is.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._cut: dict[str, _Place] = {}

    def signal(self, job: str, host: str, number: int, pid: int, whom: str, mark: str) -> str | None:
        """Signal a task in the container of ``host``: see `launcher.testing.signals.signal_task`.

        Raises:
            ClusterError: there is no such container, it is paused, or does not answer.
        """
        container = self._container(job, host)
        source = Path(signals.__file__).read_text(encoding="utf-8")
        words = ["exec", container["Id"], container["Config"]["Entrypoint"][0], "-I", "-S", "-c", source]
        result = self._run([*words, str(number), str(pid), whom, mark, "1"], _PATIENCE)
        if result.code == engine.LATE:
            raise _error(host, f"it does not answer within {_PATIENCE:g} s")
        if result.code and (result.err or not result.out.endswith("\n")):  # else it ended with the task
            lines = (result.err or result.out).strip().splitlines()
            raise _error(host, lines[-1] if lines else f"exit code {result.code}")
        states: str | None = json.loads(result.out)
        return states

    def cut(self, job: str, host: str) -> None:
        """Disconnect the container of ``host`` from the job's network, unless it is disconnected.

        Raises:
            ClusterError: there is no such container, or the engine refuses.
        """
        network, container = network_name(job), self._container(job, host)
        joined = container["NetworkSettings"]["Networks"].get(network)
        if joined is not None:
            self._cut[container["Id"]] = _Place(joined["IPAddress"], tuple(joined.get("Aliases") or ()))
            self._ask(host, ["network", "disconnect", network, container["Id"]])
        elif container["Id"] not in self._cut:
            raise _error(host, "it is not on a network of the job's own")

    def mend(self, job: str, host: str) -> None:
        """Connect it again, with the address and the names that it had, if it was cut by `cut`.

        Raises:
            ClusterError: there is no such container, or the engine refuses.
        """
        container = self._container(job, host)["Id"]
        place = self._cut.get(container)
        if place is not None:
            names = [word for name in place.names for word in ("--alias", name)]
            words = ["network", "connect", "--ip", place.address, *names, network_name(job), container]
            self._ask(host, words)
            del self._cut[container]

    def remove(self, job: str) -> list[str]:
        """Remove what a launch that was killed has left at the engine, except what it was to keep.

        Its agents have time to end their containers, which the engine removes then.

        Returns:
            What had not ended, in words.
        """

        def left() -> list[Thing]:
            return [thing for thing in engine.things(self._run, job) if KEPT not in thing.labels]

        try:
            until = time.monotonic() + _AGENTS
            while alive := [thing for thing in left() if thing.kind == "container"]:
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK)
            return engine.remove(self._run, left()) + [f"container {thing.name}" for thing in alive]
        except TransportError as error:
            return [f"what is at the engine ({error})"]

    def _container(self, job: str, host: str) -> Mapping[str, Any]:
        """The engine's description of the container; it is provably this job's."""
        words = ["ps", "--all", "--quiet", "--filter", f"label={JOB}={job}"]
        found = self._ask(host, [*words, "--filter", f"name=^/?{re.escape(container_name(job, host))}$"])
        if not found.split():
            raise _error(host, f"the engine has no container of the job {job} with this name")
        described: Sequence[Mapping[str, Any]] = json.loads(
            self._ask(host, ["inspect", "--type", "container", found.split()[0]])
        )
        return described[0]

    def _run(self, words: Sequence[str], seconds: float) -> Result:
        return engine.run_here(words, seconds, self._environ)

    def _ask(self, host: str, words: Sequence[str]) -> str:
        result = self._run(words, _PATIENCE)
        if result.code:
            raise _error(host, engine.fault_of(result, _PATIENCE))
        return result.out


def _error(host: str, why: str) -> ClusterError:
    return ClusterError(f"the container of {host} can't be reached: {why}")
