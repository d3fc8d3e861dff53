"""``known_hosts``: is this the key of the host, and how does a new host become known?

paramiko's reader is not used: it raises on ``@revoked`` and ``@cert-authority``, rewrites the file to add a
line, and does not say which line refuses a key. Lines of certificate authorities are skipped: paramiko has no
host certificates.
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
from collections.abc import Iterator
from typing import NamedTuple

from paramiko import PKey

from launcher.transports.ssh.failures import HostFailure
from launcher.transports.ssh.options import SSH_PORT, HostOptions, shorten

#: The signature algorithms of a key type that has several.
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class Entry(NamedTuple):
    """A line of a file."""

    file: str
    line: int
    revoked: bool
    #: Names, patterns, or one hashed name.
    names: tuple[str, ...]
    kind: str
    #: The key, base64.
    key: str


class KnownHosts:
    """The known_hosts files of a launch, each read once; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, list[Entry]] = {}
        #: One line for each key that was added.
        self.added: list[str] = []

    def algorithms(self, options: HostOptions, supported: tuple[str, ...]) -> tuple[str, ...]:
        """Host key algorithms in order of preference: those of known keys first (a host may have several)."""
        kinds = [entry.kind for entry in self._about(options) if not entry.revoked]
        known = [name for kind in kinds for name in _SIGNATURES.get(kind, (kind,)) if name in supported]
        return tuple(dict.fromkeys([*known, *supported]))

    def check(self, options: HostOptions, key: PKey, accept_new: bool) -> None:
        """Return if this is the key of the host; a new host becomes known with ``accept_new``.

        Raises:
            HostFailure: the key is revoked, another one, or unknown.
        """
        place, blob = options.place, key.asbytes()
        shown = f"{key.get_name()} {fingerprint(blob)}"
        encoded = base64.b64encode(blob).decode()
        entries = list(self._about(options))
        if not _is_known(entries, encoded, options, shown):
            if not (accept_new or options.accept_new) or not options.known_hosts:
                raise HostFailure(
                    f"the host key of {place} is not known ({shown}); if that is its key, accept it with: "
                    f"launch --accept-new-host-keys ..., or: {_accepting_command(options)}"
                )
            self._add(options, key.get_name(), encoded, shown)

    def _add(self, options: HostOptions, kind: str, encoded: str, shown: str) -> None:
        """Append a line, unless another launch has just done so."""
        path, name = options.known_hosts[0], known_name(options)
        try:
            os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with self._lock, open(fd, "rb+", 0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                text = file.read()
                entries = [entry for entry in _parse(path, text) if _matches(entry, name)]
                if _is_known(entries, encoded, options, shown):
                    return
                written = _hashed(name, os.urandom(20)) if options.hash_known_hosts else name
                line = f"{written} {kind} {encoded}\n".encode()
                file.write(line if not text or text.endswith(b"\n") else b"\n" + line)
                self._files.pop(path, None)
                self.added.append(f"{name}: {shown} is its key from now on ({shorten(path)})")
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise HostFailure(f"its host key can't be added to {shorten(path)}: {why}") from error

    def _about(self, options: HostOptions) -> Iterator[Entry]:
        name = known_name(options)
        for path in (*options.known_hosts, *options.system_known_hosts):
            with self._lock:
                if path not in self._files:
                    self._files[path] = list(_parse(path, _read(path)))
                entries = self._files[path]
            yield from (entry for entry in entries if _matches(entry, name))


def _is_known(entries: list[Entry], encoded: str, options: HostOptions, shown: str) -> bool:
    """Whether a key is among the entries of a host; ``False``: the host has none.

    Raises:
        HostFailure: it is revoked, or the host has another key.
    """
    for entry in entries:
        if entry.revoked and entry.key == encoded:
            where = f"{shorten(entry.file)}:{entry.line}"
            raise HostFailure(
                f"the host key of {options.place} is revoked by {where} ({shown}): do not trust it"
            )
    valid = [entry for entry in entries if not entry.revoked]
    if not valid or any(entry.key == encoded for entry in valid):
        return bool(valid)
    kind = shown.split()[0]
    entry = next((entry for entry in valid if entry.kind == kind), valid[0])
    remove = shlex.join(["ssh-keygen", "-f", entry.file, "-R", known_name(options)])
    raise HostFailure(
        f"the host key of {options.place} has changed: it shows {shown}, "
        f"{shorten(entry.file)}:{entry.line} says {entry.kind} {fingerprint(base64.b64decode(entry.key))}. "
        "Another machine may answer in its place; if you know that the host was installed anew, "
        f"remove the old key with: {remove}"
    )


def known_name(options: HostOptions) -> str:
    """The name of a host in the files: ``node3``, ``[node3]:2222``, or its HostKeyAlias."""
    if options.host_key_alias:
        return options.host_key_alias
    address = options.address.lower()
    return address if options.port == SSH_PORT else f"[{address}]:{options.port}"


def fingerprint(key: bytes) -> str:
    """As ``ssh`` shows it: ``SHA256:...``."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _accepting_command(options: HostOptions) -> str:
    port = ["-p", str(options.port)] if options.port != SSH_PORT else []
    return shlex.join(["ssh", "-o", "StrictHostKeyChecking=accept-new", *port, options.name, "true"])


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # as if it were empty: its hosts are not known, which is safe
        return b""


def _parse(path: str, text: bytes) -> Iterator[Entry]:
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#") and marker in ("", "@revoked"):
            key = fields[2].rstrip("=")
            key += "=" * (-len(key) % 4)
            if _decodes(key):
                yield Entry(path, number, bool(marker), tuple(fields[0].split(",")), fields[1], key)


def _decodes(key: str) -> bool:
    try:
        base64.b64decode(key, validate=True)
    except ValueError:
        return False
    return True


def _matches(entry: Entry, name: str) -> bool:
    """Whether a line is about a host; a negated pattern excludes it."""
    if any(_matches_pattern(pattern[1:], name) for pattern in entry.names if pattern.startswith("!")):
        return False
    return any(_matches_pattern(pattern, name) for pattern in entry.names if not pattern.startswith("!"))


def _matches_pattern(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        try:
            salt = base64.b64decode(pattern.split("|")[2], validate=True)
        except ValueError:
            return False
        return _hashed(name, salt) == pattern
    if "*" not in pattern and "?" not in pattern:
        return pattern.lower() == name
    expression = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name) is not None


def _hashed(name: str, salt: bytes) -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
