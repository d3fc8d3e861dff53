"""Connecting to real hosts: each way to fail has its own words, and nothing of it stays behind."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.backends.ssh.connections import SshConnections
from launcher.common.errors import TransportError
from launcher.common.events import Tell
from launcher.config.table import CONNECT_TIMEOUT, FANOUT
from launcher.job import Host
from launcher.messages import MessageQueue
from tests.seeing import soon
from tests.ssh.connecting import PATIENT, QUICK, Home, refusal, works
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab
from tests.told import Told

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server on this machine that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def talker() -> Iterator[Callable[[bytes], int]]:
    """The port of a server that sends this to one client, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve(text: bytes) -> None:
            with server.accept()[0] as connection:
                connection.sendall(text)

        def start(text: bytes) -> int:
            pool.submit(serve, text)
            port: int = server.getsockname()[1]
            return port

        yield start


@pytest.mark.promise("two jumps; all addresses of a host")
def test_all_addresses_of_a_host_are_tried(home: Home, hosts: list[LabHost], monkeypatch: pytest.MonkeyPatch):
    resolve = socket.getaddrinfo
    refused = resolve("127.0.0.1", 9, socket.AF_INET, socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words: [*refused, *resolve(*words)])
    assert works(Host(hosts[0].name)) == []


def test_a_server_that_starts_between_two_attempts(home: Home, hosts: list[LabHost]):
    hosts[0].stop_sshd()
    starting = threading.Timer(0.5, hosts[0].start_sshd)
    starting.start()
    works(Host(hosts[0].name), attempts=30)
    starting.join()


def test_a_host_that_is_cut_off(home: Home, hosts: list[LabHost]):
    hosts[0].cut()
    began = time.monotonic()
    message = refusal(Host(hosts[0].name), settings=QUICK)
    assert time.monotonic() - began < 30
    assert message.startswith(f"node1: no answer from {hosts[0].address}:22 within 1s; ")


def test_a_network_that_is_not_there(home: Home, lab: Lab):
    free = f"{lab.subnet}.200"  # after three seconds the kernel knows that no host on the cable has it
    assert refusal(Host(free)).startswith(f"{free}: no route to {free}:22; ")


def test_a_server_that_accepts_and_sends_nothing(home: Home, silent: int):
    message = refusal(Host("127.0.0.1", port=silent), settings=QUICK, attempts=2)
    assert message.startswith(f"127.0.0.1: 127.0.0.1:{silent} accepted the connection and sent nothing")
    assert message.endswith("(2 attempts)")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n" * 200, "is not an ssh server"),
        (b"", "closed the connection before its ssh server sent anything"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "closed the connection during the key exchange"),
    ],
)
def test_a_server_that_hangs_up(home: Home, talker: Callable[[bytes], int], sent: bytes, text: str):
    port = talker(sent)
    assert refusal(Host("127.0.0.1", port=port)).startswith(f"127.0.0.1: 127.0.0.1:{port} {text}")


def test_a_notice_names_the_slow_hosts(home: Home, hosts: list[LabHost], silent: int):
    slow = Host("127.0.0.1", port=silent)
    with Told() as told:
        refusal(Host(hosts[0].name), slow, settings=QUICK.with_values({CONNECT_TIMEOUT: 6.5}))
    step = "127.0.0.1: connecting over SSH"
    assert told.lines == [f"waiting for {step}", f"still waiting, after 6.0s, for {step}"]


def test_ctrl_c_ends_it_at_once(home: Home, hosts: list[LabHost], silent: int):
    class Interrupting(MessageQueue):
        def put(self, message: Tell) -> None:
            raise KeyboardInterrupt

    began = time.monotonic()
    many = [Host(f"127.0.0.{number}", port=silent) for number in range(1, 9)]
    with (
        pytest.raises(KeyboardInterrupt),
        Interrupting(),
        SshConnections([Host(hosts[0].name), *many], PATIENT.with_values({FANOUT: 4}), attempts=9) as fleet,
    ):
        fleet.connect()
    assert time.monotonic() - began < 25, "a silent one is waited for for 30 s"
    soon(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("ssh ")])


def test_ctrl_c_while_paramiko_is_imported_ends_a_proxy_command(
    home: Home, hosts: list[LabHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home.config(f"Host node1\n  ProxyCommand echo $$ > {tmp_path}/pid; exec sleep 600\n")
    imported, original = threading.Event(), SshConnections._get_connector

    def import_slowly(fleet: SshConnections) -> object:
        imported.wait(60)
        return original(fleet)

    monkeypatch.setattr(SshConnections, "_get_connector", import_slowly)
    fleet = SshConnections([Host(hosts[0].name)], PATIENT, attempts=1)
    pid = tmp_path / "pid"
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(fleet.connect)
        soon(lambda: pid.exists() and bool(pid.read_text()))
        fleet.close()
        assert not Path(f"/proc/{pid.read_text().strip()}").exists()
        imported.set()
        assert connecting.result(60) == {"node1": "connecting was stopped"}


def test_reconnecting_fails_with_the_same_message(home: Home, hosts: list[LabHost]):
    with SshConnections([Host(hosts[0].name)], PATIENT, attempts=1) as fleet:
        fleet.connect()
        hosts[0].stop_sshd()
        with pytest.raises(TransportError, match="node1: .* refused the connection"):
            fleet.reconnect(hosts[0].name)
        assert not fleet.is_alive(hosts[0].name)
        hosts[0].start_sshd()
        fleet.reconnect(hosts[0].name)
        assert fleet.is_alive(hosts[0].name)


@pytest.mark.promise("two jumps; all addresses of a host")
@pytest.mark.parametrize("config", ["Host node3\n  ProxyJump node1,node2\n", "Host *\n  ProxyJump node1\n"])
def test_gateways(home: Home, hosts: list[LabHost], config: str):
    """Two in the order written; one of all hosts, which is not its own gateway."""
    home.config(config)
    assert works(*(Host(host.name) for host in hosts)) == []


#: A host, its lines in ``~/.ssh/config``, and the message about them.
WAYS = [
    ("node3", "ProxyJump no.invalid,node2", "its gateway node2: its gateway no.invalid: .* was not found"),
    ("node2", "ProxyJump node1\n  Port 9", r"its gateway node1 cannot connect to .*:9 \(connect failed\)"),
    ("node1", "ProxyJump node2\nHost node2\n  ProxyJump node1", "in a circle: node1 -> node2 -> node1"),
    ("node2", "ProxyJump node3\n  User no-one", "refused the login as no-one .* its gateway node3"),
    ("node1", "ProxyCommand /bin/false %h", r"its ProxyCommand '/bin/false [\d.]+', which printed no error"),
    ("node1", "ProxyCommand /no/such/relay %h", "', which printed: /bin/sh: 1: "),
]


@pytest.mark.parametrize(("host", "config", "message"), WAYS)
def test_messages_name_the_gateway_or_proxy_command(home: Home, host: str, config: str, message: str):
    home.config(f"Host {host}\n  {config}\n")
    assert re.search(message, refusal(Host(host)))
