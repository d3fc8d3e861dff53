"""``known_hosts``: whether a host is who it was, and how it becomes known.

Read here rather than by paramiko, because a refusal must name file and line, a new key must be added without
writing the file anew, and patterns and revoked keys count as they do for ``ssh``. Keys that a certificate
authority vouches for are not known to paramiko, so those lines are passed over.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import shlex
import threading
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

USER_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
SYSTEM_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
#: The port that goes without saying.
SSH_PORT = 22


class Standing(Enum):
    """What the files say about a key."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    #: They know the host by another key.
    CHANGED = "changed"
    REVOKED = "revoked"


class Entry(NamedTuple):
    """A line of a file."""

    file: str
    line: int
    #: ``@revoked`` or empty.
    marker: str
    #: Who it is about: names, patterns, or a hashed name.
    names: tuple[str, ...]
    kind: str
    #: The key, base64.
    key: str

    @property
    def where(self) -> str:
        """For messages: ``~/.ssh/known_hosts:3``."""
        return f"{shorten(self.file)}:{self.line}"


class Verdict(NamedTuple):
    """What the files say, and the line that says so."""

    standing: Standing
    entry: Entry | None = None


class Files(NamedTuple):
    """Which files count for a host; a new key goes to the first of the user's."""

    user: tuple[str, ...]
    system: tuple[str, ...]


def files_for(options: Mapping[str, str]) -> Files:
    """What ``ssh_config`` says about them for a host."""
    return Files(
        _paths(options.get("userknownhostsfile", USER_FILES)),
        _paths(options.get("globalknownhostsfile", SYSTEM_FILES)),
    )


def _paths(words: str) -> tuple[str, ...]:
    return tuple(os.path.expanduser(word) for word in shlex.split(words) if word.lower() != "none")


def name_in_files(host: str, port: int) -> str:
    """How the files call a host: ``node3``, or ``[node3]:2222``."""
    return host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"


def fingerprint(key: bytes) -> str:
    """As ``ssh`` shows it: ``SHA256:...``."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def shorten(path: str) -> str:
    """``~`` for the user's home."""
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


class KnownHosts:
    """The files of a launch, each read once; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, list[Entry]] = {}

    def kinds(self, name: str, files: Files) -> list[str]:
        """The kinds of keys that are known of a host, in the order of the files."""
        return [entry.kind for entry in self._about(name, files) if not entry.marker]

    def judge(self, name: str, kind: str, key: bytes, files: Files) -> Verdict:
        """Whether it is this host's key.

        Args:
            name: see `name_in_files`.
            kind: like ``ssh-ed25519``.
            key: as the host sent it.
            files: where to look.
        """
        return _judge(list(self._about(name, files)), kind, key)

    def add(self, name: str, kind: str, key: bytes, files: Files, hashed: bool = False) -> Verdict:
        """Make it this host's key, unless somebody else has made it known meanwhile: then what that says.

        Raises:
            OSError: the file can't be written.
        """
        path = files.user[0]
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        with self._lock, open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "rb+", 0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            entries = list(_parse(path, text))
            verdict = _judge([entry for entry in entries if _is_about(entry, name)], kind, key)
            if verdict.standing is Standing.UNKNOWN:
                called = _hash(name, os.urandom(20)) if hashed else name
                line = f"{called} {kind} {base64.b64encode(key).decode()}\n".encode()
                file.write(line if not text or text.endswith(b"\n") else b"\n" + line)
                self._files.pop(path, None)
                verdict = Verdict(Standing.KNOWN)
        return verdict

    def _about(self, name: str, files: Files) -> Iterator[Entry]:
        for path in (*files.user, *files.system):
            yield from (entry for entry in self._entries(path) if _is_about(entry, name))

    def _entries(self, path: str) -> list[Entry]:
        with self._lock:
            if path not in self._files:
                self._files[path] = list(_parse(path, _read(path)))
            return self._files[path]


def _judge(entries: list[Entry], kind: str, key: bytes) -> Verdict:
    encoded = base64.b64encode(key).decode()
    for entry in entries:
        if entry.marker and entry.key == encoded:
            return Verdict(Standing.REVOKED, entry)
    plain = [entry for entry in entries if not entry.marker]
    for entry in plain:
        if entry.key == encoded:
            return Verdict(Standing.KNOWN, entry)
    if not plain:
        return Verdict(Standing.UNKNOWN)
    return Verdict(Standing.CHANGED, next((entry for entry in plain if entry.kind == kind), plain[0]))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # as if it were not there: then its hosts are not known, which is safe
        return b""


def _parse(path: str, text: bytes) -> Iterator[Entry]:
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#") and marker in ("", "@revoked"):
            yield Entry(path, number, marker, tuple(fields[0].split(",")), fields[1], _padded(fields[2]))


def _padded(key: str) -> str:
    bare = key.rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def _is_about(entry: Entry, name: str) -> bool:
    negated = [pattern[1:] for pattern in entry.names if pattern.startswith("!")]
    if any(_matches(pattern, name) for pattern in negated):
        return False
    return any(_matches(pattern, name) for pattern in entry.names if not pattern.startswith("!"))


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return _matches_hash(pattern, name)
    if "*" not in pattern and "?" not in pattern:
        return pattern.lower() == name
    expression = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name) is not None


def _matches_hash(pattern: str, name: str) -> bool:
    try:
        salt = base64.b64decode(pattern.split("|")[2], validate=True)
    except ValueError:
        return False
    return hmac.compare_digest(_hash(name, salt), pattern)


def _hash(name: str, salt: bytes) -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
