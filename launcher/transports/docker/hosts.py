"""The Docker engines of the hosts of a hostfile, by the ``docker`` command there; all at the same time."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple, TypeVar

from launcher.errors import HostsError, TransportError
from launcher.job import Host
from launcher.text import listed
from launcher.transports.base import Hosts as Errands
from launcher.transports.docker import engine
from launcher.transports.docker.container import Container, Mount
from launcher.transports.docker.engine import LATE, Result, Thing
from launcher.transports.docker.options import DockerOptions

_T = TypeVar("_T")

#: Runs a command line on a host.
ENTRY = "launcher.agent.command:main"
#: Seconds until the user is told what launch waits for, and between two such lines.
_FIRST, _NEXT = 2.0, 10.0
#: Seconds for a host to report that a command took too long.
_REPORT = 10.0
#: Bytes of a command's output, at most, and hosts at the same time.
_OUTPUT, _AT_ONCE = 4 << 20, 64
#: The login user's numbers, then each path with ``~`` filled in; an empty line for one that is not there.
_PATHS = """\
echo "$(id -u):$(id -g)"
for path do
    case $path in "~") path=$HOME;; "~/"*) path=$HOME/${path#"~/"};; esac
    if [ -e "$path" ]; then printf '%s\\n' "$path"; else echo; fi
done
"""


class Engine(NamedTuple):
    """The engine of one host."""

    host: Host
    errands: Errands

    @property
    def env(self) -> dict[str, str]:
        """The variables with which the hostfile says where the engine is."""
        return {name: value for name, value in self.host.env if name.startswith("DOCKER_")}

    def run(self, words: Sequence[str], seconds: float) -> Result:
        """Run ``docker`` there; see `launcher.transports.docker.engine.Run`."""
        return self.command(["docker", *words], seconds)

    def pull(self, image: str) -> Result:
        """Pull an image there."""
        return self.run(["pull", "--quiet", "--", image], engine.PULL)

    def command(self, argv: Sequence[str], seconds: float) -> Result:
        """Run a command line on the host.

        Raises:
            TransportError: the host can't be reached.
        """
        arguments = {"argv": list(argv), "env": self.env, "seconds": seconds}
        errand = self.errands.run(self.host.name, ENTRY, arguments)
        until = time.monotonic() + seconds + _REPORT
        try:
            out = b""
            while (data := errand.recv(1 << 16)) != b"":
                out += data or b""
                left = until - time.monotonic()
                if left < 0 or len(out) > _OUTPUT:
                    return Result(LATE, "", "")
                if data is None:
                    select.select([errand.fileno()], [], [], left)
            code = errand.wait(max(0.0, until - time.monotonic()))
            return Result(LATE if code is None else code, out.decode(errors="replace"), errand.stderr())
        finally:
            errand.close()


class Engines:
    """The engines of all hosts of a launch.

    Args:
        hosts: theirs.
        errands: run programs there.
        tell: gets lines for the user; called by other threads too.
    """

    def __init__(self, hosts: Sequence[Host], errands: Errands, tell: Callable[[str], None]) -> None:
        self._engines = {host.name: Engine(host, errands) for host in hosts}
        self._tell = tell

    def env(self, host: str) -> dict[str, str]:
        """The variables with which the hostfile says where the engine of a host is."""
        return self._engines[host].env

    def ready(self, containers: Sequence[Container], docker: DockerOptions) -> list[Container]:
        """See that every engine can run its container: it responds, has the image, and what is to be mounted.

        What launches have left there that were killed is removed.

        Args:
            containers: as planned.
            docker: says when to pull, and the user of the tasks.

        Returns:
            The containers with the user of their tasks and the home of their host.

        Raises:
            HostsError: some can't; it names all of them.
        """
        by_host = {container.host: container for container in containers}

        def one(name: str) -> Container:
            its, container = self._engines[name], by_host[name]
            info = engine.inspect(its.run)
            engine.sweep(its.run, self._tell, f" on {name}")
            found = engine.provide(its.run, docker.image, docker.pull, self._tell, f" on {name}", its.pull)
            wrong = engine.mismatch(docker.image, found, info.architecture)
            user, there = self._paths(its, [mount.source for mount in container.mounts])
            missing = [mount.source for mount in container.mounts if mount.source not in there]
            if missing:
                raise TransportError(f"there is no {listed(missing)} to mount")
            mounts = tuple(_full(mount, there[mount.source]) for mount in container.mounts)
            user = docker.user or ("0:0" if info.rootless else user)
            return container._replace(user=user, architecture=wrong, mounts=mounts)

        return list(self.each(one, "its Docker engine").values())

    def folders(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
        """Of these folders of each host those that are there, with their full names.

        Raises:
            HostsError: some hosts do not say.
        """
        return self.each(
            lambda name: self._paths(self._engines[name], wanted[name])[1], "the folders to mount"
        )

    def _paths(self, its: Engine, paths: Sequence[str]) -> tuple[str, dict[str, str]]:
        """``UID:GID`` of the login user, and of these paths those that are there, with their full names."""
        result = its.command(["sh", "-c", _PATHS, "sh", *paths], engine.ANSWER)
        if result.code:
            raise TransportError(f"what is to be mounted can't be looked for: {result.fault}")
        user, *lines = result.out.splitlines()
        return user, {path: line for path, line in zip(paths, lines, strict=False) if line}

    def dead(self) -> dict[str, list[Thing]]:
        """Host -> what launches of this user have left there that have ended, also what ``--keep`` left.

        Raises:
            HostsError: some engines do not say.
        """
        return self.each(lambda name: engine.dead(self._engines[name].run, kept=True), "its Docker engine")

    def remove(self, found: Mapping[str, Sequence[Thing]]) -> list[str]:
        """Remove these; what is still there, and why."""
        left = self.each(lambda name: engine.remove(self._engines[name].run, found[name]), "clean-up")
        return [f"{name}: {why}" for name, faults in left.items() for why in faults]

    def each(self, function: Callable[[str], _T], what: str) -> dict[str, _T]:
        """The results of a function for all hosts, called in threads.

        Raises:
            HostsError: what was wrong with some of them.
        """
        pool = ThreadPoolExecutor(min(_AT_ONCE, len(self._engines)), "docker")
        futures: dict[str, Future[_T]] = {name: pool.submit(function, name) for name in self._engines}
        try:
            seconds = _FIRST
            while wait(futures.values(), timeout=seconds).not_done:
                late = [name for name, future in futures.items() if not future.done()]
                self._tell(f"waiting for {listed(late)}: {what}")
                seconds = _NEXT
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        faults: list[str] = []
        results: dict[str, _T] = {}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except TransportError as error:
                faults.append(str(error) if str(error).startswith(f"{name}: ") else f"{name}: {error}")
        if faults:
            raise HostsError(faults)
        return results


def _full(mount: Mount, source: str) -> Mount:
    """With the home of the host filled in."""
    return mount._replace(source=source, target=source if mount.target == mount.source else mount.target)
