"""The containers of a job: made together on a network of their own, removed together, whatever happens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from launcher.errors import HostsError, TransportError
from launcher.job import Host
from launcher.text import listed
from launcher.transport.docker import leftovers, network
from launcher.transport.docker.arrival import WORDS, luggage, new_mark
from launcher.transport.docker.engine import FAULTS, Engine
from launcher.transport.docker.faults import start_fault
from launcher.transport.docker.link import DockerLink
from launcher.transport.docker.options import as_settings
from launcher.transport.docker.pulse import Pulse
from launcher.transport.docker.settings import (
    FIXED_ADDRESSES,
    JOB,
    KEPT,
    Container,
    End,
    container_name,
    network_name,
)
from launcher.transport.docker.watch import Watch

if TYPE_CHECKING:
    from typing import Any

#: Containers that are made at a time, at most.
_AT_ONCE = 16
#: Seconds: without a word, between two words, for all of them to be started, for the first bytes to be taken.
PATIENCE, REPEAT, LIMIT, _FIRST = 2.0, 10.0, 300.0, 30.0
#: Seconds without any answer after which an engine is not asked to remove anything.
_HOPELESS = 10.0
#: Ends what runs in containers of this machine without their engine, and seconds for that.
_KILL, _KILLING = "launcher.agent.inside:kill", 8.0


class Fleet:
    """The containers of one job, as a context; a `launcher.transport.base.Transport` too.

    Args:
        engine: makes them.
        job: its id.
        containers: one for each host.
        labels: of all that is made, besides the job's.
        tell: gets lines for the user; called by other threads too.
        keep: leave containers and network when the job is over.
    """

    def __init__(
        self,
        engine: Engine,
        job: str,
        containers: Sequence[Container],
        labels: Mapping[str, str],
        tell: Callable[[str], None],
        keep: bool = False,
    ) -> None:
        self._engine = engine
        self._job = job
        self._containers = {container.host: container for container in containers}
        self._labels = {**labels, JOB: job, **({KEPT: "1"} if keep else {})}
        self._tell = tell
        self._keep = keep
        self.network = network_name(job)
        self._watch: Watch | None = None
        self._pulse: Pulse | None = None
        self._links: dict[str, DockerLink] = {}
        self._marks = {container.host: new_mark() for container in containers}
        self._given_up = False

    def name(self, host: str) -> str:
        """What the container of a host is called at the engine."""
        return container_name(self._job, host)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._given_up = True
        self._engine.hurry()
        self._engine.attend(self._tell)
        if self._pulse is not None:
            self._pulse.close()
            if self._pulse.silent_for() >= _HOPELESS:
                self._engine.give_up()
        if self._watch is not None:
            self._watch.attentive = False
        for link in self._links.values():
            link.close()
        try:
            if not self._keep:
                self._remove_all()
        finally:
            if self._watch is not None:
                self._watch.close()

    # ------------------------------------------------------------------ the beginning

    def start(self) -> None:
        """Make the network, and all containers at the same time; each agent is on its way then.

        Raises:
            TransportError: something can't be made; all that was is removed with the context.
        """
        # Nothing is made by this thread: a signal may end what it does at any point, and what the engine was
        # just asked to make would be there only after all is removed.
        pool = ThreadPoolExecutor(min(_AT_ONCE, len(self._containers)), "docker")
        try:
            fixed = bool(os.environ.get(FIXED_ADDRESSES))
            joined = pool.submit(network.make, self._engine, self.network, self._labels, fixed)
            self._watch = Watch(self._engine, self._tell)
            self._watch.start()
            joined.result()
            self._engine.attend(None)  # from here on we say ourselves whom we wait for
            begun = {pool.submit(self._begin, one): one.host for one in self._containers.values()}
            self._await(begun)
        finally:
            self._given_up = len(self._links) < len(self._containers)
            pool.shutdown(wait=True, cancel_futures=True)
        self._check(begun)
        self._watch.attentive = True
        self._engine.hurry()
        self._pulse = Pulse(self._engine, self._tell, self._cut_all)
        self._pulse.start()

    def _await(self, begun: dict[Future[None], str]) -> None:
        """Until all are started, one can't be, or it takes too long; say so when it takes long."""
        began = time.monotonic()
        seconds = PATIENCE
        while True:
            done, late = wait(begun, timeout=seconds, return_when=FIRST_EXCEPTION)
            if not late or any(future.exception() for future in done):
                return
            names = sorted(begun[future] for future in late)
            if time.monotonic() - began > LIMIT:
                raise TransportError(f"{listed(names)}: not started by the engine within {LIMIT:.0f} s")
            self._tell(f"waiting for the engine to start {listed(names)}")
            seconds = REPEAT

    def _check(self, begun: Mapping[Future[None], str]) -> None:
        """What is wrong with all of them is said once."""
        faults: dict[str, list[str]] = {}
        for future, host in begun.items():
            error = None if future.cancelled() else future.exception()
            if isinstance(error, TransportError):
                faults.setdefault(str(error), []).append(host)
            elif error is not None:
                raise error
        if faults:
            raise HostsError(f"{listed(hosts)}: {fault}" for fault, hosts in faults.items())

    def _begin(self, container: Container) -> None:
        """In a thread of the pool: make one container, attach to it, start it, send its agent in."""
        if self._given_up:
            return
        try:
            made = self._create(container)
            line = self._attach(made)
        except FAULTS as error:
            raise TransportError(self._fault(error, container)) from error
        try:
            self._engine.client.start(made)
            line.settimeout(_FIRST)
            line.sendall(luggage(container.host, self._marks[container.host]))
        except FAULTS as error:
            line.close()
            raise TransportError(self._fault(error, container)) from error
        hands = _Hands(self._engine, self._watch, container.host, made)
        self._links[container.host] = DockerLink(container, line, hands, self._engine.is_here)

    def _fault(self, error: BaseException, container: Container) -> str:
        return start_fault(self._engine.explain(error), container)

    def _create(self, container: Container) -> str:
        """The id of a container that is not started yet."""
        client = self._engine.client
        made = client.create_container(
            container.image,
            entrypoint=[container.python],
            command=list(WORDS),
            name=self.name(container.host),
            hostname=container.host,
            user=container.user or None,
            stdin_open=True,
            labels=self._labels,
            host_config=client.create_host_config(**self._host_config(container)),
            networking_config=client.create_networking_config(
                {self.network: client.create_endpoint_config(aliases=[container.host])}
            ),
        )
        for warning in made.get("Warnings") or ():
            self._tell(f"{container.host}: {warning}")
        if self._watch is not None:
            self._watch.add(made["Id"], container.host)
        return str(made["Id"])

    def _host_config(self, container: Container) -> dict[str, Any]:
        """Nothing is logged by the engine: what goes through stdout is our link."""
        from docker.types import DeviceRequest, LogConfig, Mount

        config: dict[str, Any] = {
            "auto_remove": not self._keep,
            "network_mode": self.network,
            "log_config": LogConfig(type="none"),
            "mounts": [
                Mount(mount.target, mount.source, type="bind", read_only=mount.read_only)
                for mount in container.mounts
            ],
        }
        if container.memory is not None:
            config.update(mem_limit=container.memory, memswap_limit=container.memory)
        if container.cpus is not None:
            config.update(nano_cpus=round(container.cpus * 1e9))
        if container.gpus:
            wanted = DeviceRequest(device_ids=list(container.gpus), capabilities=[["gpu"]])
            config.update(device_requests=[wanted])
        return {**config, **as_settings(container.options)}

    def _attach(self, made: str) -> socket.socket:
        """A socket of our own; the SDK's would stay open for as long as its answer is not forgotten."""
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        theirs = self._engine.client.attach_socket(made, params)
        below = theirs._sock
        try:
            return socket.socket(fileno=os.dup(theirs.fileno()))
        finally:
            theirs.close()
            below.close()

    # ------------------------------------------------------------------ in the middle

    def open(self, host: Host) -> DockerLink:
        """See `launcher.transport.base.Transport.open`: the agent is on its way already."""
        return self._links[host.name]

    def _cut_all(self) -> None:
        """The engine has not answered for too long: that is the end of every link. By another thread."""
        for link in self._links.values():
            link.cut()

    # ------------------------------------------------------------------ the end

    def _remove_all(self) -> None:
        """Whoever is over is removed by the engine; what is left, by us."""
        try:
            left = leftovers.things(self._engine, self._job)
            told = leftovers.remove(self._engine, left)
        except TransportError as error:
            told = [str(error)]
        if told and self._engine.is_here:
            told += _ended_here([self._marks[host] for host in self._links])
        if told:
            self._tell(f"not all of this job is removed ({'; '.join(told)}): `launch clean` does that later")


