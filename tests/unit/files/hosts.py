"""Hosts that are folders: remote commands run as local processes, each with the home of its host."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.backends import bootstrap
from launcher.backends.programs import RemoteProgram, start_program

#: Begins the code of a host that does something else: it reports that it is ready.
_READY = "import os, sys; os.write(1, b'\\n<tf-launcher program: ready>\\n');"


def as_user(uid: int) -> list[str]:
    """What a command begins with that another user runs; 0: this one."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []


class LocalHosts:
    """Implements `Hosts`.

    Args:
        folder: the hosts' homes are in there, ``home(name)``.
        codes: Python that a host runs instead of the command.
    """

    def __init__(self, folder: Path, **codes: str) -> None:
        self._folder = folder
        self._codes = codes
        self.python = sys.executable
        self.environments: dict[str, dict[str, str]] = {}
        #: What the commands of a host begin with, which makes it another machine.
        self.before: dict[str, Sequence[str]] = {}
        #: The user of the commands; 0: the one of the tests.
        self.uid = 0

    def home(self, host: str) -> Path:
        home = self._folder / host
        if not home.exists():
            home.mkdir(parents=True)
            if self.uid:
                os.chown(home, self.uid, -1)
        return home

    def cache(self, host: str) -> Path:
        return self.home(host) / ".cache/tf-launcher"

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        variables = {"HOME": str(self.home(host)), **self.environments.get(host, {})}
        start = ["env", "-u", "XDG_CACHE_HOME", *map("=".join, variables.items()), *as_user(self.uid)]
        start = [*self.before.get(host, ()), *start]
        if host in self._codes:
            argv = [*start, self.python, "-I", "-c", _READY + self._codes[host]]
            return start_program(host, argv, b"", self.python)
        argv = [*start, *bootstrap.loader_command(self.python)]
        return start_program(host, argv, bootstrap.program(entry, arguments), self.python)


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
