"""Hosts that are folders: errands run as local processes, each with the home of its host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.errors import ConnectionLost, TransportError
from launcher.files.progress import Lines, Meter

ROOT = Path(__file__).resolve().parents[3]
_RUN = """\
import importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
module, _, function = sys.argv[2].partition(":")
function = getattr(importlib.import_module(module), function)
if int(sys.argv[4]):  # who may not read what Python imports late
    __import__("codecs").lookup("ascii")
    os.setgroups([])
    os.setgid(int(sys.argv[4]))
    os.setuid(int(sys.argv[4]))
sys.exit(function(json.loads(sys.argv[3])))
"""


class LocalErrand:
    """One errand as a child with pipes; may be cut after so many bytes."""

    def __init__(self, argv: list[str], environment: dict[str, str], cut_after: int | None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the errand
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment,
            bufsize=0,
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout
        self._in, self._out = self.process.stdin, self.process.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._left = cut_after
        self.sent = self.received = 0
        self.breaks_after: int | None = None

    def fileno(self) -> int:
        return self._out.fileno()

    def recv(self, size: int) -> bytes | None:
        self._cut()
        try:
            data = os.read(self._out.fileno(), size)
        except BlockingIOError:
            return None
        self.received += len(data)
        if self.breaks_after is not None and self.received > self.breaks_after:
            raise ConnectionLost("the connection broke")
        return data

    def send(self, data: bytes | memoryview) -> int:
        self._cut()
        piece = data if self._left is None else memoryview(data)[: self._left]
        try:
            count = os.write(self._in.fileno(), piece)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return 0  # it has ended; reading says so
        self.sent += count
        if self._left is not None:
            self._left -= count
        return count

    def _cut(self) -> None:
        if self._left == 0:
            raise ConnectionLost("the connection broke")

    def wait(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self.process.wait(50)
        self._stderr.close()


class LocalHosts:
    """Implements `Errands`.

    Args:
        folder: the hosts' homes are in there, ``home(name)``.
        python: what runs the errands.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._folder = folder
        self.python = python
        #: Cut the next errand on this host after so many bytes were sent to it.
        self.cuts: dict[str, int] = {}
        self.environments: dict[str, dict[str, str]] = {}
        #: Who runs the errands; 0: whoever runs the tests.
        self.nobody = 0
        self.errands: list[LocalErrand] = []
        #: Hosts that were connected to anew, and those that can't be.
        self.reconnected: list[str] = []
        self.away: set[str] = set()
        self._lock = threading.Lock()

    def home(self, host: str) -> Path:
        home = self._folder / host
        if not home.exists():
            home.mkdir(parents=True)
            if self.nobody:
                os.chown(home, self.nobody, -1)
        return home

    def cache(self, host: str) -> Path:
        return self.home(host) / ".cache/tf-launcher"

    def run(self, host: str, entry: str, arguments: object) -> LocalErrand:
        told = [str(ROOT), entry, json.dumps(arguments), str(self.nobody)]
        argv = [self.python, "-I", "-S", "-B", "-c", _RUN, *told]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
            "HOME": str(self.home(host)),
            **self.environments.get(host, {}),
        }
        with self._lock:
            cut = self.cuts.pop(host, None)
            errand = LocalErrand(argv, environment, cut)
            self.errands.append(errand)
        return errand

    def reconnect(self, host: str) -> None:
        """See `Errands`."""
        self.reconnected.append(host)
        if host in self.away:
            raise TransportError(f"{host}: no route to it")

    def patience(self, host: str) -> float:
        """See `Errands`."""
        return 1.0

    @property
    def sent(self) -> int:
        """Bytes of all errands so far."""
        return sum(errand.sent for errand in self.errands)


class quietly(Lines):
    """No line about how far it is, however long it takes."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(said.append)

    def begin(self, verb: str, meter: Meter) -> None:
        super().begin(verb, meter)
        self._due = float("inf")


def snapshot(root: Path) -> dict[bytes, tuple[str, int, object]]:
    """What is in a tree: by path the kind, the permissions, and content or target."""
    found: dict[bytes, tuple[str, int, object]] = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode & 0o777
            if os.path.islink(path):
                found[path[len(top) + 1 :]] = ("link", 0, os.readlink(path))
            elif os.path.isdir(path):
                found[path[len(top) + 1 :]] = ("folder", mode, None)
            else:
                with open(path, "rb") as file:
                    found[path[len(top) + 1 :]] = ("file", mode, file.read())
    return found


@contextmanager
def away_from(folder: Path) -> Iterator[None]:
    """Be in another folder for a while."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
