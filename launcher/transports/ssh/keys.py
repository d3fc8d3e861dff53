"""Keys: is this the key of the host (``known_hosts``), and which of ours does the host accept?

paramiko's reader of known_hosts is not used: it raises on ``@revoked`` and ``@cert-authority``, rewrites the
file to add a line, and does not say which line refuses a key. Lines of certificate authorities are skipped:
paramiko has no host certificates. paramiko's client of the agent is not used: it takes only that of
``SSH_AUTH_SOCK``, and waits without limit.

A login offers keys in the order of ``ssh``: keys of the agent that the configuration names, other keys of the
agent, key files. Nothing asks for a password.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import shlex
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from paramiko import Message, PKey, SSHException, Transport
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType

from launcher.transports.ssh.options import SSH_PORT, HostFailure, HostOptions, shorten

#: The signature algorithms of a key type that has several.
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
#: Permissions that a private key must not give to other users.
_OTHERS = 0o077
#: Numbers of the agent's protocol.
_REQUEST_IDENTITIES, _IDENTITIES, _SIGN_REQUEST, _SIGNATURE = 11, 12, 13, 14
_SIGN_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}
#: Bytes of an answer of the agent, at most.
_MOST_ANSWER = 1 << 20


class Entry(NamedTuple):
    """A line of a file."""

    file: str
    line: int
    revoked: bool
    #: Names, patterns, or one hashed name.
    names: tuple[str, ...]
    kind: str
    key: bytes


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
        if not _is_known(list(self._about(options)), blob, options, shown):
            if not (accept_new or options.accept_new) or not options.known_hosts:
                raise HostFailure(
                    f"the host key of {place} is not known ({shown}); if that is its key, accept it with: "
                    f"launch --accept-new-host-keys ..., or: {_accepting_command(options)}"
                )
            self._add(options, key.get_name(), blob, shown)

    def _add(self, options: HostOptions, kind: str, key: bytes, shown: str) -> None:
        """Append a line, unless another launch has just done so."""
        path, name = options.known_hosts[0], known_name(options)
        try:
            os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with self._lock, open(fd, "rb+", 0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                text = file.read()
                entries = [entry for entry in _parse(path, text) if _matches(entry, name)]
                if _is_known(entries, key, options, shown):
                    return
                written = _hashed(name, os.urandom(20)) if options.hash_known_hosts else name
                line = f"{written} {kind} {base64.b64encode(key).decode()}\n".encode()
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


def _is_known(entries: list[Entry], key: bytes, options: HostOptions, shown: str) -> bool:
    """Whether a key is among the entries of a host; ``False``: the host has none.

    Raises:
        HostFailure: it is revoked, or the host has another key.
    """
    for entry in entries:
        if entry.revoked and entry.key == key:
            where = f"{shorten(entry.file)}:{entry.line}"
            raise HostFailure(
                f"the host key of {options.place} is revoked by {where} ({shown}): do not trust it"
            )
    valid = [entry for entry in entries if not entry.revoked]
    if not valid or any(entry.key == key for entry in valid):
        return bool(valid)
    kind = shown.split()[0]
    entry = next((entry for entry in valid if entry.kind == kind), valid[0])
    remove = shlex.join(["ssh-keygen", "-f", entry.file, "-R", known_name(options)])
    raise HostFailure(
        f"the host key of {options.place} has changed: it shows {shown}, "
        f"{shorten(entry.file)}:{entry.line} says {entry.kind} {fingerprint(entry.key)}. "
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
            try:
                key = base64.b64decode(fields[2] + "==")
            except ValueError:  # as a comment
                continue
            yield Entry(path, number, bool(marker), tuple(fields[0].split(",")), fields[1], key)


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


# ---------------------------------------------------------------------- our keys


class KeyFile(NamedTuple):
    """A key file: the key, or why it can't be used and what to do about it."""

    path: str
    key: PKey | None
    problem: str = ""
    advice: str = ""


def load_key(path: str) -> KeyFile | None:
    """The key of a file; ``None``: there is no such file."""
    if not os.path.exists(path):
        return None
    try:
        status = os.stat(path)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == os.getuid() and mode & _OTHERS:
            problem = f"is ignored, as ssh does: its permissions {mode:04o} are too open"
            return KeyFile(path, None, problem, f"make it private with: chmod 600 {shorten(path)}")
        return KeyFile(path, PKey.from_path(path))
    except TypeError:  # what cryptography raises for want of a passphrase
        return KeyFile(path, None, "is protected by a passphrase", f"unlock it with: ssh-add {shorten(path)}")
    except OSError as error:
        return KeyFile(path, None, f"can't be read ({(error.strerror or str(error)).lower()})")
    except (ValueError, SSHException, UnknownKeyType) as error:
        return KeyFile(path, None, f"is not a key that can be used ({type(error).__name__})")


def log_in(
    transport: Transport, options: HostOptions, load: Callable[[str], KeyFile | None], seconds: float
) -> None:
    """Try one key after another.

    Args:
        transport: connected, its host key checked.
        options: of the host.
        load: `load_key`, which may remember the files of other hosts.
        seconds: the time for each answer.

    Raises:
        HostFailure: every key was refused, or there was no answer.
    """
    key_files = [file for path in options.identity_files if (file := load(path))]
    agent = Agent.connect(options.agent, seconds)
    tried: list[str] = []
    try:
        for label, key in _candidates(agent.keys if agent else [], key_files, options.identities_only):
            tried.append(label)
            if _accepted(transport, options, key, tried, seconds):
                return
    finally:
        if agent is not None:
            agent.close()
    raise _refused(options, tried, key_files)


