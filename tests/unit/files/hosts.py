"""Hosts that are folders: remote commands run as local processes, each with the home of its host."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_RUN = """\
import importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
module, _, function = sys.argv[2].partition(":")
function = getattr(importlib.import_module(module), function)
if int(sys.argv[4]):  # this user may not read what Python imports late
    __import__("codecs").lookup("ascii")
    os.setgroups([])
    os.setgid(int(sys.argv[4]))
    os.setuid(int(sys.argv[4]))
sys.exit(function(json.loads(sys.argv[3])))
"""


class LocalCommand:
    """Implements `RemoteCommand` as a child with pipes."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the command
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment,
            bufsize=0,
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout
        self._in, self._out = self.process.stdin, self.process.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._ready = select.epoll()
        self._ready.register(self._out, select.EPOLLIN)
        self._ready.register(self._in, 0)

    def fileno(self) -> int:
        return self._ready.fileno()

    def recv(self, size: int) -> bytes | None:
        try:
            return os.read(self._out.fileno(), size)
        except BlockingIOError:
            return None

    def send(self, data: bytes | memoryview) -> int:
        count = 0
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # after its end reading reports it
            count = os.write(self._in.fileno(), data)
        self._ready.modify(self._in, select.EPOLLOUT if count < len(data) else 0)
        return count

    def wait(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def close(self) -> None:
        self._ready.close()
        self._in.close()
        self._out.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stderr.close()


class LocalHosts:
    """Implements `Hosts`.

    Args:
        folder: the hosts' homes are in there, ``home(name)``.
        code: Python that every host runs instead of the command.
    """

    def __init__(self, folder: Path, code: str = "") -> None:
        self._folder = folder
        self._code = code
        self.python = sys.executable
        self.environments: dict[str, dict[str, str]] = {}
        #: The user of the commands; 0: the one of the tests.
        self.uid = 0
        self.commands: list[LocalCommand] = []

    def home(self, host: str) -> Path:
        home = self._folder / host
        if not home.exists():
            home.mkdir(parents=True)
            if self.uid:
                os.chown(home, self.uid, -1)
        return home

    def cache(self, host: str) -> Path:
        return self.home(host) / ".cache/tf-launcher"

    def run(self, host: str, entry: str, arguments: object) -> LocalCommand:
        argv = [self.python, "-I", "-S", "-B", "-c", self._code or _RUN]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
            "HOME": str(self.home(host)),
            **self.environments.get(host, {}),
        }
        command = LocalCommand([*argv, str(ROOT), entry, json.dumps(arguments), str(self.uid)], environment)
        self.commands.append(command)
        return command


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
