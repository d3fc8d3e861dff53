"""Prepares hosts side by side: asks each what it has, decides what it needs, and lets it install that."""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

from launcher.environments.connections import Hosts
from launcher.environments.requirements import Requirements, masked
from launcher.environments.resolving import Resolved, Resolver, Target, Unresolved
from launcher.errors import LaunchError, ProtocolError, TransportError
from launcher.fields import FieldReader
from launcher.job import Host
from launcher.loop import await_readable
from launcher.record import Record
from launcher.text import byte_size, counted, host_text, last_line, listed, shortened
from launcher.transports.base import RemoteCommand
from launcher.transports.ssh import SshSettings

#: Hosts at once.
MOST_AT_ONCE = 40
#: Seconds between looks at what else has happened; without a line; that a host may say nothing.
_LOOK, _SILENT, _DEAD = 0.25, 2.0, 300.0
#: Bytes of a read, of the longest answer.
_PIECE, _LONGEST = 1 << 16, 1 << 20
#: Pythons of a host that are tried.
_MOST_PYTHONS = 20
#: Characters of the reason why a host can't use a package index.
_REASON = 200
#: Bytes that an environment needs on the disk: with TensorFlow, with anything else.
_WITH_TENSORFLOW, _OTHERS = 2_500_000_000, 50_000_000
_TENSORFLOW = re.compile(r"(?im)^tensorflow([-_](cpu|gpu))?\b\s*(\[.*\])?\s*(==|@)")
_CUDA = re.compile(r"(?im)^nvidia[-_]cuda[-_]runtime")


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
    #: For a new environment; empty if the environment is ready.
    pythons: tuple[_Python, ...]


class Row(Record):
    """A host in the table at the end."""

    host: str
    look: Look | None
    #: ``ready``, ``failed``, ...
    state: str
    #: Why it is not ready.
    fault: str = ""


class Settings(Record):
    """What is done on the hosts."""

    name: str
    #: Make environments; else only compare.
    makes: bool
    offline: bool
    #: Remove environments that were not used for so many days; 0: do not.
    days: int


class _Refused(TransportError):
    """A host says why it can't do what it was asked for; the connection is good."""


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
        """After a time without a line: which hosts do what."""
        with self._lock:
            now = time.monotonic()
            if now - self._printed >= _SILENT:
                busy = [f"{host} ({stage})" for host, stage in self._stages.items() if stage]
                self._print(f"{now - self._began:.0f}s: waiting for {listed(busy, 3)}")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._notice(masked(f"[{self._total - len(self._stages)}/{self._total}] {text}"))


class _Talk:
    """Requests to the program on one host, and its answers.

    Args:
        program: on the host.
        stage: gets what the host does meanwhile.
        stopped: set when the launch ends.
    """

    def __init__(
        self, program: RemoteCommand, stage: Callable[[str], None], stopped: threading.Event
    ) -> None:
        self._program, self._stage, self._stopped = program, stage, stopped
        self._received = b""

    def ask(self, wheels: Callable[[str], None], **request: Any) -> Look:
        """Send a request and wait for its answer.

        Args:
            wheels: puts wheels into a folder there.
            request: see `launcher.environments.remote.install`.

        Raises:
            TransportError: the host can't do it, or the connection broke.
        """
        self._send(request)
        return self.answer(wheels)

    def _send(self, request: object) -> None:
        view = memoryview(json.dumps(request).encode("ascii") + b"\n")
        until = time.monotonic() + _DEAD
        while view:
            view = view[self._program.send(view) :]
            if view:
                self._listen(until)

    def answer(self, wheels: Callable[[str], None] | None = None) -> Look:
        """Wait for an answer; see `ask`."""
        while True:
            until = time.monotonic() + _DEAD
            while b"\n" not in self._received:
                self._listen(until)
            line, _, self._received = self._received.partition(b"\n")
            try:
                ((kind, value),) = json.loads(line).items()
                if kind == "answer":
                    return Look(*FieldReader().read(Look, value))
                text = host_text(value)
            except (ValueError, TypeError, AttributeError, RecursionError, ProtocolError) as error:
                raise TransportError(f"it sent a wrong answer: {host_text(repr(line[:200]))}") from error
            if kind == "wheels" and wheels:
                wheels(text)
                self._send({})
            elif kind == "stage":
                self._stage(text)
            else:
                raise _Refused(masked(text))

    def _listen(self, until: float) -> None:
        """Receive what comes within a moment."""
        if self._stopped.is_set():
            raise TransportError("it was stopped")
        data = self._program.recv(_PIECE)
        if data is None:
            if time.monotonic() > until:
                raise TransportError(f"no answer for {_DEAD:.0f}s")
            await_readable(self._program, _LOOK)
        elif not data:
            printed = last_line(self._program.stderr(), "it printed no error")
            raise self._program.why_ended() or TransportError(f"the program there ended: {printed}")
        elif len(self._received) < _LONGEST:
            self._received += data
        else:
            raise TransportError("it sent too long an answer")


