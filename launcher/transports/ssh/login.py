"""Logging in with public keys: of the agent and from files. Nothing asks for a password.

In the order of ``ssh``: keys of the agent that the configuration names, other keys of the agent, key files.
paramiko's client of the agent is not used: it takes only that of ``SSH_AUTH_SOCK``, and waits without limit.
"""

from __future__ import annotations

import base64
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paramiko import Message, PKey, SSHException, Transport
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType

from launcher.transports.ssh.failures import HostFailure
from launcher.transports.ssh.options import HostOptions, shorten

#: Permissions that a private key must not give to other users.
_OTHERS = 0o077
#: Numbers of the agent's protocol.
_REQUEST_IDENTITIES, _IDENTITIES, _SIGN_REQUEST, _SIGNATURE = 11, 12, 13, 14
_SIGN_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}
#: Bytes of an answer of the agent, at most.
_MOST_ANSWER = 1 << 20


class KeyFile(NamedTuple):
    """A key file: the key, or why it can't be used and what to do about it."""

    path: str
    key: PKey | None
    problem: str = ""
    advice: str = ""


class KeyFiles:
    """The key files of a launch, each read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[str, KeyFile] = {}

    def load(self, paths: Sequence[str]) -> list[KeyFile]:
        """Those of these files that exist."""
        with self._lock:
            for path in paths:
                if path not in self._loaded and os.path.exists(path):
                    self._loaded[path] = _load(path)
            return [self._loaded[path] for path in paths if path in self._loaded]


def _load(path: str) -> KeyFile:
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


def log_in(transport: Transport, options: HostOptions, files: KeyFiles, seconds: float) -> None:
    """Try one key after another.

    Args:
        transport: connected, its host key checked.
        options: of the host.
        files: loads the key files.
        seconds: the time for each answer.

    Raises:
        HostFailure: every key was refused, or there was no answer.
    """
    key_files = files.load(options.identity_files)
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