class _Hands:
    """See `launcher.transport.docker.link.Hands`."""

    def __init__(self, engine: Engine, watch: Watch | None, host: str, container: str) -> None:
        self._engine = engine
        self._watch = watch
        self._host = host
        self._container = container

    def ended(self, seconds: float) -> End | None:
        return None if self._watch is None else self._watch.wait(self._host, self._container, seconds)

    def why_unknown(self) -> str:
        engine = f"the Docker engine at {self._engine.where.address}"
        if self._engine.hangs:
            return f"{engine} does not answer: how its container is can't be known"
        gone = self._watch is not None and self._watch.broken
        return f"{engine} has gone: was it stopped?" if gone else ""

    def remove(self) -> None:
        found = [leftovers.Thing("container", self._container, self._host, {})]
        leftovers.remove(self._engine, found)


def _ended_here(marks: Sequence[int]) -> list[str]:
    """End what runs in these containers, without their engine; what is to be said of it."""
    from launcher.transport.localerrand import LocalErrands

    try:
        errand = LocalErrands().errand("this machine", _KILL, {"marks": marks})
    except TransportError as error:
        return [str(error)]
    try:
        code = errand.wait(_KILLING)
    finally:
        errand.close()
    told = {0: ["but nothing runs in its containers any more"], 1: ["what runs there goes on"]}
    return [] if code is None else told.get(code, [])
