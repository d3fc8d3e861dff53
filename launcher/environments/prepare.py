"""Prepares hosts side by side: asks each what it has, decides what it needs, and lets it install that."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

from launcher.environments.connections import Hosts
from launcher.environments.requirements import Requirements, masked
from launcher.environments.resolving import Resolved, Resolver, Target, Unresolved
from launcher.errors import LaunchError, TransportError
from launcher.job import Host
from launcher.record import Record
from launcher.text import byte_size, counted, listed, shortened
from launcher.transports.dialog import Dialog, read
from launcher.transports.ssh import SshSettings

#: Hosts at once.
MOST_AT_ONCE = 40
#: Seconds between looks at what else has happened; without a line; that a host may say nothing.
_LOOK, _SILENT, _DEAD = 0.25, 2.0, 300.0
#: Answers of a host to one request: a stage a second.
_MOST_ANSWERS = 20_000
#: Pythons of a host that are tried.
_MOST_PYTHONS = 20
#: Characters of the reason why a host can't use a package index.
_REASON = 200
#: Bytes that an environment needs on the disk: with TensorFlow, with anything else.
_WITH_TENSORFLOW, _OTHERS = 2_500_000_000, 50_000_000
_TENSORFLOW = re.compile(r"(?im)^tensorflow([-_](cpu|gpu))?\b\s*(\[.*\])?\s*(==|@)")
_CUDA = re.compile(r"(?im)^nvidia[-_]cuda[-_]runtime")


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


class _Python(Record):
    """A Python of a host."""

    version: str
    path: str
    problem: str


class Look(Record):
    """What a host says about the environment of a name, and itself."""

    #: ``ready``, ``missing``, ``changed`` by somebody else, ``broken``.
    state: str
    hash: str
    #: Python's and TensorFlow's; empty: none.
    version: str
    tensorflow: str
    size: int
    driver: str
    machine: str
    libc: str
    avx: bool
    #: Bytes on the disk of the folder.
    free: int
    folder: str
    #: For a new environment; empty if the environment is ready, or no new one is made.
    pythons: tuple[_Python, ...]


class _Said(Record):
    """What else a host says."""

    #: ``stage``: what it does; ``wheels``: the folder that gets them; ``no index``, ``failed``: the reason.
    kind: str
    text: str


class Row(Record):
    """A host in the table at the end."""

    host: str
    look: Look | None
    #: ``ready``, or why it is not; if it failed ``failed: ...``.
    state: str


class _NoIndex(TransportError):
    """A host can't install from a package index, and says why; the connection is good."""


class Progress:
    """Prints a line a host and stage; any thread may call it.

    Args:
        hosts: all of them.
        notice: prints a line.
    """

    def __init__(self, hosts: Sequence[str], notice: Callable[[str], None]) -> None:
        self._notice, self._total, self._lock = notice, len(hosts), threading.Lock()
        self._stages = dict.fromkeys(hosts, "")
        self._printed = self._began = time.monotonic()

    def __call__(self, host: str, stage: str, done: bool = False) -> None:
        """A host has begun a stage, or is done."""
        with self._lock:
            old, self._stages[host] = self._stages[host], stage
            if done:
                del self._stages[host]
            if stage != old:
                self._print(f"{host}: {stage}")

    def tick(self) -> None:
        """After two seconds without a line: which hosts do what."""
        with self._lock:
            now = time.monotonic()
            if now - self._printed >= _SILENT:
                busy = [f"{host} ({stage})" for host, stage in self._stages.items() if stage]
                self._print(f"{now - self._began:.0f}s: waiting for {listed(busy, 3)}")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._notice(masked(f"[{self._total - len(self._stages)}/{self._total}] {text}"))


def prepare(
    settings: Settings, hosts: Sequence[Host], ssh: SshSettings, notice: Callable[[str], None]
) -> list[Row]:
    """Prepare, compare or clean all hosts.

    Args:
        settings: what is done.
        hosts: where.
        ssh: how they are reached.
        notice: prints a line.

    Returns:
        A row for each host, in the order of the hosts.

    Raises:
        KeyboardInterrupt: the hosts remove what they began.
    """
    progress, stopped = Progress([host.name for host in hosts], notice), threading.Event()
    with (
        closing(Resolver(settings.wanted, settings.upgrade, stopped)) as resolver,
        ThreadPoolExecutor(min(ssh.fanout, MOST_AT_ONCE)) as pool,
        Hosts(hosts, ssh, notice) as connected,
    ):
        each = [_OneHost(host, settings, resolver, connected, progress, stopped) for host in hosts]
        try:
            connected.connect()
            futures = [pool.submit(one.run) for one in each]
            while wait(futures, _LOOK).not_done:
                progress.tick()
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
    return [future.result() for future in futures]


