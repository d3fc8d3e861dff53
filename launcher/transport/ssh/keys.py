"""Proving who we are: with keys from files and from the agent, and never by asking somebody.

In the order of ``ssh``: keys of the agent that the configuration names, other keys of the agent, key files.
"""

from __future__ import annotations

import base64
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from paramiko import PKey, SSHException, Transport
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType

from launcher.transport.ssh.failures import HostFailure, Place
from launcher.transport.ssh.known_hosts import shorten

_DEFAULTS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
#: Permissions that a private key of ours must not give to anybody else.
_OTHERS = 0o077


class _Loaded(NamedTuple):
    """A key file: the key, or why there is none, and what to do about it."""

    path: str
    key: PKey | None
    problem: str = ""
    advice: str = ""


class _Candidate(NamedTuple):
    label: str
    key: PKey


class Keyring:
    """The key files of a launch, each read once however many hosts want it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[str, _Loaded] = {}

    def load(self, paths: Sequence[str]) -> list[_Loaded]:
        """Those of these files that are there."""
        with self._lock:
            for path in paths:
                if path not in self._loaded and os.path.exists(path):
                    self._loaded[path] = _load(path)
            return [self._loaded[path] for path in paths if path in self._loaded]


def _load(path: str) -> _Loaded:
    try:
        mode = _too_open(path)
        if mode:
            problem = f"is ignored, as ssh does: its permissions {mode:04o} are too open"
            return _Loaded(path, None, problem, f"make it private with: chmod 600 {shorten(path)}")
        return _Loaded(path, PKey.from_path(path))
    except TypeError:  # what cryptography raises for want of a passphrase
        return _Loaded(path, None, "is protected by a passphrase", f"unlock it with: ssh-add {shorten(path)}")
    except OSError as error:
        return _Loaded(path, None, f"can't be read ({(error.strerror or str(error)).lower()})")
    except (ValueError, SSHException, UnknownKeyType) as error:
        return _Loaded(path, None, f"is no key that can be used ({type(error).__name__})")


def _too_open(path: str) -> int:
    """The permissions of a key file of ours that others may read or write; 0: it is private, or not ours."""
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    return mode if status.st_uid == os.getuid() and mode & _OTHERS else 0


class Login:
    """Proves who we are to one host; what `paramiko.SSHClient.connect` takes for ``auth_strategy``.

    Args:
        place: for messages.
        user: who we want to be there.
        options: what ``ssh_config`` says about the host.
        keyring: where keys are loaded.
        seconds: the time for an answer of the host.
    """

    def __init__(
        self, place: Place, user: str, options: Mapping[str, Any], keyring: Keyring, seconds: float
    ) -> None:
        self._place = place
        self._user = user
        self._only_named = str(options.get("identitiesonly", "no")).lower() == "yes"
        self._options = options
        named = options.get("identityfile") or _DEFAULTS
        paths = [os.path.expanduser(path) for path in named if path.lower() != "none"]
        self._files = keyring.load([path.removesuffix(".pub") for path in paths])
        self._seconds = seconds
        self._tried: list[str] = []

    def authenticate(self, transport: Transport) -> None:
        """Try one key after another.

        Raises:
            HostFailure: none was taken, or there was no answer.
        """
        agent = _agent(self._options, self._seconds)
        try:
            for candidate in self._candidates(() if agent is None else agent.get_keys()):
                if self._is_taken(transport, candidate):
                    return
        finally:
            if agent is not None:
                agent.close()
        raise self._refused()

    def _candidates(self, in_agent: Sequence[PKey]) -> Iterator[_Candidate]:
        usable = {loaded.key.asbytes(): loaded for loaded in self._files if loaded.key is not None}
        held = {key.asbytes(): key for key in in_agent}
        named = {blob for blob in held if blob in usable} | {
            blob for loaded in self._files if (blob := _public_part(loaded.path)) in held
        }
        for blob, key in held.items():
            if blob in named:
                yield _Candidate(f"{_kind(key)} from the agent", key)
        for blob, key in held.items():
            if blob not in named and not self._only_named:
                yield _Candidate(f"{_kind(key)} from the agent", key)
        for blob, loaded in usable.items():
            if blob not in held and loaded.key is not None:
                yield _Candidate(shorten(loaded.path), loaded.key)

    def _is_taken(self, transport: Transport, candidate: _Candidate) -> bool:
        began = time.monotonic()
        try:
            wanted = transport.auth_publickey(self._user, candidate.key)
        except BadAuthenticationType as error:
            raise self._no_keys_taken(error.allowed_types) from error
        except (SSHException, EOFError, OSError) as error:
            if time.monotonic() - began >= self._seconds:
                raise self._failure(
                    f"gave no answer to a login as {self._user} for {self._seconds:g} s", True
                ) from error
            self._tried.append(candidate.label)
            if not transport.is_active():
                raise self._closed() from error
            if not isinstance(error, AuthenticationException):  # e.g. an agent that will not sign
                self._tried[-1] += f" ({error})"
            return False
        if wanted:
            raise self._failure(
                f"takes the key {candidate.label} of {self._user}, and wants {' or '.join(wanted)} as well, "
                "which a launch can't give"
            )
        return True

    def _failure(self, text: str, may_pass: bool = False) -> HostFailure:
        return HostFailure(f"{self._place.where} {text}", may_pass)

    def _refused(self) -> HostFailure:
        tried = f"tried: {', '.join(self._tried)}" if self._tried else "there was no key to offer"
        return self._failure(
            f"refused the login as {self._user} ({tried}{self._left_out()}); {self._advice()}"
        )

    def _closed(self) -> HostFailure:
        return self._failure(
            f"closed the connection during the login as {self._user}, after {len(self._tried)} keys "
            f"({', '.join(self._tried)}); if that is too many, name the right one with IdentityFile and "
            "IdentitiesOnly in ~/.ssh/config"
        )

    def _no_keys_taken(self, allowed: Sequence[str]) -> HostFailure:
        return self._failure(
            f"takes no keys for a login as {self._user}, only {' or '.join(allowed)}, "
            "which a launch can't give"
        )

    def _left_out(self) -> str:
        problems = [
            f"{shorten(loaded.path)} {loaded.problem}" for loaded in self._files if loaded.key is None
        ]
        return "".join(f"; {problem}" for problem in problems)

    def _advice(self) -> str:
        for loaded in self._files:
            if loaded.advice:
                return loaded.advice
        return "is that the right user, and is the key in its ~/.ssh/authorized_keys there?"


class _Agent(AgentSSH):
    """The user's agent. (paramiko's own leaves a socket open when there is none, and waits for ever.)"""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(seconds)
        try:
            self._socket.connect(path)
            self._connect(self._socket)  # type: ignore[attr-defined]
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _agent(options: Mapping[str, Any], seconds: float) -> _Agent | None:
    """The agent that the configuration names, or the environment; ``None``: there is none."""
    named = str(options.get("identityagent", "SSH_AUTH_SOCK"))
    path = os.environ.get("SSH_AUTH_SOCK", "") if named == "SSH_AUTH_SOCK" else os.path.expanduser(named)
    if not path or path.lower() == "none":
        return None
    try:
        return _Agent(path, seconds)
    except (SSHException, OSError):  # as if there were none: key files may do
        return None


def _public_part(path: str) -> bytes:
    """The public key beside a key file, which may be locked; empty if there is none."""
    try:
        with open(f"{path}.pub", encoding="ascii") as file:
            fields = file.read().split()
        return base64.b64decode(fields[1])
    except (OSError, ValueError, IndexError):
        return b""


def _kind(key: PKey) -> str:
    comment = getattr(key, "comment", "")
    return f"{key.get_name()}{f' {comment}' if comment else ''}"
