"""Checks host keys by ``known_hosts``, and logs in with the keys of the user, for `connector`.

paramiko's reader of known_hosts is not used. It fails on ``@revoked`` and ``@cert-authority``, rewrites the
file to add a line, and does not report which line refuses a key. Lines with ``@cert-authority`` are skipped,
because paramiko does not support host certificates.

A login offers keys in the order of ``ssh``: keys of the ssh-agent that the configuration names, other keys of
the ssh-agent, key files. There is no login by password.
"""

from __future__ import annotations

import base64
import fcntl
import fnmatch
import os
import shlex
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from paramiko import HostKeys, PKey, SSHException, Transport
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType

from launcher.backends.connections import with_tilde
from launcher.backends.ssh.options import SSH_PORT, HostOptions, SshError, reason_of
from launcher.common.record import Record
from launcher.common.trusted_io import connect_unix, read_at_most, read_regular

#: The signature algorithms of a key type that has several.
_SIGNATURE_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
#: The largest size of a file of known hosts. The file of a site may list many hosts.
_MAX_KNOWN_HOSTS_BYTES = 1 << 26
#: The permission bits that a private key file must not have.
_OTHER_USERS_BITS = 0o077


class Entry(Record):
    """A line of a known_hosts file."""

    file: str
    line: int
    revoked: bool
    #: Names and patterns, or one hashed name.
    names: tuple[str, ...]
    kind: str
    key: bytes


