"""Connecting to many: what goes wrong with one is said of that one, and keeps nobody else waiting."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from launcher.errors import HostsError, TransportError
from launcher.job import Host
from launcher.transport.ssh import fleet as fleet_module
from launcher.transport.ssh import tcp
from launcher.transport.ssh.dial import Dialer
from launcher.transport.ssh.errand import ChannelErrand
from launcher.transport.ssh.failures import Place
from launcher.transport.ssh.fleet import Fleet
from launcher.transport.ssh.progress import Progress
from launcher.transport.ssh.settings import SshSettings

FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture(autouse=True)
def of_nobody(tmp_path: str, monkeypatch: pytest.MonkeyPatch):
    """No configuration, keys or agent of whoever runs this."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def no_descriptor(*_: object) -> None:
    raise FULL


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever connects, to any host, gets one end of a pair."""
    ends: list[socket.socket] = []

    def connect(place: Place, *_: object) -> object:
        ours, other = socket.socketpair()
        ends.extend((ours, other))
        return ours

    monkeypatch.setattr(tcp, "connect", connect)
    yield
    assert all(end.fileno() < 0 for end in ends[::2]), "ours was left open"
    for end in ends:
        end.close()


@pytest.mark.parametrize("error", [FULL, ValueError("odd"), KeyError("odd")])
def test_a_thread_that_dials_survives_whatever_a_host_does_to_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Dialer, "dial", fail)
    monkeypatch.setattr(fleet_module, "_FIRST_WORD", 3600.0)
    told: list[str] = []
    hosts = [Host("a"), Host("b"), Host("c")]
    with Fleet(hosts, SshSettings(fanout=1), told.append) as fleet, pytest.raises(HostsError) as caught:
        fleet.connect()
    assert [str(fault)[:2] for fault in caught.value.faults] == ["a:", "b:", "c:"]
    assert all(type(error).__name__ in fault or "ulimit" in fault for fault in map(str, caught.value.faults))
    assert not told, "nobody was waited for"


@pytest.mark.usefixtures("listener")
def test_no_descriptor_for_a_connection_is_said_of_its_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("launcher.transport.ssh.queued.Wake", no_descriptor)
    dialer = Dialer(SshSettings())
    with pytest.raises(TransportError, match="^h: .*too many open files.*ulimit -n"):
        dialer.dial(Host("h"), Progress("h"), 1)
    dialer.close()


def test_no_descriptor_for_an_errand_is_said_of_its_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("launcher.transport.ssh.errand.Wake", no_descriptor)
    with pytest.raises(TransportError, match="^h: .*too many open files"):
        ChannelErrand("h", object(), "python3", b"", bytes)  # type: ignore[arg-type]


class Lines:
    """Stands for what is connected, one after the other; each takes until so many want it."""

    def __init__(self, wanted: Mapping[str, Wanted]) -> None:
        self.made: list[Lines] = []
        self._wanted = wanted

    def is_active(self) -> bool:
        """It is."""
        return True

    def dial(self, host: Host, *_: object, **__: object) -> Lines:
        """Another."""
        self._wanted[host.name].await_all()
        self.made.append(Lines({}))
        return self.made[-1]


class Wanted:
    """A lock that so many want at the same time."""

    def __init__(self, by: int) -> None:
        self._by = by
        self._lock = threading.Lock()
        self._came = threading.Semaphore(0)

    def __enter__(self) -> None:
        self._came.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def await_all(self) -> None:
        """Wait until all have come."""
        for _ in range(self._by):
            assert self._came.acquire(timeout=40)


def together(*calls: Callable[[], None]) -> list[BaseException]:
    """Call these at the same time; what they raised."""
    raised: list[BaseException] = []

    def call(what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001 - that is what is asked
            raised.append(error)

    threads = [threading.Thread(target=call, args=(it,)) for it in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_two_that_miss_a_host_at_the_same_time_get_the_same_new_connection(monkeypatch: pytest.MonkeyPatch):
    wanted = {"a": Wanted(by=2), "b": Wanted(by=1)}
    lines = Lines(wanted)
    monkeypatch.setattr(Dialer, "dial", lines.dial)
    fleet = Fleet([Host("a"), Host("b")], SshSettings(), print)
    monkeypatch.setattr(fleet, "_redialling", wanted)
    raised = together(lambda: fleet.redial("a"), lambda: fleet.redial("a"), lambda: fleet.redial("b"))
    assert not raised
    assert len(lines.made) == 2, "one for each host"
    assert fleet.is_alive("a") and fleet.is_alive("b")
    assert fleet.patience("a") == SshSettings().lease, "it is not away any more"


def test_commands_that_stand_for_connections_are_forgotten_once_they_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: str
):
    config = os.path.join(tmp_path, ".ssh")
    os.mkdir(config)
    with open(os.path.join(config, "config"), "w", encoding="ascii") as file:
        file.write("Host *\n  ProxyCommand true\n")
    dialer = Dialer(SshSettings(connect_timeout=30))
    made: list[tcp.Command] = []

    class Command(tcp.Command):
        def __init__(self, command: str) -> None:
            super().__init__(command)
            made.append(self)

    monkeypatch.setattr(tcp, "Command", Command)
    for _ in range(3):
        with pytest.raises(TransportError):
            dialer.dial(Host("h"), Progress("h"), 1)
        made[-1]._process.wait(40)  # it is over, and nobody has asked for it yet
    assert len(made) == 3
    assert dialer._commands == made[-1:]
    dialer.close()
