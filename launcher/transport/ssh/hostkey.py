"""Whether a host is the one it was: what is asked during the key exchange."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from paramiko import MissingHostKeyPolicy, PKey, SSHClient

from launcher.transport.ssh import known_hosts
from launcher.transport.ssh.failures import HostFailure, Place
from launcher.transport.ssh.known_hosts import KnownHosts, Standing, Verdict

#: Values of ``StrictHostKeyChecking`` that let new keys in. None of them lets a changed one in here.
_LENIENT = ("accept-new", "no", "off")
#: One kind of key can sign in several ways.
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class HostKey(MissingHostKeyPolicy):
    """Judges the key that a host shows. (paramiko asks it about every host, because it is told of none.)

    Args:
        known: the files.
        place: where the host is tried.
        name: how the user calls it, for the command that accepts its key.
        options: what ``ssh_config`` says about it.
        accept_new: whether a key of a host that is not known becomes its key.
        accepted: called with what is to be said when one did.
    """

    def __init__(
        self,
        known: KnownHosts,
        place: Place,
        name: str,
        options: Mapping[str, Any],
        accept_new: bool,
        accepted: Callable[[str], None],
    ) -> None:
        self._known = known
        self._place = place
        self._host = name
        self._name = options.get("hostkeyalias") or known_hosts.name_in_files(place.address, place.port)
        self._files = known_hosts.files_for(options)
        self._accept_new = accept_new or options.get("stricthostkeychecking", "").lower() in _LENIENT
        self._hashed = options.get("hashknownhosts", "").lower() == "yes"
        self._accepted = accepted

    def preferred(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        """The ways to sign that we take, those of keys that are known first: a host may have several."""
        known = [
            name
            for kind in self._known.kinds(self._name, self._files)
            for name in _SIGNATURES.get(kind, (kind,))
        ]
        first = tuple(name for name in dict.fromkeys(known) if name in kinds)
        return first + tuple(name for name in kinds if name not in first)

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        """Return if it is the host's key.

        Raises:
            HostFailure: it is not, or nobody knows.
        """
        kind, blob = key.get_name(), key.asbytes()
        verdict = self._known.judge(self._name, kind, blob, self._files)
        if verdict.standing is Standing.UNKNOWN and self._accept_new and self._files.user:
            verdict = self._add(kind, blob)
        if verdict.standing is not Standing.KNOWN:
            raise HostFailure(self._refusal(verdict, f"{kind} {known_hosts.fingerprint(blob)}"))

    def _add(self, kind: str, blob: bytes) -> Verdict:
        path = known_hosts.shorten(self._files.user[0])
        try:
            verdict = self._known.add(self._name, kind, blob, self._files, self._hashed)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise HostFailure(f"its host key can't be added to {path}: {why}") from error
        if verdict.standing is Standing.KNOWN:
            self._accepted(
                f"{self._name}: {kind} {known_hosts.fingerprint(blob)} is its key from now on ({path})"
            )
        return verdict

    def _refusal(self, verdict: Verdict, shown: str) -> str:
        entry, where = verdict.entry, self._place.where
        if entry is None:
            return (
                f"the host key of {where} is not known ({shown}); if that is its key, accept it with: "
                f"launch --accept-new-host-keys ..., or: {self._command()}"
            )
        if verdict.standing is Standing.REVOKED:
            return f"the host key of {where} was revoked by {entry.where} ({shown}): do not trust it"
        old = f"{entry.kind} {known_hosts.fingerprint(base64.b64decode(entry.key))}"
        remove = shlex.join(["ssh-keygen", "-f", entry.file, "-R", self._name])
        return (
            f"the host key of {where} has changed: it shows {shown}, {entry.where} says {old}. Somebody "
            f"may be listening in; if you know that it was installed anew, remove the old key with: {remove}"
        )

    def _command(self) -> str:
        port = ["-p", str(self._place.port)] if self._place.port != known_hosts.SSH_PORT else []
        return shlex.join(["ssh", "-o", "StrictHostKeyChecking=accept-new", *port, self._host, "true"])