class KnownHosts:
    """The known_hosts files of a launch, each read once. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, list[Entry]] = {}
        #: A message for each key that was added.
        self.added: list[str] = []

    def algorithms(self, options: HostOptions, supported: tuple[str, ...]) -> tuple[str, ...]:
        """Return the supported host key algorithms in order of preference.

        Those of the keys that are known for the host come first, so that the server shows such a key.
        """
        kinds = [entry.kind for entry in self._about(options) if not entry.revoked]
        known = [
            name for kind in kinds for name in _SIGNATURE_ALGORITHMS.get(kind, (kind,)) if name in supported
        ]
        return tuple(dict.fromkeys([*known, *supported]))

    def check(self, options: HostOptions, key: PKey, accept_new: bool) -> None:
        """Check the key that a host shows, and add the key of an unknown host if ``accept_new``.

        Raises:
            SshError: The key is revoked or unknown, or another key of the host is known.
        """
        if _is_known(self._about(options), key, options):
            return
        if (accept_new or options.accept_new) and options.known_hosts:
            self._add(options, key)
            return
        port = ["-p", str(options.port)] if options.port != SSH_PORT else []
        command = ["ssh", "-o", "StrictHostKeyChecking=accept-new", *port, options.name, "true"]
        raise SshError(
            f"the host key of {options.place} is not known ({_shown(key)}); if that is its key, accept it "
            f"with: launch --accept-new-host-keys ..., or: {shlex.join(command)}"
        )

    def _add(self, options: HostOptions, key: PKey) -> None:
        """Append a line to the known_hosts file, unless another launch has added the key.

        Raises:
            SshError: The file cannot be written.
        """
        path, name = options.known_hosts[0], _known_name(options)
        try:
            os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with self._lock, open(fd, "rb+", 0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                text = read_at_most(file, _MAX_KNOWN_HOSTS_BYTES)
                if _is_known([entry for entry in _parse(path, text) if _matches(entry, name)], key, options):
                    return
                written = HostKeys.hash_host(name) if options.hash_known_hosts else name
                line = f"{written} {key.get_name()} {key.get_base64()}\n".encode()
                file.write(line if not text or text.endswith(b"\n") else b"\n" + line)
                self._files.pop(path, None)
                self.added.append(f"{name}: added its host key {_shown(key)} to {with_tilde(path)}")
        except OSError as error:
            raise SshError(
                f"its host key cannot be added to {with_tilde(path)}: {reason_of(error)}"
            ) from error

    def _about(self, options: HostOptions) -> list[Entry]:
        """Return the known lines about a host, reading each file when it is first needed."""
        name = _known_name(options)
        entries: list[Entry] = []
        with self._lock:
            for path in (*options.known_hosts, *options.system_known_hosts):
                if path not in self._files:
                    self._files[path] = []
                    with suppress(OSError):  # A file that cannot be read counts as empty.
                        self._files[path] = list(_parse(path, read_regular(path, _MAX_KNOWN_HOSTS_BYTES)))
                entries += self._files[path]
        return [entry for entry in entries if _matches(entry, name)]


def _is_known(entries: Sequence[Entry], key: PKey, options: HostOptions) -> bool:
    """Return whether a key is among the known keys of a host. False if no key of the host is known.

    Raises:
        SshError: The key is revoked, or only other keys of the host are known.
    """
    blob = key.asbytes()
    for entry in entries:
        if entry.revoked and entry.key == blob:
            where = f"{with_tilde(entry.file)}:{entry.line}"
            raise SshError(
                f"the host key of {options.place} is revoked by {where} ({_shown(key)}): do not trust it"
            )
    valid = [entry for entry in entries if not entry.revoked]
    if not valid or any(entry.key == blob for entry in valid):
        return bool(valid)
    entry = next((entry for entry in valid if entry.kind == key.get_name()), valid[0])
    remove = shlex.join(["ssh-keygen", "-f", entry.file, "-R", _known_name(options)])
    raise SshError(
        f"the host key of {options.place} has changed: it shows {_shown(key)}, "
        f"{with_tilde(entry.file)}:{entry.line} has another {entry.kind} key. "
        "Another machine may answer in its place; if you know that the host was reinstalled, "
        f"remove the old key with: {remove}"
    )


def _known_name(options: HostOptions) -> str:
    """Return the name of a host in known_hosts: ``node3``, ``[node3]:2222``, or its HostKeyAlias."""
    address = options.address.lower()
    return options.host_key_alias or (address if options.port == SSH_PORT else f"[{address}]:{options.port}")


def _shown(key: PKey) -> str:
    """Return the type and the fingerprint of a key, for messages."""
    return f"{key.get_name()} {key.fingerprint}"


def _parse(path: str, text: bytes) -> Iterator[Entry]:
    """Yield the lines of a known_hosts file that contain a key, valid or revoked."""
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#") and marker in ("", "@revoked"):
            names, kind, encoded = fields[:3]
            try:
                key = base64.b64decode(encoded + "==")
            except ValueError:  # A wrong line is ignored like a comment.
                continue
            patterns = tuple(names.split(","))
            yield Entry(path, line=number, revoked=bool(marker), names=patterns, kind=kind, key=key)


def _matches(entry: Entry, name: str) -> bool:
    """Return whether a line is about a host. A negated pattern excludes the host."""

    def matches(pattern: str) -> bool:
        if not pattern.startswith("|1|"):
            return fnmatch.fnmatchcase(name, pattern.lower().replace("[", "[[]"))
        try:
            return HostKeys.hash_host(name, pattern) == pattern
        except (ValueError, AssertionError):  # The pattern is not a valid hash.
            return False

    excluded = any(matches(pattern[1:]) for pattern in entry.names if pattern.startswith("!"))
    return not excluded and any(map(matches, entry.names))


# ---------------------------------------------------------------------- the user's keys


class KeyFile(Record):
    """A key file: its key, or else why the key cannot be used, and advice."""

    path: str
    key: PKey | None = None
    problem: str = ""
    advice: str = ""


def load_key(path: str) -> KeyFile | None:
    """Read a key file. None if the file does not exist."""
    if not os.path.exists(path):
        return None
    try:
        status = os.stat(path)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == os.getuid() and mode & _OTHER_USERS_BITS:
            problem = f"is ignored, as ssh does: its permissions {mode:04o} are too open"
            advice = f"make it private with: chmod 600 {with_tilde(path)}"
            return KeyFile(path, problem=problem, advice=advice)
        return KeyFile(path, PKey.from_path(path))
    except TypeError:  # The package cryptography raises this if a passphrase is missing.
        advice = f"unlock it with: ssh-add {with_tilde(path)}"
        return KeyFile(path, problem="is protected by a passphrase", advice=advice)
    except OSError as error:
        return KeyFile(path, problem=f"cannot be read ({reason_of(error)})")
    except (ValueError, SSHException, UnknownKeyType) as error:
        return KeyFile(path, problem=f"is not a key that can be used ({type(error).__name__})")


class SshAgent(AgentSSH):
    """The ssh-agent at the other end of a socket, with its keys.

    `paramiko.Agent` connects only to the socket in ``SSH_AUTH_SOCK``. If that variable were changed for a
    moment, programs that other threads start just then would get the wrong one.

    Raises:
        SSHException, OSError: The ssh-agent does not answer.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._connect(sock)  # type: ignore[attr-defined]  # the stubs of paramiko lack it

    def close(self) -> None:
        """Close the socket."""
        self._close()  # type: ignore[attr-defined]


