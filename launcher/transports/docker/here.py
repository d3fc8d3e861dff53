"""The containers of a job at the engine of this machine, on a network of the job."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO

from launcher.agent.processes import new_agent_number
from launcher.errors import HostsError, TransportError
from launcher.job import Host
from launcher.text import listed
from launcher.transports import bootstrap
from launcher.transports.docker import engine
from launcher.transports.docker.container import KEPT, Container, container_name, network_name, run_words
from launcher.transports.docker.engine import Run
from launcher.transports.docker.faults import end_fault
from launcher.transports.docker.options import DockerOptions
from launcher.transports.local import PipeLink

#: The program in a container.
AGENT = "launcher.agent.main:run"
#: Seconds: until the user is told what launch waits for, between two such lines, for all containers to start,
#: and for the others to fail in the same way once one has failed.
_FIRST, _NEXT, _START, _OTHERS = 2.0, 10.0, 300.0, 10.0
#: Seconds for containers to end by themselves, and for an answer of an engine that may hang.
_END, _HURRY = 10.0, 10.0


def ready(
    containers: Sequence[Container], docker: DockerOptions, tell: Callable[[str], None]
) -> tuple[list[Container], bool]:
    """See that the engine of this machine can run these containers: it responds, and has the image.

    What launches have left there that were killed is removed.

    Args:
        containers: as planned.
        docker: says when to pull, and the user of the tasks.
        tell: gets lines for the user.

    Returns:
        The containers with the user of their tasks, and whether they have this machine's clock.

    Raises:
        TransportError: the engine can't.
    """
    with reminder(tell, "waiting for the Docker engine to respond"):
        info = engine.inspect(engine.run_here)
    engine.sweep(engine.run_here, tell)
    found = engine.provide(engine.run_here, docker.image, docker.pull, tell, "", engine.pull_here)
    wrong = engine.mismatch(docker.image, found, info.architecture)
    # What a task writes to a mount belongs to the caller, who is root in the containers of a rootless engine.
    user = docker.user or ("0:0" if info.rootless else f"{os.getuid()}:{os.getgid()}")
    its = [container._replace(user=user, architecture=wrong) for container in containers]
    return its, info.name == os.uname().nodename


@contextmanager
def reminder(tell: Callable[[str], None], text: str) -> Iterator[None]:
    """Tell the user what launch waits for when it takes long."""
    timer = threading.Timer(_FIRST, tell, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Arrival:
    """How the agent arrives in a container: what is sent to its Python, and the mark that comes back.

    Args:
        container: what it is.
        program: see `launcher.transports.bootstrap.program`.

    ``unsent`` is to be written to its stdin. ``ready``: all that follows on stdout is the agent's. ``fault``:
    why there will be no agent; empty as far as is known.
    """

    def __init__(self, container: Container, program: bytes) -> None:
        self._container = container
        self._output = b""
        self.unsent = program
        self.ready = False
        self.fault = ""

    def feed(self, data: bytes) -> bytes:
        """Take what the container printed up to the mark; what follows is returned."""
        self._output += data
        found = bootstrap.find_mark(self._output)
        if found is None:
            if len(self._output) > bootstrap.MAX_NOISE:
                self.fault = f"its {self._container.python} printed too much before the agent started"
            return b""
        word, rest = found[0], self._output[found[1] :]
        if word == bootstrap.READY:
            self.ready = True
        elif word.startswith(bootstrap.TOO_OLD):
            version = word[len(bootstrap.TOO_OLD) :].strip()
            self.fault = (
                f"{self._container.python} of the image {self._container.image} is Python {version}, which "
                "is too old: it must be 3.8 or later; --python names another Python of the image"
            )
        else:
            self.fault = (
                f"the image {self._container.image} answered {word!r}, which this version does not know"
            )
        return rest


class ContainerLink(PipeLink):
    """The pipes to the agent in a container: stdin and stdout of its ``docker run``.

    Args:
        container: what it is.
        name: its name at the engine.
        words: the arguments of ``docker`` that start it.
        run: the engine.
        same_clock: the container has this machine's clock.

    Raises:
        OSError: the command can't be started.
    """

    def __init__(
        self, container: Container, name: str, words: Sequence[str], run: Run, same_clock: bool
    ) -> None:
        self.same_clock = same_clock
        self._container = container
        self._name = name
        self._run = run
        arguments = {"host": container.host, "agent": new_agent_number()}
        self._arrival = Arrival(container, bootstrap.program(AGENT, arguments))
        #: How the container ended; ``None``: it has not.
        self._ended: str | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        stdin, writing = os.pipe()
        reading, stdout = os.pipe()
        super().__init__(container.host, reading, writing)
        try:
            self._process = subprocess.Popen(
                ["docker", *words], stdin=stdin, stdout=stdout, stderr=self._stderr, start_new_session=True
            )
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        finally:
            os.close(stdin)
            os.close(stdout)

    @property
    def writing(self) -> int:
        """See `launcher.transports.base.Link.writing`; also while a part of the agent's program is unsent."""
        return self._input if self._arrival.unsent else super().writing

    def arrive(self) -> bool:
        """Send and receive what can be until the agent is up; whether it is.

        Nothing is read that the agent itself writes.

        Raises:
            TransportError: there will be no agent.
        """
        try:
            self._arrival.unsent = self._arrival.unsent[os.write(self._input, self._arrival.unsent) :]
        except (BlockingIOError, BrokenPipeError):  # if it has ended, reading shows it
            pass
        while not (self._arrival.ready or self._arrival.fault):
            try:
                data = os.read(self._reading, 1)
            except BlockingIOError:
                return False
            if not data:
                raise TransportError(self.wait(_END) or "its container ended at once")
            self._arrival.feed(data)
        if self._arrival.fault:
            raise TransportError(self._arrival.fault)
        return True

    def warnings(self) -> list[str]:
        """What ``docker run`` warns of."""
        return [line for line in self._said().splitlines() if line.startswith("WARNING: ")]

    def _said(self) -> str:
        return os.pread(self._stderr.fileno(), 1 << 16, 0).decode("utf-8", "replace")

    def wait(self, seconds: float) -> str | None:
        """See `launcher.transports.base.Link.wait`."""
        if self._ended is None:
            try:
                code = self._process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                return None
            self._ended = end_fault(code, self._container, self._arrival.ready, self._said())
            if self._refusal and self._ended.startswith("the agent ended: "):
                self._ended = self._refusal
        return self._ended

    def kill(self, seconds: float) -> str | None:
        """See `launcher.transports.base.Link.kill`: nothing in a container outlives it."""
        result = self._run(["rm", "--force", "--volumes", self._name], seconds)
        if result.code == engine.LATE:
            self.end_command()
            fault = engine.fault_of(result, seconds)
            return f"{fault}; its container may go on until it does: then `launch clean` removes it"
        return self.wait(_END)

    def end_command(self) -> None:
        """End ``docker run`` itself; the engine then closes the container's stdin, which ends the agent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait(_END)

    def close(self) -> None:
        """See `launcher.transports.base.Link.close`."""
        self.hang_up()
        self.end_command()
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
            self._stderr.close()


class Containers:
    """The containers of a job here: a context; a `launcher.transports.base.Transport` once they are started.

    Args:
        run: the engine.
        job: the job's id.
        containers: one for each host.
        marks: labels of all that is created; with `KEPT` it stays when the job is over.
        same_clock: the engine's machine is this one.
        tell: gets lines for the user.
    """

    def __init__(
        self,
        run: Run,
        job: str,
        containers: Sequence[Container],
        marks: Mapping[str, str],
        same_clock: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._run = run
        self._job = job
        self._containers = containers
        self._marks = marks
        self._same_clock = same_clock
        self._tell = tell
        self._links: dict[str, ContainerLink] = {}
        #: The id of the job's network; empty: not created, as far as is known.
        self._network = ""

    def __enter__(self) -> Containers:
        return self

    def __exit__(self, *_: object) -> None:
        """End-of-file ends each agent, and so its container; what is left then is removed by force."""
        for link in self._links.values():
            link.hang_up()
        until = time.monotonic() + _END
        ended = all(link.wait(until - time.monotonic()) is not None for link in self._links.values())
        for link in self._links.values():
            link.close()
        if KEPT in self._marks:
            return
        if ended and self._network and self._run(["network", "rm", self._network], _HURRY).code == 0:
            return
        try:
            left = engine.remove(self._run, engine.things(self._run, self._job, _HURRY), _HURRY)
        except TransportError as error:
            left = [str(error)]
        if left:
            self._tell(f"not all of this job is removed ({'; '.join(left)}): `launch clean` does that later")

    def start(self) -> None:
        """Create the network and all containers, and wait until each agent is up.

        Raises:
            TransportError: some can't be; what was created is removed with the context.
        """
        name = network_name(self._job)
        with ThreadPoolExecutor(1) as pool:  # a signal ends our wait, not the command that creates something
            self._network = pool.submit(engine.make_network, self._run, name, self._marks).result()
        for container in self._containers:
            its = container_name(self._job, container.host)
            words = run_words(container, its, name, self._marks, bootstrap.loader(container.python))
            link = ContainerLink(container, its, words, self._run, self._same_clock)
            self._links[container.host] = link
        self._await_agents()
        for host, link in self._links.items():
            for warning in link.warnings():
                self._tell(f"{host}: {warning}")

    def _await_agents(self) -> None:
        waiting = dict(self._links)
        faults: dict[str, list[str]] = {}
        began = time.monotonic()
        until, remind = began + _START, began + _FIRST
        while waiting and time.monotonic() < until:
            poll = select.poll()
            for link in waiting.values():
                poll.register(link, select.POLLIN)
                if link.writing >= 0:
                    poll.register(link.writing, select.POLLOUT)
            poll.poll(max(0.0, min(until, remind) - time.monotonic()) * 1000 + 1)
            for host, link in list(waiting.items()):
                try:
                    if link.arrive():
                        del waiting[host]
                except TransportError as error:
                    faults.setdefault(str(error), []).append(host)
                    del waiting[host]
                    until = min(until, time.monotonic() + _OTHERS)
            if waiting and time.monotonic() > remind:
                self._tell(f"waiting for the engine to start {listed(sorted(waiting))}")
                remind += _NEXT
        if waiting and not faults:
            faults[f"not started by the engine within {_START:.0f} s"] = sorted(waiting)
        if faults:
            raise HostsError(f"{listed(sorted(hosts))}: {fault}" for fault, hosts in faults.items())

    def open(self, host: Host) -> ContainerLink:
        """See `launcher.transports.base.Transport.open`: the agent is up already."""
        return self._links[host.name]
