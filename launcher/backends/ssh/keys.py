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


class KnownHostLine(Record):
    """A line of a known_hosts file that contains a key."""

    file: str
    number: int
    revoked: bool
    #: Names and patterns, or one hashed name.
    names: tuple[str, ...]
    kind: str
    key: bytes


class KnownHosts:
    """The known_hosts files of a launch, each read once. Any thread may use it."""

    def __init__(self) -> None:
        """Start without files. Each is read when a host needs it."""
        #: Guards the lines, and is held while a line is added.
        self._lock = threading.Lock()
        #: The lines of each file that was read, by its path.
        self._files: dict[str, list[KnownHostLine]] = {}
        #: A message for each key that was added.
        self.added: list[str] = []

    def algorithms(self, options: HostOptions, supported: tuple[str, ...]) -> tuple[str, ...]:
        """Return the supported host key algorithms in order of preference.

        Those of the keys that are known for the host come first, so that the server shows such a key.

        Args:
            options: The options of the host.
            supported: The algorithms that paramiko supports, in its order of preference.
        """
        preferred: list[str] = []
        for line in self._lines_about(options):
            if not line.revoked:
                preferred += _SIGNATURE_ALGORITHMS.get(line.kind, (line.kind,))
        known = [name for name in preferred if name in supported]
        return tuple(dict.fromkeys([*known, *supported]))

    def check(self, options: HostOptions, key: PKey, accept_new: bool) -> None:
        """Check the key that a host shows, and add the key of an unknown host if ``accept_new``.

        Raises:
            SshError: The key is revoked or unknown, or another key of the host is known.
        """
        if _is_known(self._lines_about(options), key, options):
            return
        # Without a file of known hosts (``UserKnownHostsFile none``) no key can be added.
        if (accept_new or options.accept_new) and options.known_hosts:
            self._add(options, key)
            return
        port = ["-p", str(options.port)] if options.port != SSH_PORT else []
        command = ["ssh", "-o", "StrictHostKeyChecking=accept-new", *port, options.name, "true"]
        raise SshError(
            f"the host key of {options.place} is not known ({_key_text(key)}); if that is its key, accept it "
            f"with: launch --accept-new-host-keys ..., or: {shlex.join(command)}"
        )

    def _add(self, options: HostOptions, key: PKey) -> None:
        """Append a line with a key to the known_hosts file, unless another launch has added it meanwhile.

        Raises:
            SshError: The file cannot be written.
        """
        path, name = options.known_hosts[0], _known_name(options)  # ssh also adds keys to the first file.
        try:
            os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with self._lock, open(fd, "rb+", 0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                text = read_at_most(file, _MAX_KNOWN_HOSTS_BYTES)
                lines = [line for line in _parse_lines(path, text) if _is_about(line, name)]
                if _is_known(lines, key, options):
                    return
                name_field = HostKeys.hash_host(name) if options.hash_known_hosts else name
                new_line = f"{name_field} {key.get_name()} {key.get_base64()}\n".encode()
                file.write(new_line if not text or text.endswith(b"\n") else b"\n" + new_line)
                self._files.pop(path, None)  # It is read again when it is needed.
                self.added.append(f"{name}: added its host key {_key_text(key)} to {with_tilde(path)}")
        except OSError as error:
            problem = f"its host key cannot be added to {with_tilde(path)}: {reason_of(error)}"
            raise SshError(problem) from error

    def _lines_about(self, options: HostOptions) -> list[KnownHostLine]:
        """Return the known lines about a host, reading each file when it is first needed."""
        name = _known_name(options)
        lines: list[KnownHostLine] = []
        with self._lock:
            for path in (*options.known_hosts, *options.system_known_hosts):
                if path not in self._files:
                    self._files[path] = []
                    with suppress(OSError):  # A file that cannot be read counts as empty.
                        text = read_regular(path, _MAX_KNOWN_HOSTS_BYTES)
                        self._files[path] = list(_parse_lines(path, text))
                lines += self._files[path]
        return [line for line in lines if _is_about(line, name)]


def _is_known(lines: Sequence[KnownHostLine], key: PKey, options: HostOptions) -> bool:
    """Return whether a key is among the known keys of a host. False if no key of the host is known.

    Args:
        lines: The lines of known_hosts about the host.
        key: The key that the host shows.
        options: The options of the host, for messages.

    Raises:
        SshError: The key is revoked, or only other keys of the host are known.
    """
    blob = key.asbytes()
    for line in lines:
        if line.revoked and line.key == blob:
            place = f"{with_tilde(line.file)}:{line.number}"
            text = f"the host key of {options.place} is revoked by {place} ({_key_text(key)})"
            raise SshError(f"{text}: do not trust it")
    valid = [line for line in lines if not line.revoked]
    if not valid:
        return False
    if any(line.key == blob for line in valid):
        return True
    # A line with a key of the same type is the one that the user must remove.
    other = next((line for line in valid if line.kind == key.get_name()), valid[0])
    remove = shlex.join(["ssh-keygen", "-f", other.file, "-R", _known_name(options)])
    raise SshError(
        f"the host key of {options.place} has changed: it shows {_key_text(key)}, "
        f"{with_tilde(other.file)}:{other.number} has another {other.kind} key. "
        "Another machine may answer in its place; if you know that the host was reinstalled, "
        f"remove the old key with: {remove}"
    )


def _known_name(options: HostOptions) -> str:
    """Return the name of a host in known_hosts: ``node3``, ``[node3]:2222``, or its HostKeyAlias."""
    if options.host_key_alias:
        return options.host_key_alias
    address = options.address.lower()
    return address if options.port == SSH_PORT else f"[{address}]:{options.port}"


def _key_text(key: PKey) -> str:
    """Return the type and the fingerprint of a key, for messages."""
    return f"{key.get_name()} {key.fingerprint}"


def _parse_lines(path: str, text: bytes) -> Iterator[KnownHostLine]:
    """Yield the lines of a known_hosts file that contain a key, valid or revoked.

    Such a line consists of an optional marker, the names of hosts, the type of the key, and the key. All
    other lines are skipped: comments, wrong lines, and those with ``@cert-authority``.
    """
    for number, text_line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        fields = text_line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#") and marker in ("", "@revoked"):
            names, kind, encoded = fields[:3]
            try:
                key = base64.b64decode(encoded + "==")  # The padding may be missing. More of it does no harm.
            except ValueError:
                continue
            patterns, revoked = tuple(names.split(",")), bool(marker)
            yield KnownHostLine(path, number=number, revoked=revoked, names=patterns, kind=kind, key=key)


def _is_about(line: KnownHostLine, name: str) -> bool:
    """Return whether a line is about a host. A negated pattern excludes the host.

    Args:
        line: The line.
        name: The name of the host in known_hosts.
    """

    def matches(pattern: str) -> bool:
        """Return whether a pattern, without its ``!``, matches the host."""
        if not pattern.startswith("|1|"):  # The pattern is not a hashed name. In it, `[` matches only itself.
            return fnmatch.fnmatchcase(name, pattern.lower().replace("[", "[[]"))
        try:
            return HostKeys.hash_host(name, pattern) == pattern
        except (ValueError, AssertionError):  # The pattern is not a valid hash.
            return False

    excluded = any(matches(pattern[1:]) for pattern in line.names if pattern.startswith("!"))
    return not excluded and any(map(matches, line.names))


# ---------------------------------------------------------------------- the user's keys


class KeyFile(Record):
    """A key file: its key, or else why the key cannot be used, and advice."""

    path: str
    key: PKey | None = None
    problem: str = ""
    advice: str = ""


def load_key(path: str) -> KeyFile | None:
    """Read a key file, which contains a private key.

    Returns:
        The key, or why it cannot be used. None if the file does not exist.
    """
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

    Args:
        sock: A socket that is connected to the ssh-agent.

    Raises:
        SSHException, OSError: The ssh-agent does not answer.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Ask the ssh-agent at the other end of a connected socket for its keys."""
        super().__init__()
        # As paramiko's own subclass does, this asks the ssh-agent for its keys.
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
    files = [file for file in map(load, options.identity_files) if file is not None]
    tried: list[str] = []
    agent = connect_agent(options.agent, seconds)
    try:
        agent_keys = () if agent is None else agent.get_keys()
        for label, key in _candidates(agent_keys, files, options.identities_only):
            tried.append(label)
            if _is_accepted(transport, options, key, tried, seconds):
                return
    finally:
        if agent is not None:
            agent.close()
    unusable = [file for file in files if file.key is None]
    keys = f"tried: {', '.join(tried)}" if tried else "there was no key to offer"
    keys += "".join(f"; {with_tilde(file.path)} {file.problem}" for file in unusable)
    # Advice about a key that could not be offered helps more than a general question.
    advice = [file.advice for file in unusable if file.advice]
    advice.append("is that the right user, and is the key in its ~/.ssh/authorized_keys there?")
    raise SshError(f"{options.place} refused the login as {options.user} ({keys}); {advice[0]}")


def _candidates(
    agent_keys: Sequence[AgentKey], files: Sequence[KeyFile], only_named: bool
) -> Iterator[tuple[str, PKey]]:
    """Yield the keys to offer, each once, with their names for messages.

    The keys of the ssh-agent come first, and among them those that a key file names, too.

    Args:
        agent_keys: The keys of the ssh-agent.
        files: The key files.
        only_named: Whether keys that only the ssh-agent knows are left out, as by IdentitiesOnly.
    """
    usable_files = {file.key.asbytes(): (file.path, file.key) for file in files if file.key is not None}
    # The ssh-agent may hold the key of a file that is itself not usable, because it has a passphrase.
    in_files = {*usable_files, *(_public_part(file.path) for file in files)}
    in_agent = {key.asbytes(): key for key in agent_keys}
    named = [key for blob, key in in_agent.items() if blob in in_files]
    others = [key for blob, key in in_agent.items() if blob not in in_files]
    for agent_key in named if only_named else named + others:
        yield f"{agent_key.get_name()} {agent_key.comment}".strip() + " from the agent", agent_key
    for blob, (path, key) in usable_files.items():
        if blob not in in_agent:
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
    """Return whether the host accepts a login with this key.

    Args:
        transport: The connected transport.
        options: The options of the host.
        key: The key.
        tried: The names of the keys that were offered, for messages. The last one is that of this key. An
            error of the ssh-agent is added to it.
        seconds: The time limit that the transport has for an answer.

    Raises:
        SshError: The server does not answer, closed the connection, or wants something other than keys.
    """
    login = f"a login as {options.user}"
    started_at = time.monotonic()
    try:
        further_methods = transport.auth_publickey(options.user, key)
        if not further_methods:
            return True
        text = f"accepts the key {tried[-1]} for {login} and asks for {' or '.join(further_methods)} as well"
    except BadAuthenticationType as error:
        text = f"accepts no keys for {login}, only {' or '.join(error.allowed_types)}"
    except (SSHException, EOFError, OSError) as error:
        if time.monotonic() - started_at >= seconds:
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