def connect_agent(path: str, seconds: float) -> SshAgent | None:
    """Connect to the ssh-agent that listens on a socket.

    Args:
        path: The path of the socket. Empty if there is no ssh-agent.
        seconds: The time limit for the first answer.

    Returns:
        The connection. None if there is no ssh-agent, or it does not answer.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        connect_unix(sock, path, seconds)
        agent = SshAgent(sock)
    except (SSHException, OSError):
        sock.close()
        return None
    sock.settimeout(None)  # The ssh-agent may ask its user before it signs.
    return agent


def log_in(
    transport: Transport, options: HostOptions, load: Callable[[str], KeyFile | None], seconds: float
) -> None:
    """Log in to a host: offer the keys one after the other until one is accepted.

    Args:
        transport: The connected transport, whose host key was checked.
        options: The options of the host.
        load: `load_key`, perhaps with a cache.
        seconds: The time limit for each answer.

    Raises:
        SshError: Every key was refused, or the server did not answer.
    """
    files = [file for path in options.identity_files if (file := load(path))]
    tried: list[str] = []
    agent = connect_agent(options.agent, seconds)
    try:
        for label, key in _candidates(agent.get_keys() if agent else (), files, options.identities_only):
            tried.append(label)
            if _is_accepted(transport, options, key, tried, seconds):
                return
    finally:
        if agent is not None:
            agent.close()
    unusable = [file for file in files if file.key is None]
    keys = f"tried: {', '.join(tried)}" if tried else "there was no key to offer"
    keys += "".join(f"; {with_tilde(file.path)} {file.problem}" for file in unusable)
    advice = [file.advice for file in unusable if file.advice]
    advice.append("is that the right user, and is the key in its ~/.ssh/authorized_keys there?")
    raise SshError(f"{options.place} refused the login as {options.user} ({keys}); {advice[0]}")


def _candidates(
    in_agent: Sequence[AgentKey], files: Sequence[KeyFile], only_named: bool
) -> Iterator[tuple[str, PKey]]:
    """Yield the keys to offer, each once, with their names for messages.

    Args:
        in_agent: The keys of the ssh-agent.
        files: The key files.
        only_named: Whether keys that only the ssh-agent knows are left out, as by IdentitiesOnly.
    """
    usable = {file.key.asbytes(): (file.path, file.key) for file in files if file.key is not None}
    named = {*usable, *(_public_part(file.path) for file in files)}
    held = {key.asbytes(): key for key in in_agent}
    for blob, agent_key in sorted(held.items(), key=lambda item: item[0] not in named):
        if blob in named or not only_named:
            yield f"{agent_key.get_name()} {agent_key.comment}".strip() + " from the agent", agent_key
    for blob, (path, key) in usable.items():
        if blob not in held:
            yield with_tilde(path), key


def _public_part(path: str) -> bytes:
    """Return the public key in the ``.pub`` file of a key file. Empty if there is none."""
    try:
        return base64.b64decode(read_regular(f"{path}.pub").split()[1])
    except (OSError, ValueError, IndexError):
        return b""


def _is_accepted(
    transport: Transport, options: HostOptions, key: PKey, tried: list[str], seconds: float
) -> bool:
    """Return whether the host accepts a login with this key, which is the last one in ``tried``.

    Raises:
        SshError: The server does not answer, closed the connection, or wants something other than keys.
    """
    login = f"a login as {options.user}"
    began = time.monotonic()
    try:
        missing = transport.auth_publickey(options.user, key)
        if not missing:
            return True
        text = f"accepts the key {tried[-1]} for {login} and asks for {' or '.join(missing)} as well"
    except BadAuthenticationType as error:
        text = f"accepts no keys for {login}, only {' or '.join(error.allowed_types)}"
    except (SSHException, EOFError, OSError) as error:
        if time.monotonic() - began >= seconds:
            raise SshError(f"{options.place} gave no answer to {login} for {seconds:g}s", True) from error
        if not transport.is_active():
            raise SshError(
                f"{options.place} closed the connection during {login}, after {len(tried)} keys "
                f"({', '.join(tried)}); if that is too many, name the right one with IdentityFile and "
                "IdentitiesOnly in ~/.ssh/config"
            ) from error
        if not isinstance(error, AuthenticationException):  # The ssh-agent does not sign.
            tried[-1] += f" ({error})"
        return False
    raise SshError(f"{options.place} {text}, which launch does not support")
