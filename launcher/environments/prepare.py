"""Prepares hosts side by side: asks each what it has, decides what it needs, and lets it install that."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

from launcher.environments.requirements import Requirements, masked
from launcher.environments.resolving import Resolver, Unresolved, hash_of
from launcher.errors import LaunchError, TransportError
from launcher.job import Host
from launcher.record import Record
from launcher.text import byte_size, counted, host_text, listed
from launcher.transports.dialog import Dialog, read
from launcher.transports.machines import Programs, is_here
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.hosts import SshConnections

_ENTRY = "launcher.environments.remote:main"
#: Hosts at once.
_MOST_AT_ONCE = 40
#: Seconds between two looks at the time; until a line says what goes on; that a host may say nothing.
_LOOK, _SILENT, _DEAD = 0.25, 2.0, 300.0
#: Lines that a host may send: about one comes each second.
_MOST_LINES = 20_000
#: Bytes that an environment needs on the disk: with TensorFlow, with anything else.
_WITH_TENSORFLOW, _OTHERS = 2_500_000_000, 50_000_000
_TENSORFLOW = re.compile(r"(?m)^tensorflow([-_](cpu|gpu))?\b")


class Settings(Record):
    """What is done on the hosts."""

    #: Of the environment.
    name: str
    #: The packages; none to remove environments.
    wanted: Requirements
    #: Find the newest versions of the packages, even if earlier ones are known.
    upgrade: bool
    #: Make environments; else only compare.
    makes: bool
    #: Send wheels to all hosts.
    offline: bool
    #: Remove environments that were not used for so many days; 0: do not.
    days: int


class Look(Record):
    """What a host says about the environment of a name, and itself."""

    #: Python's, TensorFlow's and that of the GPU driver; empty: none.
    version: str = ""
    tensorflow: str = ""
    driver: str = ""
    #: ``2.1G``
    size: str = ""
    #: ``ready``, ``missing``, ``changed`` by somebody else, ``broken``; set here: ``other packages``,
    #: ``failed: ...``.
    state: str = ""
    hash: str = ""
    #: Of wheels: ``x86_64-manylinux_2_36``.
    platform: str = ""
    avx: bool = False
    #: Bytes on the disk of the environments.
    free: int = 0
    #: Python -> its path; empty if the environment is ready, or no new one is made.
    pythons: Mapping[str, str] = {}


class _Line(Record):
    """A line of a host."""

    kind: str
    said: Any


def prepare(
    settings: Settings, hosts: Sequence[Host], ssh: SshSettings, notice: Callable[[str], None]
) -> dict[str, Look]:
    """Prepare, compare or clean all hosts.

    Args:
        settings: what is done.
        hosts: where.
        ssh: how they are reached.
        notice: prints a line.

    Returns:
        What each host has at the end, in the order of the hosts.

    Raises:
        SystemExit: Ctrl-C or SIGTERM. When this process has ended, the hosts remove what they began.
    """
    others = [host for host in hosts if not is_here(host)]
    pool = ThreadPoolExecutor(min(ssh.fanout, _MOST_AT_ONCE))
    with (
        tempfile.TemporaryDirectory(prefix="tf-launcher-", ignore_cleanup_errors=True) as folder,
        SshConnections(others, ssh, notice) as connections,
    ):
        resolver = Resolver(settings.wanted, settings.upgrade, folder)
        preparer = _Preparer(settings, hosts, connections, resolver, notice)
        try:
            failed = connections.connect()
            futures = {host.name: pool.submit(preparer.run, host, failed.get(host.name)) for host in hosts}
            while wait(futures.values(), _LOOK).not_done:
                preparer.tick()
        finally:
            preparer.notice = lambda _: None
            resolver.stop()
            pool.shutdown(wait=False, cancel_futures=True)
    return {name: future.result() for name, future in futures.items()}


class _Preparer:
    """Prepares, compares or cleans hosts, each in a thread. Prints a line for each stage of a host."""

    def __init__(
        self, settings: Settings, hosts: Sequence[Host], connections: SshConnections, resolver: Resolver,
        notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._settings, self._connections, self._resolver = settings, connections, resolver
        self._programs = Programs(filter(is_here, hosts), connections)
        self._known = resolver.known if settings.makes else None
        self._stages = dict.fromkeys((host.name for host in hosts), "")
        self._total, self._lock = len(hosts), threading.Lock()
        self._printed = self._began = time.monotonic()
        self.notice = notice

    def tick(self) -> None:
        """Print which hosts do what, if there was no line for two seconds."""
        with self._lock:
            now = time.monotonic()
            if now - self._printed >= _SILENT:
                busy = [f"{host} ({stage})" for host, stage in self._stages.items() if stage]
                self._print(f"{now - self._began:.0f}s: waiting for {listed(busy, 3)}")

    def _begin(self, host: Host, stage: str, done: bool = False) -> None:
        """Note, and print, that a host has begun a stage, or is done."""
        with self._lock:
            old, self._stages[host.name] = self._stages[host.name], stage
            if done:
                del self._stages[host.name]
            if stage != old:
                self._print(f"{host.name}: {stage}")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self.notice(host_text(masked(f"[{self._total - len(self._stages)}/{self._total}] {text}")))

    def run(self, host: Host, fault: str | None) -> Look:
        """Prepare, compare or clean one host.

        Args:
            host: the host.
            fault: why it can't be reached; ``None``: it can.

        Returns:
            What it has at the end; its state has the reason if that failed.
        """
        look, settings = Look(), self._settings
        # A path relative to the working folder of the tasks means nothing here.
        python = "" if re.match(r"[^/~].*/", host.python or "") else host.python or ""
        asked = {"name": settings.name, "python": python, "days": settings.days, "known": self._known}
        try:
            if fault:
                raise TransportError(fault)
            self._begin(host, "asking what it has")
            with closing(self._programs.run(host.name, _ENTRY, asked)) as program:
                dialog = Dialog(program)
                look = self._answer(host, dialog)
                if not settings.days:
                    look = self._compare(host, dialog, look)
        except (LaunchError, OSError) as error:
            text = str(error).removeprefix(f"{host.name}: ").removeprefix("the program there failed: ")
            look = look._replace(state=masked(f"failed: {text}"))
        self._begin(host, look.state, done=True)
        return look

    def _compare(self, host: Host, dialog: Dialog, look: Look) -> Look:
        """Compare what a host has with what is wanted, and prepare it."""
        ready, makes = look.state == "ready", self._settings.makes
        if (ready and look.hash in self._resolver.known) or not (ready or makes):
            return look
        python, versions = self._choose(host, look)
        if ready and look.hash == hash_of(versions):
            return look
        if not makes:
            return look._replace(state="other packages")
        needed = _WITH_TENSORFLOW if _TENSORFLOW.search(versions) else _OTHERS
        if look.free < needed:
            free, about = byte_size(look.free), byte_size(needed)
            raise TransportError(f"its disk is full: {free} free, about {about} are needed")
        if needed == _WITH_TENSORFLOW and not look.avx:
            raise TransportError("its CPU has no AVX, which TensorFlow needs")
        self._begin(host, f"installing {counted(len(versions.splitlines()) - 1, 'package')}")
        request = {
            "name": self._settings.name, "hash": hash_of(versions), "version": python,
            "path": look.pythons[python], "packages": versions, "options": self._settings.wanted.options,
            "offline": self._settings.offline,
        }  # fmt: skip
        dialog.send(request, _DEAD)
        return self._answer(host, dialog, lambda: self._resolver.wheels(python, look.platform, versions))

    def _choose(self, host: Host, look: Look) -> tuple[str, str]:
        """The newest Python of a host for which all packages have versions, and these."""
        faults = []
        for python in look.pythons if self._settings.makes else [look.version]:
            self._begin(host, f"finding versions for Python {python}")
            try:
                return python, self._resolver.resolve(python, look.platform)
            except Unresolved as error:
                faults.append(f"Python {python}: {error}")
        missing = "there is no Python with ensurepip (Debian: python3-venv), and no uv"
        raise TransportError("; ".join(faults) or missing)

    def _answer(self, host: Host, dialog: Dialog, download: Callable[[], str] | None = None) -> Look:
        """What a host has, after it has done what it was asked for.

        Args:
            host: the host.
            dialog: with its program.
            download: downloads wheels, and returns their folder; ``None``: it needs none.

        Raises:
            LaunchError: the host can't do it, or the connection broke.
        """
        for _ in range(_MOST_LINES):
            line = read(_Line, dialog.receive(_DEAD))
            if line.kind == "look":
                return read(Look, line.said)
            if line.kind == "stage":
                self._begin(host, str(line.said))
            elif line.kind == "wheels" and download:
                self._begin(host, "downloading wheels here")
                self._send(host, download(), str(line.said))
                dialog.send({}, _DEAD)
        raise TransportError(f"the program there sent {_MOST_LINES} lines")

    def _send(self, host: Host, folder: str, there: str) -> None:
        """Copy wheels to a folder of a host."""
        paths = [entry.path for entry in os.scandir(folder)]
        size = byte_size(sum(map(os.path.getsize, paths)))
        self._begin(host, f"sending {counted(len(paths), 'wheel')} ({size})")
        if is_here(host):
            shutil.copytree(folder, there, dirs_exist_ok=True)
        else:
            from launcher.environments.sending import send_files  # fabric

            send_files(host.name, self._connections.connection(host.name).transport, paths, there)
