"""A real Docker engine: the one that runs here, else a private ``dockerd``; and a base image for it.

The private one is shared by the test sessions of a machine (two would fight over the same firewall rules):
the first starts it, the last ends it. What it holds lies below the user's cache folder and is there the next
time: images that took minutes to make. Where no image can be pulled, one with this machine's Python stands in
for ``python:3.11-slim``.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from tests.image import root_files
from tests.seeing import MARK, alive, command_line, is_soon, kill, soon

#: Tests start from this image, and so does the Dockerfile.
BASE = "python:3.11-slim"
#: Seconds: for the engine to come up, and to go; for a pull; for a base image of our own making.
UP, DOWN, PULL, MAKE = 120.0, 60.0, 60.0, 300.0
#: Seconds for other test sessions to let go of what is to be had; more than any test takes.
TURN = 900.0

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tf-launcher-tests"


class Engine(NamedTuple):
    """An engine that answers."""

    #: ``unix:///...``, as in ``DOCKER_HOST``.
    host: str

    def docker(self, *args: str, stdin: bytes = b"", timeout: float = 60.0) -> str:
        """Run a ``docker`` command: what it printed.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        done = self.tried(*args, stdin=stdin, timeout=timeout)
        if done.returncode:
            raise AssertionError(f"docker {' '.join(args)}: {done.stderr.decode(errors='replace')[-3000:]}")
        return done.stdout.decode(errors="replace").strip()

    def tried(
        self, *args: str, stdin: bytes = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a ``docker`` command that may fail."""
        environment = {**os.environ, "DOCKER_HOST": self.host, **_builder()}
        return subprocess.run(
            ["docker", *args], input=stdin, capture_output=True, timeout=timeout, env=environment
        )

    def lines(self, *args: str) -> list[str]:
        """What a ``docker`` command lists."""
        return self.docker(*args).splitlines()


@functools.cache
def _builder() -> dict[str, str]:
    """Debian's ``docker`` comes without buildx, which it would use by default."""
    found = subprocess.run(["docker", "buildx", "version"], capture_output=True, timeout=30)
    return {"DOCKER_BUILDKIT": "0"} if found.returncode else {}


@contextmanager
def engine() -> Iterator[Engine]:
    """The engine for a test session, with `BASE` in it."""
    here = _running()
    if here is not None:
        provide_base(here)
        yield here
        return
    with private_engine(CACHE / "engine") as ours:
        provide_base(ours)
        yield ours


def _running() -> Engine | None:
    """The engine that a plain ``docker`` reaches."""
    if shutil.which("docker") is None:
        return None
    asked = subprocess.run(
        ["docker", "context", "inspect", "-f", "{{.Endpoints.docker.Host}}"], capture_output=True, timeout=30
    )
    host = os.environ.get("DOCKER_HOST") or asked.stdout.decode().strip()
    found = Engine(host) if host else None
    return found if found is not None and _answers(found) else None


def _answers(found: Engine) -> bool:
    try:
        return found.tried("info", timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


# ---------------------------------------------------------------------- a private engine


@contextmanager
def private_engine(folder: Path, alone: bool = False) -> Iterator[Engine]:
    """A ``dockerd`` of ours that keeps its things in ``folder``, shared by all sessions that ask for it.

    Args:
        folder: its path must be short: a socket is in it.
        alone: in a network namespace of its own. A second engine would take the bridge of the first.
    """
    check_programs()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "users.lock", "w") as users, open(folder / "starting.lock", "w") as starting:
        take(starting, fcntl.LOCK_EX)
        take(users, fcntl.LOCK_SH)
        ours = Engine(f"unix://{folder}/docker.sock")
        try:
            if not _answers(ours):
                start(folder, alone)
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield ours
        finally:
            take(starting, fcntl.LOCK_EX)
            if _taken(users, fcntl.LOCK_EX):  # no other session uses it
                stop(folder)


def check_programs() -> None:
    """See that an engine of our own can be started."""
    for program in ("dockerd", "containerd", "iptables"):
        assert shutil.which(program), "no Docker engine here: apt-get install docker.io iptables"
    assert os.getuid() == 0, "a Docker engine of our own needs root"


@contextmanager
def at_engine(alone: bool) -> Iterator[None]:
    """Be at an engine beside other test sessions of this machine, or while no other is.

    Each launch removes what dead launches of its user have left at its engine, also those of other sessions.
    A session that must be alone holds the gate while it waits: others that take turns would keep it waiting.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "launches.gate", "w") as gate, open(CACHE / "launches.lock", "w") as lock:
        take(gate, fcntl.LOCK_EX)
        take(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def take(lock: IO[str], how: int, seconds: float = TURN) -> None:
    """Lock a file; fail if others hold it for too long.

    Args:
        lock: the file.
        how: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.
        seconds: the time limit.
    """
    soon(lambda: _taken(lock, how), seconds, f"others hold {lock.name}: `fuser -v` shows the process")


def _taken(lock: IO[str], how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def start(folder: Path, alone: bool) -> None:
    """Start ``dockerd`` and wait until it answers."""
    stop(folder)
    argv = ["setsid", "--fork", *(("unshare", "--net") if alone else ())]
    argv += ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    argv += ["--pidfile", f"{folder}/dockerd.pid", "-H", f"unix://{folder}/docker.sock"]
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    path = folder / "dockerd.log"
    with path.open("wb") as log:
        subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
    ours = Engine(f"unix://{folder}/docker.sock")
    soon(lambda: _answers(ours), UP, lambda: f"dockerd:\n{path.read_text(errors='replace')[-2000:]}")


def stop(folder: Path) -> None:
    """End the ``dockerd`` of this folder, if there is one; it ends its containerd."""
    dockerd = _pid(folder / "dockerd.pid", "dockerd", folder)
    containerd = _pid(folder / "exec/containerd/containerd.pid", "containerd", folder)
    for pid, number in ((dockerd, signal.SIGTERM), (dockerd, signal.SIGKILL), (containerd, signal.SIGKILL)):
        if pid and alive(pid):
            kill(pid, number)
            is_soon(lambda pid=pid: not alive(pid), DOWN)  # type: ignore[misc]


def _pid(file: Path, program: str, folder: Path) -> int:
    """The pid in a file, if that process is the program, started for this folder; else 0."""
    text = file.read_text() if file.exists() else ""
    pid = int(text or 0)
    command = command_line(pid)
    return pid if os.path.basename(command.split(" ")[0]) == program and str(folder) in command else 0


@contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """A folder for an engine that no other uses now. What it holds is there the next time."""
    number, lock = 0, None
    while lock is None:
        number += 1
        folder = CACHE / f"{name}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
        if _taken(file, fcntl.LOCK_EX):
            lock = file
        else:
            file.close()
    with lock:
        yield folder


# ---------------------------------------------------------------------- the base image


def provide_base(found: Engine) -> None:
    """See that `BASE` is there: pulled, else made of this machine's Python. `debian` has more in it."""
    if found.tried("image", "inspect", BASE).returncode == 0 or _pulled(found):
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with root_files(CACHE) as archive:
        found.docker("import", *CHANGES, str(archive), BASE, timeout=MAKE)


#: As the real image has it.
CHANGES = ("--change", "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
           "--change", 'CMD ["python3"]')  # fmt: skip


def _pulled(found: Engine) -> bool:
    try:
        return found.tried("pull", "-q", BASE, timeout=PULL).returncode == 0
    except subprocess.TimeoutExpired:
        return False