def _candidates(
    in_agent: Sequence[AgentKey], key_files: Sequence[KeyFile], only_named: bool
) -> Iterator[tuple[str, PKey]]:
    """The keys to try, each once, with their names for messages."""
    usable = {file.key.asbytes(): (file.path, file.key) for file in key_files if file.key is not None}
    named = {*usable, *(_public_part(file.path) for file in key_files)}
    held = {key.asbytes(): key for key in in_agent}
    for blob, agent_key in sorted(held.items(), key=lambda item: item[0] not in named):
        if blob in named or not only_named:
            yield f"{agent_key.get_name()} {agent_key.comment}".strip() + " from the agent", agent_key
    for blob, (path, key) in usable.items():
        if blob not in held:
            yield shorten(path), key


def _accepted(
    transport: Transport, options: HostOptions, key: PKey, tried: list[str], seconds: float
) -> bool:
    """Whether the host accepts the last of the keys that were tried."""
    place, user = options.place, options.user
    began = time.monotonic()
    try:
        missing = transport.auth_publickey(user, key)
    except BadAuthenticationType as error:
        allowed = " or ".join(error.allowed_types)
        raise HostFailure(
            f"{place} accepts no keys for a login as {user}, only {allowed}, which a launch can't give"
        ) from error
    except (SSHException, EOFError, OSError) as error:
        if time.monotonic() - began >= seconds:
            raise HostFailure(
                f"{place} gave no answer to a login as {user} for {seconds:g} s", True
            ) from error
        if not transport.is_active():
            raise HostFailure(
                f"{place} closed the connection during the login as {user}, after {len(tried)} keys "
                f"({', '.join(tried)}); if that is too many, name the right one with IdentityFile and "
                "IdentitiesOnly in ~/.ssh/config"
            ) from error
        if not isinstance(error, AuthenticationException):  # an agent that does not sign
            tried[-1] += f" ({error})"
        return False
    if missing:
        raise HostFailure(
            f"{place} accepts the key {tried[-1]} of {user} and asks for {' or '.join(missing)} as well, "
            "which a launch can't give"
        )
    return True


def _refused(options: HostOptions, tried: Sequence[str], key_files: Sequence[KeyFile]) -> HostFailure:
    unusable = [file for file in key_files if file.key is None]
    keys = f"tried: {', '.join(tried)}" if tried else "there was no key to offer"
    keys += "".join(f"; {shorten(file.path)} {file.problem}" for file in unusable)
    advice = next((file.advice for file in unusable if file.advice), "")
    advice = advice or "is that the right user, and is the key in its ~/.ssh/authorized_keys there?"
    return HostFailure(f"{options.place} refused the login as {options.user} ({keys}); {advice}")


def _public_part(path: str) -> bytes:
    """The public key beside a key file, which may be locked; empty if there is none."""
    try:
        with open(f"{path}.pub", encoding="ascii") as file:
            return base64.b64decode(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return b""


class AgentKey(PKey):
    """A key that the agent holds; the agent signs with it."""

    def __init__(self, agent: Agent, blob: bytes, comment: str) -> None:
        self._agent = agent
        self._blob = blob
        self.comment = comment

    def asbytes(self) -> bytes:
        """The public key."""
        return self._blob

    def get_name(self) -> str:
        """Its type: ``ssh-ed25519``."""
        return Message(self._blob).get_text()

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Message:
        """See `paramiko.PKey.sign_ssh_data`.

        Raises:
            SSHException: the agent does not sign.
        """
        request = Message()
        request.add_string(self._blob)
        request.add_string(data)
        request.add_int(_SIGN_FLAGS.get(algorithm or "", 0))
        return Message(self._agent.ask(_SIGN_REQUEST, request.asbytes(), _SIGNATURE).get_binary())


class Agent:
    """A connection to an ssh-agent.

    Args:
        line: a connected socket with a time-out.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        answer = self.ask(_REQUEST_IDENTITIES, b"", _IDENTITIES)
        self.keys = [AgentKey(self, answer.get_binary(), answer.get_text()) for _ in range(answer.get_int())]

    @classmethod
    def connect(cls, path: str, seconds: float) -> Agent | None:
        """The agent at a socket; ``None``: there is none, or it does not answer. Key files may be enough."""
        if not path:
            return None
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(seconds)
            line.connect(path)
            return cls(line)
        except (SSHException, OSError):
            line.close()
            return None

    def ask(self, request: int, payload: bytes, expected: int) -> Message:
        """Send a request and wait for its answer.

        Raises:
            SSHException: the agent refuses, or its answer is malformed.
            OSError: the agent is gone, or does not answer in time.
        """
        self._line.sendall(struct.pack(">IB", len(payload) + 1, request) + payload)
        size, kind = struct.unpack(">IB", self._receive(5))
        if kind != expected or not 0 < size <= _MOST_ANSWER:
            raise SSHException("the agent refuses")
        return Message(self._receive(size - 1))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._line.recv(size - len(data))
            if not piece:
                raise SSHException("the agent closed the connection")
            data += piece
        return data

    def close(self) -> None:
        """Close the connection."""
        self._line.close()
