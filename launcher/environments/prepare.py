"""Prepares hosts side by side: asks each what it has, decides what it needs, and lets it install that."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from types import SimpleNamespace

from launcher.environments.remote import masked
from launcher.environments.requirements import Requirements
from launcher.environments.resolving import Resolver, Unresolved, hash_of
from launcher.errors import LaunchError, TransportError
from launcher.job import Host
from launcher.record import Record
from launcher.text import counted, host_text, listed
from launcher.transports.base import for_each
from launcher.transports.dialog import Dialog, read
from launcher.transports.machines import Programs, is_here
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.hosts import SshConnections
from launcher.transports.ssh.options import reason_of

_ENTRY = "launcher.environments.remote:main"
#: Seconds that a host may say nothing, and may need to take a piece of a file.
_DEAD, _PIECE = 300.0, 120.0
#: Lines that a host may send: about one comes each second.
_MOST_LINES = 20_000


class Settings(Record):
    """What is done on the hosts."""

    #: Of the environment.
    name: str
    #: The packages; none to remove environments.
    wanted: Requirements
    #: Find the newest versions of the packages, even if earlier ones are known.
    upgrade: bool
    #: Make environments; else only compare.
    makes: bool
    #: Send wheels to all hosts.
    offline: bool
    #: Remove environments that were not used for so many days; 0: do not.
    days: int


class Look(Record):
    """What a host says about the environment of a name, and itself; or what it does until then."""

    #: Of Python, TensorFlow and the GPU driver: the version; empty: there is none.
    python: str = ""
    tensorflow: str = ""
    driver: str = ""
    #: ``2.1G``
    size: str = ""
    #: A host answers ``ready``, ``missing``, or ``changed`` if something else has changed or damaged it.
    #: `prepare` adds ``other packages`` and ``failed: ...``. Empty: the host has not answered yet.
    state: str = ""
    hash: str = ""
    packages: tuple[str, ...] = ()
    #: Of wheels: ``x86_64-manylinux_2_36``.
    platform: str = ""
    #: Python -> its path; empty if the environment is ready, or no new one is made.
    pythons: Mapping[str, str] = {}
    #: What the host does, for the user, and the folder where it waits for wheels.
    stage: str = ""
    wheels: str = ""


class Preparer:
    """Prepares, compares or cleans hosts, each in a thread. Prints a line for each stage of a host.

    Args:
        settings: what is done.
        hosts: where.
        ssh: how they are reached.
        notice: prints a line.
    """

    def __init__(
        self, settings: Settings, hosts: Sequence[Host], ssh: SshSettings, notice: Callable[[str], None]
    ) -> None:
        self._settings, self._ssh, self._notice = settings, ssh, notice
        self._hosts = {host.name: host for host in hosts}
        self._connections = SshConnections((host for host in hosts if not is_here(host)), ssh, notice)
        self._programs = Programs(filter(is_here, hosts), self._connections)
        self._stages, self._lock = dict.fromkeys(self._hosts, ""), threading.Lock()

    def prepare(self) -> dict[str, Look]:
        """Prepare, compare or clean all hosts.

        Returns:
            What each host has at the end, in the order of the hosts.

        Raises:
            SystemExit: Ctrl-C or SIGTERM. When this process has ended, the hosts remove what they began.
        """
        temporary = tempfile.TemporaryDirectory(prefix="tf-launcher-", ignore_cleanup_errors=True)
        with temporary as folder, self._connections as connections:
            self._resolver = Resolver(self._settings.wanted, self._settings.upgrade, folder)
            self._failed = connections.connect()
            try:
                fanout = self._ssh.fanout
                return for_each(self._hosts, self._run, self._tell, self._doing, fanout, growth=1)[0]
            finally:
                self._notice = lambda _: None

    def _doing(self) -> str:
        """What the hosts do that have begun and are not done."""
        return listed(sorted(filter(None, set(self._stages.values()))), 3)

    def _tell(self, text: str) -> None:
        """Print a line, after the number of hosts that are done."""
        self._notice(host_text(masked(f"[{len(self._hosts) - len(self._stages)}/{len(self._hosts)}] {text}")))

    def _begin(self, host: Host, stage: str, done: bool = False) -> None:
        """Note, and print, that a host has begun a stage, or is done."""
        with self._lock:
            old, self._stages[host.name] = self._stages[host.name], stage
            if done:
                del self._stages[host.name]
            if stage != old:
                self._tell(f"{host.name}: {stage}")

    def _run(self, name: str) -> Look:
        """Prepare, compare or clean one host.

        Returns:
            What it has at the end; its state has the reason if that failed.
        """
        look, host, settings = Look(), self._hosts[name], self._settings
        known = self._resolver.known if settings.makes else None
        asked = {"name": settings.name, "python": host.python or "", "days": settings.days, "known": known}
        try:
            if name in self._failed:
                raise TransportError(self._failed[name])
            self._begin(host, "asking what it has")
            with closing(self._programs.run(name, _ENTRY, asked)) as program:
                dialog = Dialog(program)
                look = self._answer(host, dialog)
                look = self._compare(host, dialog, look)
        except (LaunchError, OSError) as error:
            text = str(error).removeprefix(f"{name}: ").removeprefix("the program there failed: ")
            look = look._replace(state=masked(f"failed: {text}"))
        self._begin(host, look.state, done=True)
        return look

    def _compare(self, host: Host, dialog: Dialog, look: Look) -> Look:
        """Compare what a host has with what is wanted, and prepare it."""
        ready, makes = look.state == "ready", self._settings.makes
        known = ready and look.hash in self._resolver.known
        if known or self._settings.days or not (ready or makes):
            return look
        python, versions = self._choose(host, look)
        if ready and look.hash == hash_of(versions):
            return look
        if not makes:
            return look._replace(state="other packages")
        installing = f"installing {counted(len(versions.splitlines()) - 2, 'package')}"
        self._begin(host, installing)
        options = "--no-index" if self._settings.offline else self._settings.wanted.options
        request = {
            "hash": hash_of(versions), "version": python, "path": look.pythons[python],
            "packages": versions, "options": options,
        }  # fmt: skip
        dialog.send(request, _DEAD)
        answer = self._answer(host, dialog)
        if answer.wheels:
            self._begin(host, "downloading wheels here")
            folder = self._resolver.download(python, look.platform, versions)
            dialog.send(folder if is_here(host) else self._send(host, folder, answer.wheels), _DEAD)
            self._begin(host, installing)
            answer = self._answer(host, dialog)
        return answer

    def _choose(self, host: Host, look: Look) -> tuple[str, str]:
        """The newest Python of a host for which all packages have versions, and these."""
        faults = []
        for python in look.pythons if self._settings.makes else [look.python]:
            self._begin(host, f"finding versions for Python {python}")
            try:
                return python, self._resolver.resolve(python, look.platform)
            except Unresolved as error:
                faults.append(f"Python {python}: {error}")
        missing = "no usable Python; expected one with ensurepip (Debian: python3-venv), or uv"
        raise TransportError("; ".join(faults) or missing)

    def _answer(self, host: Host, dialog: Dialog) -> Look:
        """What a host has, or that it waits for wheels, after it has done what it was asked for.

        Raises:
            LaunchError: the host can't do it, or the connection broke.
        """
        for _ in range(_MOST_LINES):
            look = read(Look, dialog.receive(_DEAD))
            if look.stage:
                self._begin(host, look.stage)
            if look.state or look.wheels:
                return look
        raise TransportError(f"the program there sent {_MOST_LINES} lines")

    def _send(self, host: Host, folder: str, there: str) -> str:
        """Copy wheels to a folder of a host, by fabric over the connection of launch, and return it.

        By itself fabric accepts any host key and logs in with any key.
        """
        from fabric import Config, Connection  # with paramiko: imported only if needed
        from paramiko import SSHConfig, SSHException

        names = os.listdir(folder)
        self._begin(host, f"sending {counted(len(names), 'wheel')}")
        connection = self._connections.connection(host.name)
        transport = connection.transport
        sender = Connection(host.name, config=Config(ssh_config=SSHConfig(), lazy=True))
        sender.transport = transport
        sender.client = SimpleNamespace(open_sftp=transport.open_sftp_client)
        try:
            sender.sftp().get_channel().settimeout(_PIECE)
            for name in names:
                sender.put(f"{folder}/{name}", f"{there}/{name}")
        except (SSHException, EOFError, OSError) as error:
            if not connection.alive:
                raise TransportError(connection.why_broken()) from error
            raise TransportError(f"wheels can't be sent: {reason_of(error)}") from error
        return there