class Preparing:
    """One ``launch prepare``.

    Args:
        settings: what is done.
        wanted: the packages; none to remove environments.
        upgrade: find the newest versions of the packages, even if earlier ones are known.
        notice: prints a line.
    """

    def __init__(
        self, settings: Settings, wanted: Requirements, upgrade: bool, notice: Callable[[str], None]
    ) -> None:
        self._settings, self._wanted, self._notice = settings, wanted, notice
        self._stopped = threading.Event()
        self._resolver = Resolver(wanted, upgrade, self._stopped)
        self._known = self._resolver.known()

    def run(self, hosts: Sequence[Host], ssh: SshSettings) -> list[Row]:
        """Do it on all hosts.

        Returns:
            A row for each host, in the order of the hosts.

        Raises:
            KeyboardInterrupt: the hosts remove what they began.
        """
        progress = Progress([host.name for host in hosts], self._notice)
        with (
            closing(self._resolver),
            ThreadPoolExecutor(min(ssh.fanout, MOST_AT_ONCE)) as pool,
            Hosts(hosts, ssh, self._notice) as connected,
        ):
            futures = [pool.submit(self._host, host, connected, progress) for host in hosts]
            try:
                while wait(futures, _LOOK).not_done:
                    progress.tick()
            finally:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
        return [future.result() for future in futures]

    def _host(self, host: Host, connected: Hosts, progress: Progress) -> Row:
        """Do it on one host."""
        look, fault, stage = None, "", functools.partial(progress, host.name)
        settings, known = self._settings, None if self._settings.days else self._known
        # A path relative to the working folder of the tasks means nothing here.
        python = "" if re.match(r"[^/~].*/", host.python or "") else host.python or ""
        asked = {"name": settings.name, "known": known, "python": python, "days": settings.days}
        try:
            stage("asking what it has")
            # After Ctrl-C the end of its input makes the program remove what it began.
            with closing(connected.start(host, asked)) as program:
                talk = _Talk(program, stage, self._stopped)
                look = talk.answer()
                state = look.state
                if not settings.days:
                    look, state = self._compare(look, talk, stage, functools.partial(connected.put, host))
        except Exception as error:  # noqa: BLE001 - the other hosts go on
            text = str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
            fault, state = masked(text.removeprefix(f"{host.name}: ")), "failed"
        stage(f"failed: {fault}" if fault else state, done=True)
        return Row(host.name, look, state, fault)

    def _compare(
        self, look: Look, talk: _Talk, stage: Callable[[str], None],
        put: Callable[[Sequence[str], str], None],
    ) -> tuple[Look, str]:  # fmt: skip
        """Compare a host with what is wanted, and prepare it.

        Args:
            look: what it says.
            talk: to it.
            stage: gets what is done.
            put: copies files to a folder of it.
        """
        ready, makes = look.state == "ready", self._settings.makes
        if ready and look.hash in self._known:
            return look, "ready"
        if not ready and not makes:
            return look, look.state
        python, resolved = self._choose(look, stage)
        if ready and look.hash == resolved.hash:
            return look, "ready"
        if not makes:
            return look, "other packages"
        return self._install(look, talk, stage, put, python, resolved), "ready"

    def _choose(self, look: Look, stage: Callable[[str], None]) -> tuple[_Python, Resolved]:
        """The newest Python of a host for which all packages have versions, and these.

        That of the environment which is ready comes first.
        """
        faults = []
        order = sorted(look.pythons, key=lambda each: (each.version != look.version, -_minor(each.version)))
        for python in order[:_MOST_PYTHONS]:
            text, oldest = python.problem, 0
            if not text:
                try:
                    finding = functools.partial(stage, f"finding versions for Python {python.version}")
                    return python, self._resolver.resolve(_target(python, look), finding)
                except Unresolved as error:
                    text, oldest = str(error), error.oldest
            old = f" is too old for these packages, which need 3.{oldest}"
            faults.append(f"Python {python.version}{old if _minor(python.version) < oldest else ''}: {text}")
        missing = "there is no Python for an environment; name one with `python` in the hostfile"
        raise TransportError("; ".join(faults) or missing)

    def _install(
        self, look: Look, talk: _Talk, stage: Callable[[str], None],
        put: Callable[[Sequence[str], str], None], python: _Python, resolved: Resolved,
    ) -> Look:  # fmt: skip
        """Make the environment on a host that lacks it."""
        text = "\n".join(resolved.lines)
        with_tensorflow = _TENSORFLOW.search(text)
        needed = _WITH_TENSORFLOW if with_tensorflow else _OTHERS
        if look.free < needed:
            free = f"{byte_size(look.free)} free below {look.folder}"
            raise TransportError(f"its disk is full: {free}, about {byte_size(needed)} are needed")
        if with_tensorflow and not look.avx:
            raise TransportError("its CPU has no AVX, which TensorFlow needs")
        if _CUDA.search(text) and not look.driver:
            stage("warning: no NVIDIA driver: TensorFlow will not use GPUs there")
        request = {
            "name": self._settings.name, "hash": resolved.hash,
            "version": python.version, "path": python.path,
            "stage": f"installing {counted(len(resolved.lines), 'package')}",
            "shown": [masked(line) for line in resolved.lines],
        }  # fmt: skip

        def send(folder: str) -> None:
            stage(f"downloading {counted(len(resolved.lines), 'wheel')} here")
            wheels = self._resolver.wheels(_target(python, look), resolved)
            paths = [entry.path for entry in os.scandir(wheels)]
            stage(f"sending {counted(len(paths), 'wheel')} ({byte_size(sum(map(os.path.getsize, paths)))})")
            put(paths, folder)

        if not self._settings.offline:
            try:
                lines = [*self._wanted.options, *resolved.lines]
                return talk.ask(send, **request, lines=lines, offline=False)
            except _Refused as error:
                reason = shortened(str(error), _REASON)
                stage(f"can't install from a package index, so wheels are sent ({reason})")
        lines = [re.sub(r"\s*@\s*\S+", "", line) for line in resolved.lines]
        return talk.ask(send, **request, lines=lines, offline=True)


def _target(python: _Python, look: Look) -> Target:
    """What a host's wheels must run on; its texts become words of command lines here."""
    target = Target(python.version, look.machine, look.libc)
    if not re.fullmatch(r"3\.[0-9]{1,2} [a-z0-9_]{1,20} (glibc 2\.[0-9]{1,3})?", " ".join(target)):
        raise TransportError(f"it has no platform that is known: {', '.join(target)}")
    return target


def _minor(version: str) -> int:
    return int(version.partition(".")[2])
