"""The ways to a host: ``~/.ssh/config``, gateways, commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.job import Host
from tests.ssh.connecting import Home, refusal, works
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def home(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Where we connect from."""
    return Home(tmp_path / "home", lab, monkeypatch)


def test_through_another_host(home: Home, hosts: list[LabHost]):
    home.config(f"Host {hosts[1].name} {hosts[2].name}\n  ProxyJump {hosts[0].name}\n")
    assert works(Host(hosts[1].name), Host(hosts[2].name)) == []


def test_through_two_hosts_in_the_order_written(home: Home, hosts: list[LabHost]):
    home.config(f"Host {hosts[2].name}\n  ProxyJump {hosts[0].name},{hosts[1].name}\n")
    assert works(Host(hosts[2].name)) == []
    home.config(f"Host {hosts[2].name}\n  ProxyJump no-such-host.invalid,{hosts[1].name}\n")
    message = refusal(Host(hosts[2].name))
    assert message.startswith(
        "node3: its gateway node2: its gateway no-such-host.invalid: 'no-such-host.invalid' was not found"
    )


def test_a_gateway_that_can_not_reach_the_host(home: Home, hosts: list[LabHost]):
    home.config(f"Host {hosts[1].name}\n  ProxyJump {hosts[0].name}\n")
    hosts[1].stop_sshd()
    message = refusal(Host(hosts[1].name))
    assert message.startswith(
        f"node2: its gateway node1 can't connect to {hosts[1].address}:{hosts[1].port} (connect failed)"
    )


def test_gateways_that_name_each_other(home: Home, hosts: list[LabHost]):
    home.config("Host node1\n  ProxyJump node2\nHost node2\n  ProxyJump node1\n")
    assert "goes in a circle: node1 -> node2 -> node1" in refusal(Host("node1"))


def test_everybody_through_one_who_is_not_his_own_gateway(home: Home, hosts: list[LabHost]):
    home.config("Host *\n  ProxyJump node1\n")
    assert works(*(Host(host.name) for host in hosts)) == []


def test_through_a_command(home: Home, hosts: list[LabHost], tmp_path: Path):
    script = tmp_path / "relay.py"
    script.write_text(_RELAY)
    python = "/usr/bin/python3"
    home.config(f"Host {hosts[0].name}\n  ProxyCommand {python} '{script}' %h %p\n")
    assert works(Host(hosts[0].name)) == []
    home.config(f"Host {hosts[0].name}\n  ProxyCommand /no/such/relay %h\n")
    message = refusal(Host(hosts[0].name))
    assert f"its ProxyCommand '/no/such/relay {hosts[0].address}', which printed: /bin/sh: 1: " in message


def test_what_a_host_is_reached_through_is_named(home: Home, hosts: list[LabHost]):
    home.config("Host node1\n  ProxyCommand /bin/false %h %p\n")
    message = refusal(Host("node1"))
    assert "closed the connection before its ssh server sent anything" in message
    command = f"/bin/false {hosts[0].address} {hosts[0].port}"
    through = f"; it is reached through its ProxyCommand '{command}', which printed no error"
    assert message.endswith(through)
    home.config(f"Host node2\n  ProxyJump {hosts[2].name}\n  User nobody-of-that-name\n")
    message = refusal(Host("node2"))
    assert " refused the login as nobody-of-that-name " in message
    assert message.endswith("; it is reached through its gateway node3 (ProxyJump in ~/.ssh/config)")


_RELAY = """\
import select, socket, sys, os
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for ready in select.select([0, peer], [], [])[0]:
        data = os.read(0, 65536) if ready == 0 else peer.recv(65536)
        if not data:
            sys.exit()
        (peer.sendall if ready == 0 else lambda data: os.write(1, data))(data)
"""
