"""The containers of a test's job, by way of the engine that its launch uses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from launcher.errors import TransportError
from launcher.testing import inside
from launcher.testing.trouble import ClusterError
from launcher.transports.docker import engine
from launcher.transports.docker.container import JOB, KEPT, OWNER, container_name, network_name
from launcher.transports.docker.engine import Result, Thing

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
        self._cut: dict[str, _Cable] = {}

    def signal(self, job: str, host: str, number: int, pid: int, whom: str) -> str | None:
        """Signal a task in the container of a host, see `launcher.testing.inside`.

        Returns:
            How its processes are then, a letter for each; ``None``: it has just ended.

        Raises:
            ClusterError: there is no such container, it is paused, or does not answer.
        """
        with _told(host):
            container = self._container(job, host)
        python = container["Config"]["Entrypoint"][0]
        words = ["exec", container["Id"], python, "-I", "-S", "-c", _source(), str(number), str(pid), whom]
        done = self._run(words, _PATIENCE)
        if done.code == engine.LATE:
            raise ClusterError(f"the container of {host} does not answer within {_PATIENCE:g} s")
        if done.code and "is paused" in done.err:
            raise ClusterError(f"the container of {host} can't be reached: {done.fault}")
        answered = done.out.endswith("\n") and not done.err  # its container may have ended with the task
        if done.code and not answered:
            lines = (done.err or done.out).strip().splitlines()
            last = lines[-1] if lines else f"exit code {done.code}"
            raise ClusterError(f"not to be done in the container of {host}: {last}")
        states: str | None = json.loads(done.out)
        return states

    def cut(self, job: str, host: str) -> None:
        """Disconnect the container of a host from the job's network; nothing if it is.

        Raises:
            ClusterError: there is no such container, or the engine refuses.
        """
        network = network_name(job)
        with _told(host):
            container = self._container(job, host)
            joined = container["NetworkSettings"]["Networks"].get(network)
            if joined is None:
                if container["Id"] not in self._cut:
                    raise ClusterError(f"the container of {host} is not on a network of the job's own")
                return
            self._cut[container["Id"]] = _Cable(joined["IPAddress"], tuple(joined.get("Aliases") or ()))
            self._asked(["network", "disconnect", network, container["Id"]], "it can't be disconnected")

    def mend(self, job: str, host: str) -> None:
        """Connect it again, with the address and the names that it had; nothing if it was not cut by us.

        Raises:
            ClusterError: there is no such container, or the engine refuses.
        """
        with _told(host):
            container = self._container(job, host)
            cable = self._cut.get(container["Id"])
            if cable is None:
                return
            names = [word for name in cable.names for word in ("--alias", name)]
            words = ["network", "connect", "--ip", cable.address, *names, network_name(job), container["Id"]]
            self._asked(words, "it can't be connected")
            del self._cut[container["Id"]]

    def _run(self, words: Sequence[str], seconds: float) -> Result:
        return engine.run_here(words, seconds, self._environ)

    def _asked(self, words: Sequence[str], fault: str) -> str:
        done = self._run(words, _PATIENCE)
        if done.code:
            raise TransportError(f"{fault}: {engine.fault_of(done, _PATIENCE)}")
        return done.out

    def _container(self, job: str, host: str) -> Mapping[str, Any]:
        """What the engine knows of it; it is provably this job's.

        Raises:
            TransportError: there is none.
        """
        words = ["ps", "--all", "--quiet", "--filter", f"label={JOB}={job}"]
        found = self._asked(
            [*words, "--filter", f"name=^/?{re.escape(container_name(job, host))}$"], "it can't be looked for"
        )
        if not found.split():
            raise TransportError(f"the engine has none of the job {job}")
        container: Mapping[str, Any] = json.loads(
            self._asked(["inspect", "--type", "container", found.split()[0]], "it can't be looked at")
        )[0]
        return container

    def remove_what_is_left(self, owner: str) -> list[str]:
        """Remove what a launch that was killed has left, but for what it was to keep.

        Its agents get time to end their containers, which the engine removes then.

        Args:
            owner: how its label begins: the launcher's pid and its start.

        Returns:
            What had not ended, in words.
        """

        def ours() -> list[Thing]:
            things = (thing for thing in engine.things(self._run) if KEPT not in thing.labels)
            return [thing for thing in things if thing.labels[OWNER].startswith(f"{owner}:")]

        try:
            until = time.monotonic() + _AGENTS
            while alive := [thing for thing in ours() if thing.kind == "container"]:
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK)
            left = engine.remove(self._run, ours())
        except TransportError as error:
            return [f"what is at the engine ({error})"]
        return left + [f"container {thing.name}" for thing in alive]

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def _told(host: str) -> Iterator[None]:
    """What the engine could not do is told to the test."""
    try:
        yield
    except TransportError as error:
        raise ClusterError(f"the container of {host} can't be reached: {error}") from error


def _source() -> str:
    return Path(inside.__file__).read_text(encoding="utf-8")