class _OneHost:
    """Prepares, compares or cleans one host."""

    def __init__(
        self, host: Host, settings: Settings, resolver: Resolver, connected: Hosts, progress: Progress,
        stopped: threading.Event,
    ) -> None:  # fmt: skip
        self._host, self._settings, self._resolver, self._connected = host, settings, resolver, connected
        self._stage, self._stopped = functools.partial(progress, host.name), stopped
        self._dialog: Dialog
        self._target: Target
        self._resolved: Resolved

    def run(self) -> Row:
        """Do it."""
        look, settings = None, self._settings
        # A path relative to the working folder of the tasks means nothing here.
        python = "" if re.match(r"[^/~].*/", self._host.python or "") else self._host.python or ""
        known = self._resolver.known if settings.makes else None
        asked = {"name": settings.name, "known": known, "python": python, "days": settings.days}
        try:
            self._stage("asking what it has")
            # After Ctrl-C the end of its input makes the program remove what it began.
            with closing(self._connected.start(self._host, asked)) as program:
                self._dialog = Dialog(program, self._check)
                look = self._answer()
                look, state = (look, look.state) if settings.days else self._compare(look)
        except LaunchError as error:
            state = "failed: " + str(error).removeprefix(f"{self._host.name}: ")
        except Exception as error:  # noqa: BLE001 - the other hosts go on
            state = f"failed: {type(error).__name__}: {error}"
        if not self._stopped.is_set():
            self._stage(state, done=True)
        return Row(self._host.name, look, masked(state))

    def _compare(self, look: Look) -> tuple[Look, str]:
        """Compare what the host has with what is wanted, and prepare it."""
        ready, makes = look.state == "ready", self._settings.makes
        if ready and look.hash in self._resolver.known:
            return look, "ready"
        if not ready and not makes:
            return look, look.state
        python = self._choose(look)
        if ready and look.hash == self._resolved.hash:
            return look, "ready"
        return (self._install(look, python), "ready") if makes else (look, "other packages")

    def _choose(self, look: Look) -> _Python:
        """The newest Python of the host for which all packages have versions, and these.

        That of an environment which is ready comes first.
        """
        faults = []
        pythons = look.pythons if self._settings.makes else (_Python(look.version, "", ""),)
        order = sorted(pythons, key=lambda each: (each.version != look.version, -_minor(each.version)))
        for python in order[:_MOST_PYTHONS]:
            text = python.problem
            if not text:
                self._target = _target(python.version, look)
                finding = functools.partial(self._stage, f"finding versions for Python {python.version}")
                try:
                    self._resolved = self._resolver.resolve(self._target, finding)
                    return python
                except Unresolved as error:
                    old = _minor(python.version) < error.oldest
                    text = f"it is too old, 3.{error.oldest} is needed: {error}" if old else str(error)
            faults.append(f"Python {python.version}: {text}")
        missing = "there is no Python for an environment; name one with `python` in the hostfile"
        raise TransportError("; ".join(faults) or missing)

    def _install(self, look: Look, python: _Python) -> Look:
        """Make the environment on a host that lacks it."""
        lines = self._resolved.lines
        text = "\n".join(lines)
        with_tensorflow = _TENSORFLOW.search(text)
        needed = _WITH_TENSORFLOW if with_tensorflow else _OTHERS
        if look.free < needed:
            free = f"{byte_size(look.free)} free below {look.folder}"
            raise TransportError(f"its disk is full: {free}, about {byte_size(needed)} are needed")
        if with_tensorflow and not look.avx:
            raise TransportError("its CPU has no AVX, which TensorFlow needs")
        if _CUDA.search(text) and not look.driver:
            self._stage("warning: no NVIDIA driver: TensorFlow will not use GPUs there")
        request = {
            "name": self._settings.name, "hash": self._resolved.hash, "path": python.path,
            "version": python.version, "stage": f"installing {counted(len(lines), 'package')}",
            "trusted": self._settings.wanted.trusted,
        }  # fmt: skip
        if not self._settings.offline:
            try:
                online = {**request, "lines": [*self._settings.wanted.options, *lines], "offline": False}
                return self._ask(online)
            except _NoIndex as error:
                reason = shortened(str(error), _REASON)
                self._stage(f"can't install from a package index, so wheels are sent ({reason})")
        names = [re.sub(r"\s*@\s*\S+", "", line) for line in lines]
        return self._ask({**request, "lines": names, "offline": True})

    def _send_wheels(self, folder: str) -> None:
        """Download wheels here, and put them into a folder of the host."""
        self._stage(f"downloading {counted(len(self._resolved.lines), 'wheel')} here")
        wheels = self._resolver.wheels(self._target, self._resolved)
        paths = [entry.path for entry in os.scandir(wheels)]
        size = byte_size(sum(map(os.path.getsize, paths)))
        self._stage(f"sending {counted(len(paths), 'wheel')} ({size})")
        self._connected.put(self._host, paths, folder)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise TransportError("it was stopped")

    def _ask(self, request: object) -> Look:
        self._dialog.send(request, _DEAD)
        return self._answer()

    def _answer(self) -> Look:
        """Wait for an answer.

        Raises:
            TransportError: the host can't do it, or the connection broke.
        """
        sent = False
        for _ in range(_MOST_ANSWERS):
            answer = self._dialog.receive(_DEAD)
            if isinstance(answer, dict) and "answer" in answer:
                return read(Look, answer["answer"])
            said = read(_Said, answer)
            if said.kind == "stage":
                self._stage(said.text)
            elif said.kind == "wheels" and not sent:
                sent = True
                self._send_wheels(said.text)
                self._dialog.send({}, _DEAD)
            else:
                raise (_NoIndex if said.kind == "no index" else TransportError)(said.text)
        raise TransportError(f"the program there sent {_MOST_ANSWERS} answers to one request")


def _target(version: str, look: Look) -> Target:
    """What a host's wheels must run on; its texts become words of command lines here."""
    target = Target(version, look.machine, look.libc)
    if not re.fullmatch(r"3\.[0-9]{1,2} [a-z0-9_]{1,20} glibc 2\.[0-9]{1,3}", " ".join(target)):
        raise TransportError(f"it has no glibc, for which wheels are made: {', '.join(target[1:])}")
    return target


def _minor(version: str) -> int:
    return int(version.partition(".")[2])
