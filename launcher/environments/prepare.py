"""Prepares hosts side by side: asks each what it has, decides what it needs, and lets it install that."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import Any, TypeVar

from launcher.environments.connections import Programs, python_of
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

_T = TypeVar("_T")
#: Hosts at once.
MOST_AT_ONCE = 40
#: Seconds: between looks at what else has happened; until a line says who works; that a host may say nothing;
#: between two signs that the launcher is there.
_LOOK, _SILENT, _DEAD, _SIGN = 0.25, 2.0, 300.0, 5.0
#: Bytes of a read, of the longest answer, of a piece of a wheel.
_PIECE, _LONGEST, _CHUNK = 1 << 16, 1 << 20, 1 << 20
#: Characters of the reason why a host can't use a package index.
_REASON = 200
#: Bytes that an environment needs on the disk: with TensorFlow, with anything else.
_WITH_TENSORFLOW, _OTHERS = 2_500_000_000, 50_000_000
_TENSORFLOW = re.compile(r"(?im)^tensorflow([-_](cpu|gpu))?\b\s*(\[.*\])?\s*(==|@)")
_CUDA = re.compile(r"(?im)^nvidia[-_]cuda[-_]runtime")


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


class _Candidate(Record):
    """A Python of a host."""

    version: str
    path: str
    problem: str


class _Probe(Record):
    """What a host has that environments are made of."""

    candidates: tuple[_Candidate, ...]
    free: int
    avx: bool
    folder: str


class _Ready(Record):
    """Whether a host takes wheels."""

    ready: bool


class _Removed(Record):
    """What a host has removed."""

    names: tuple[str, ...]
    size: int


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
    #: ``prepare``, ``check``, ``clean``.
    do: str
    offline: bool
    #: Of unused environments, for ``clean``.
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
        self._now = dict.fromkeys(hosts, ("", ""))
        self._printed = self._began = time.monotonic()
        self._done = 0

    def __call__(self, host: str, stage: str, detail: str = "", done: bool = False) -> None:
        """A host has begun a stage, or is done."""
        with self._lock:
            new = self._now[host][0] != stage
            self._now[host] = stage, detail
            if done:
                self._done += 1
                del self._now[host]
            if new or done:
                self._print(f"[{self._done}/{self._total}] {host}: {stage}")

    def tick(self) -> None:
        """After two seconds without a line: which hosts do what."""
        with self._lock:
            if time.monotonic() - self._printed >= _SILENT:
                busy = [(host, detail or stage) for host, (stage, detail) in self._now.items() if stage]
                names = [f"{host} ({text})" for host, text in busy]
                seconds = time.monotonic() - self._began
                self._print(f"[{self._done}/{self._total}] {seconds:.0f}s: waiting for {listed(names, 3)}")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._notice(masked(text))


class _Talk:
    """Requests to the program on one host, and its answers.

    Args:
        program: on the host.
        stage: gets what the host does meanwhile, and a detail.
        stopped: set when the launch ends.
    """

    def __init__(
        self, program: RemoteCommand, stage: Callable[[str, str], None], stopped: threading.Event
    ) -> None:
        self._program, self._stage, self._stopped = program, stage, stopped
        self._received = b""
        self._signed = 0.0

    def ask(self, record: type[_T], **request: Any) -> _T:
        """Send a request and wait for its answer.

        Raises:
            TransportError: the host can't do it, or the connection broke.
        """
        self.send(json.dumps(request).encode("ascii") + b"\n")
        return self.answer(record)

    def send(self, data: bytes) -> None:
        """Send bytes; what the host has sent meanwhile is kept."""
        view, until = memoryview(data), time.monotonic() + _DEAD
        while view:
            sent = self._program.send(view)
            if sent:
                view, until = view[sent:], time.monotonic() + _DEAD
                continue
            if b"\n" in self._received:
                return  # the host has given up: its answer says why
            self._listen(until)

    def answer(self, record: type[_T]) -> _T:
        """Wait for an answer.

        Raises:
            TransportError: see `ask`.
        """
        until = time.monotonic() + _DEAD
        while True:
            line, end, rest = self._received.partition(b"\n")
            if not end:
                self._listen(until)
                self.sign()
                continue
            self._received, until = rest, time.monotonic() + _DEAD
            try:
                given = json.loads(line)
                kind = next(iter(given))
                if kind == "stage":
                    self._stage(host_text(given["stage"]), host_text(given.get("detail", "")))
                    continue
                if kind == "failed":
                    raise _Refused(masked(host_text(given["failed"])))
                return record(*FieldReader().read(record, given["answer"]))
            except (
                ValueError, TypeError, LookupError, AttributeError, StopIteration, RecursionError,
                ProtocolError,
            ) as error:  # fmt: skip
                raise TransportError(f"it sent a wrong answer: {host_text(repr(line[:200]))}") from error

    def sign(self) -> None:
        """Tell the host from time to time that the launcher is there."""
        if time.monotonic() - self._signed > _SIGN:
            self._signed = time.monotonic()
            self._program.send(b"\n")

    def wait_for(self, future: Future[_T]) -> _T:
        """The result of something that is done here."""
        while True:
            if self._stopped.is_set():
                raise TransportError("it was stopped")
            try:
                return future.result(_LOOK)
            except NotYet:
                if future.done():
                    raise
                self.sign()

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
            raise self._program.why_ended() or TransportError(
                f"the program there ended: {last_line(self._program.stderr(), 'it printed no error')}"
            )
        elif len(self._received) < _LONGEST:
            self._received += data
        else:
            raise TransportError("it sent too long an answer")


class Preparing:
    """One ``launch prepare``.

    A context: its end removes the wheels that were downloaded.

    Args:
        settings: what is done.
        wanted: the packages; none for ``clean``.
        upgrade: find the newest versions of the packages, even if earlier ones are known.
        notice: prints a line.
    """

    def __init__(
        self, settings: Settings, wanted: Requirements, upgrade: bool, notice: Callable[[str], None]
    ) -> None:
        self._settings, self._wanted, self._notice = settings, wanted, notice
        self._resolver = Resolver(wanted, upgrade)
        self._stopped = threading.Event()

    def __enter__(self) -> Preparing:
        return self

    def __exit__(self, *_: object) -> None:
        self._resolver.close()

    def run(self, hosts: Sequence[Host], ssh: SshSettings) -> list[Row]:
        """Do it on all hosts.

        Returns:
            A row for each host, in the order of the hosts.

        Raises:
            KeyboardInterrupt: after the hosts have removed what they began.
        """
        progress = Progress([host.name for host in hosts], self._notice)
        with Programs(ssh) as programs, ThreadPoolExecutor(min(ssh.fanout, MOST_AT_ONCE, len(hosts))) as pool:
            futures = [pool.submit(self._host, host, programs, progress) for host in hosts]
            try:
                left = set(futures)
                while left:
                    left = wait(left, _LOOK, FIRST_COMPLETED).not_done
                    progress.tick()
            finally:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
            for line in programs.added:
                self._notice(line)
        return [future.result() for future in futures]

    def _host(self, host: Host, programs: Programs, progress: Progress) -> Row:
        """Do it on one host."""
        name, look, fault = host.name, None, ""
        try:
            progress(name, "connecting")
            program = programs.start(host)
            try:
                talk = _Talk(program, lambda stage, detail: progress(name, stage, detail), self._stopped)
                if self._settings.do == "clean":
                    done = self._clean(talk)
                    look = talk.ask(Look, do="look", name=self._settings.name)
                else:
                    look, done = self._compare(host, talk, lambda stage: progress(name, stage))
            finally:
                program.close()  # after Ctrl-C: the end of its input makes it remove what it began
        except Exception as error:  # noqa: BLE001 - the other hosts go on
            text = str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
            fault, done = masked(text.removeprefix(f"{name}: ")), "failed"
        progress(name, f"failed: {fault}" if fault else done, done=True)
        return Row(name, look, done, fault)

    def _clean(self, talk: _Talk) -> str:
        names, size = talk.ask(_Removed, do="clean", days=self._settings.days)
        removed = f"removed {counted(len(names), 'environment')} ({byte_size(size)})"
        return removed if names else "nothing to remove"

    # ------------------------------------------------------------------ environments

    def _compare(self, host: Host, talk: _Talk, stage: Callable[[str], None]) -> tuple[Look, str]:
        """Compare a host with what is wanted, and prepare it."""
        look = talk.ask(Look, do="look", name=self._settings.name)
        if look.state == "ready":
            target = _target(look.version, look)
            resolved = self._resolver.cached(target)
            if resolved is None:
                stage(f"finding versions for Python {look.version}")
                with suppress(Unresolved):  # perhaps for another Python of the host
                    resolved = talk.wait_for(self._resolver.resolve(target))
            if resolved is not None and resolved.hash == look.hash:
                return look, "ready"
        if self._settings.do == "check":
            return look, "other packages" if look.state == "ready" else look.state
        return self._install(host, talk, look, stage), "ready"

    def _install(self, host: Host, talk: _Talk, look: Look, stage: Callable[[str], None]) -> Look:
        """Make the environment on a host that lacks it."""
        probe = talk.ask(_Probe, do="probe", python=python_of(host))
        candidate, resolved = self._choose(talk, probe, look, stage)
        text = "\n".join(resolved.lines)
        with_tensorflow = _TENSORFLOW.search(text) is not None
        needed = _WITH_TENSORFLOW if with_tensorflow else _OTHERS
        if probe.free < needed:
            free = byte_size(probe.free)
            raise TransportError(
                f"its disk is full: {free} free below {probe.folder}, about {byte_size(needed)} are needed"
            )
        if with_tensorflow and not probe.avx:
            raise TransportError("its CPU has no AVX, which TensorFlow needs")
        if _CUDA.search(text) and not look.driver:
            self._notice(f"warning: {host.name}: no NVIDIA driver: TensorFlow will not use GPUs there")
        request: dict[str, Any] = {
            "do": "install", "name": self._settings.name, "hash": resolved.hash, "version": candidate.version,
            "path": candidate.path, "stage": f"installing {counted(len(resolved.lines), 'package')}",
            "shown": list(map(masked, resolved.lines)),
        }  # fmt: skip
        if not self._settings.offline:
            try:
                return talk.ask(Look, **request, lines=[*self._wanted.options, *resolved.lines], wheels=None)
            except _Refused as error:
                reason = shortened(str(error), _REASON)
                stage(f"can't install from a package index, so wheels are sent ({reason})")
        return self._send(talk, look, candidate, resolved, request, stage)

    def _choose(
        self, talk: _Talk, probe: _Probe, look: Look, stage: Callable[[str], None]
    ) -> tuple[_Candidate, Resolved]:
        """The newest Python of a host for which all packages have versions, and these."""
        faults = []
        for candidate in sorted(probe.candidates, key=lambda each: -_minor(each.version)):
            if candidate.problem:
                faults.append(f"Python {candidate.version}: {candidate.problem}")
                continue
            target = _target(candidate.version, look)
            if self._resolver.cached(target) is None:
                stage(f"finding versions for Python {candidate.version}")
            try:
                return candidate, talk.wait_for(self._resolver.resolve(target))
            except Unresolved as error:
                old = 0 < _minor(candidate.version) < error.oldest
                text = f" is too old for these packages, which need 3.{error.oldest}" if old else ""
                faults.append(f"Python {candidate.version}{text}: {error}")
        if not faults:
            raise TransportError(
                "there is no Python for an environment; name one with `python` in the hostfile"
            )
        raise TransportError("; ".join(faults))

    def _send(
        self, talk: _Talk, look: Look, candidate: _Candidate, resolved: Resolved, request: dict[str, Any],
        stage: Callable[[str], None],
    ) -> Look:  # fmt: skip
        """Install from wheels that are downloaded here and sent."""
        stage(f"downloading {counted(len(resolved.lines), 'wheel')} here")
        folder = talk.wait_for(self._resolver.wheels(_target(candidate.version, look), resolved))
        wheels = sorted((entry.name, entry.stat().st_size) for entry in os.scandir(folder))
        lines = [re.sub(r"\s*@\s*\S+", "", line) for line in resolved.lines]
        talk.send(json.dumps({**request, "lines": lines, "wheels": len(wheels)}).encode("ascii") + b"\n")
        if not talk.answer(_Ready).ready:  # the environment exists: another name has it
            return talk.answer(Look)
        stage(f"sending {counted(len(wheels), 'wheel')} ({byte_size(sum(size for _, size in wheels))})")
        for name, size in wheels:
            talk.send(json.dumps({"name": name, "size": size}).encode("ascii") + b"\n")
            with open(os.path.join(folder, name), "rb") as file:
                while data := file.read(_CHUNK):
                    talk.send(data)
        return talk.answer(Look)


def _target(version: str, look: Look) -> Target:
    """What a host's wheels must run on; its texts become words of command lines here."""
    good = re.fullmatch(r"3\.[0-9]{1,2}", version) and re.fullmatch(r"[a-z0-9_]{1,20}", look.machine)
    if not good or not re.fullmatch(r"(glibc [0-9.]{1,8})?", look.libc):
        raise TransportError(f"it has no platform that is known: {version}, {look.machine}, {look.libc}")
    return Target(version, look.machine, look.libc)


def _minor(version: str) -> int:
    return int(version.partition(".")[2])
