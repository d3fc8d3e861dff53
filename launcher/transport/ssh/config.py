"""``~/.ssh/config`` as fabric wants it, with what a hostfile says put before it."""

from __future__ import annotations

import glob
import os
import shlex
import threading
from collections.abc import Iterator

from fabric import Config
from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from launcher.errors import TransportError

_USER_FILE = "~/.ssh/config"
_SYSTEM_FILE = "/etc/ssh/ssh_config"
#: How deep files may include others, as in OpenSSH.
_MOST_INCLUDES = 16


class SshConfig:
    """What the user's and the system's file say, read once.

    ``Include`` is followed (paramiko does not); one within a ``Host`` block counts for all hosts.

    Raises:
        TransportError: a file can't be read.
    """

    def __init__(self) -> None:
        files = (os.path.expanduser(_USER_FILE), _SYSTEM_FILE)
        # A file may end within a block: what comes next is for everybody again.
        self._text = "\n".join("Host *\n" + "\n".join(_lines(file)) for file in files)
        self._lock = threading.Lock()
        self._parsed: dict[tuple[str | None, int | None], SSHConfig] = {}

    def with_own(self, user: str | None, port: int | None) -> Config:
        """For a host with settings of its own: those win, and count for ``Match user`` and ``%p`` as well.

        Raises:
            TransportError: a line can't be understood.
        """
        with self._lock:
            if (user, port) not in self._parsed:
                self._parsed[user, port] = self._parse(user, port)
        # One for each connection: fabric writes into it.
        config = Config(ssh_config=self._parsed[user, port], lazy=True)
        config.load_ssh_config()
        return config

    def _parse(self, user: str | None, port: int | None) -> SSHConfig:
        own = [f"User {user}"] * (user is not None) + [f"Port {port}"] * (port is not None)
        try:
            return SSHConfig.from_text("\n".join(("Host *", *own, self._text)))
        except (ConfigParseError, ValueError) as error:
            raise TransportError(f"{_USER_FILE} can't be understood: {error}") from error


def _lines(path: str, depth: int = 0) -> Iterator[str]:
    """The lines of a file, and of those it includes."""
    if depth > _MOST_INCLUDES:
        raise TransportError(f"{path}: included by files that include each other")
    block = "Host *"
    for line in _read(path):
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() in ("host", "match"):
            block = line
        if word.lower() != "include":
            yield line
            continue
        for included in _included(rest, path):
            yield "Host *"
            yield from _lines(included, depth + 1)
        yield block


def _read(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise TransportError(f"{path} can't be read: {error.strerror}") from error


def _included(patterns: str, path: str) -> Iterator[str]:
    """The files that an ``Include`` means: patterns, from the folder of the first file if relative."""
    folder = "/etc/ssh" if path.startswith("/etc/ssh/") else os.path.expanduser("~/.ssh")
    for pattern in shlex.split(patterns):
        yield from sorted(glob.glob(os.path.join(folder, os.path.expanduser(pattern))))
