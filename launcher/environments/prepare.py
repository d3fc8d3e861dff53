"""Prepares hosts side by side: each says what it needs, and gets versions and wheels."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from types import SimpleNamespace

from launcher.backends.connections import for_each
from launcher.backends.fleet import Programs
from launcher.backends.here import is_here
from launcher.backends.json_client import JsonClient, read
from launcher.backends.ssh.connections import SshConnections
from launcher.backends.ssh.options import reason_of
from launcher.common.errors import LaunchError, TransportError
from launcher.common.record import Record
from launcher.common.text import join_names, plural
from launcher.environments.resolving import Resolver
from launcher.job import Host

#: Seconds that a host may say nothing, and may need to take a piece of a file.
_SILENCE_SECONDS = 300.0
_SEND_TIMEOUT_SECONDS = 120.0
#: Lines that a host may send: about one comes each second.
_MAX_LINES = 20_000


class EnvironmentStatus(Record):
    """What a host says at the end about itself and an environment; before that, what it does or needs."""

    #: Of Python, TensorFlow and the GPU driver: the version; empty: there is none.
    python: str = ""
    tensorflow: str = ""
    driver: str = ""
    #: ``2.1G``
    size: str = ""
    #: A host answers ``ready``, ``missing``, ``other packages``, or ``changed`` if something else has changed
    #: or damaged it; or ``clean``. `prepare` adds ``failed: ...``. Empty: the host has not answered yet.
    state: str = ""
    #: What the host does, for the user.
    stage: str = ""
    #: It asks for versions for its Python and this platform, ``x86_64-manylinux_2_36``; or for the wheels of
    #: them in this folder.
    platform: str = ""
    wheels: str = ""


class Preparer:
    """Prepares, compares or cleans hosts, each in a thread. Prints a line for each stage of a host.

    Args:
        hosts: where.
        asked: what is done there: arguments of `launcher.environments.remote.main`.
        resolver: finds versions and wheels for them.
    """

    def __init__(self, hosts: Sequence[Host], asked: Mapping[str, object], resolver: Resolver) -> None:
        self._asked, self._resolver = asked, resolver
        self._hosts = {host.name: host for host in hosts}
        self._stages, self._looks = (
            dict.fromkeys(self._hosts, "asking what it has"),
            dict[str, EnvironmentStatus](),
        )

    def prepare(
        self, programs: Programs, unreached: Mapping[str, str], fanout: int, notice: Callable[[str], None]
    ) -> dict[str, EnvironmentStatus]:
        """Prepare, compare or clean all hosts.

        Args:
            programs: runs programs there.
            unreached: host -> why it can't be reached.
            fanout: how many hosts at the same time.
            notice: prints a line.

        Returns:
            What each host has at the end, in the order of the hosts.

        Raises:
            SystemExit: Ctrl-C or SIGTERM. When this process has ended, the hosts remove what they began.
        """
        self._programs, self._unreached, self._notice = programs, unreached, notice
        try:
            return for_each(self._hosts, self._run, notice, self._doing, fanout, growth=1)[0]
        finally:
            self._notice = lambda _: None

    def _doing(self) -> str:
        """What the hosts do that are not done."""
        return join_names(
            sorted({stage for name, stage in self._stages.items() if name not in self._looks}), 3
        )

    def _begin(self, name: str, stage: str) -> None:
        """Note, and print, that a host has begun a stage, or is done; and how many hosts are done."""
        if stage not in ("", self._stages[name]):
            self._stages[name] = stage
            self._notice(f"[{len(self._looks)}/{len(self._hosts)}] {name}: {stage}")

    def _run(self, name: str) -> EnvironmentStatus:
        """Prepare, compare or clean one host.

        Returns:
            What it has at the end; its state has the reason if that failed.
        """
        asked = {**self._asked, "known": self._resolver.known, "python": self._hosts[name].python or ""}
        try:
            if name in self._unreached:
                raise TransportError(self._unreached[name])
            with closing(self._programs.run(name, "launcher.environments.remote:main", asked)) as program:
                look = self._converse(name, JsonClient(program))
        except (LaunchError, OSError) as error:
            text = str(error).removeprefix(f"{name}: ").removeprefix("the program there failed: ")
            look = EnvironmentStatus(state=f"failed: {text}")
        self._looks[name] = look
        self._begin(name, look.state)
        return look

    def _converse(self, name: str, client: JsonClient) -> EnvironmentStatus:
        """Give a host what it asks for, until it says what it has.

        Raises:
            LaunchError: it can't do its work, or the connection broke.
        """
        for _ in range(_MAX_LINES):
            look = read(EnvironmentStatus, client.receive(_SILENCE_SECONDS))
            if look.state:
                return look
            self._begin(name, look.stage)
            if look.platform:
                client.send(self._answer(name, look), _SILENCE_SECONDS)
        raise TransportError(f"the program there sent {_MAX_LINES} lines")

    def _answer(self, name: str, look: EnvironmentStatus) -> object:
        """What a host asks for: where wheels are, or versions, see `launcher.environments.remote.choose`.

        Raises:
            LaunchError: no wheels can be downloaded, or the wheels can't be sent.
        """
        if look.wheels:
            self._begin(name, "downloading wheels here")
            folder = self._resolver.download(look.python, look.platform)
            return folder if is_here(self._hosts[name]) else self._send(name, folder, look.wheels)
        try:
            return self._resolver.resolve(look.python, look.platform)
        except LaunchError as error:
            return {"fault": str(error)}

    def _send(self, name: str, folder: str, there: str) -> str:
        """Copy wheels to a folder of a host, by fabric over the connection of launch, and return it.

        By itself fabric accepts any host key and logs in with any key.
        """
        from fabric import Config, Connection  # with paramiko: imported only if needed
        from paramiko import SSHException

        names, connections = os.listdir(folder), self._programs.others
        assert isinstance(connections, SshConnections)
        self._begin(name, f"sending {plural(len(names), 'wheel')}")
        transport = connections.connection(name).transport
        sender = Connection(name, config=Config(lazy=True))
        sender.transport = transport
        sender.client = SimpleNamespace(open_sftp=transport.open_sftp_client)
        try:
            sender.sftp().get_channel().settimeout(_SEND_TIMEOUT_SECONDS)
            for wheel in names:
                sender.put(f"{folder}/{wheel}", f"{there}/{wheel}")
        except (SSHException, EOFError, OSError) as error:
            connections.connection(name)  # raises an error of its own, if that broke
            raise TransportError(f"wheels can't be sent: {reason_of(error)}") from error
        return there
