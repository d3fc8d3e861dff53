"""Connecting to real hosts: each way to fail has its own words, and nothing of it stays behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.errors import HostsError, TransportError
from launcher.model.host import Host
from launcher.transport.ssh.fleet import Fleet
from launcher.transport.ssh.settings import SshSettings
from tests.ssh.errand_stubs import receive
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(120)
#: Once, and not for long: most tests here fail to connect.
QUICK = SshSettings(connect_timeout=1.0, attempts=1)


class Home:
    """The home of whoever connects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = path / ".ssh/known_hosts"
        self.key = path / ".ssh/id_ed25519"
        self._config = path / ".ssh/config"

    def config(self, text: str) -> None:
        """Put this before what its ``.ssh/config`` says."""
        self._config.write_text(text + "\n" + self._config.read_text())


@pytest.fixture
def home(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With a key that all hosts take, and all their host keys."""
    path = tmp_path / "home"
    path.mkdir()
    lab.move_in(path)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return Home(path)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of somebody on this machine who takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def talker() -> Iterator[Callable[[bytes], int]]:
    """The port of somebody who says this to whoever connects, and hangs up."""
    servers: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(server: socket.socket, words: bytes) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # the end of the test
                return
            with connection:
                connection.sendall(words)

    def start(words: bytes) -> int:
        servers.append(socket.create_server(("127.0.0.1", 0)))
        threads.append(threading.Thread(target=serve, args=(servers[-1], words), daemon=True))
        threads[-1].start()
        port: int = servers[-1].getsockname()[1]
        return port

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join(5)


def works(*hosts: Host, settings: SshSettings = QUICK) -> list[str]:
    """That all can be connected to, and asked something; what was told meanwhile."""
    told: list[str] = []
    with Fleet(hosts, settings, told.append) as fleet:
        fleet.connect()
        for host in hosts:
            assert fleet.is_alive(host.name)
            errand = fleet.errand(host.name, "launcher.agent.kernel:descendants_of", 1)
            receive(errand)
            assert errand.wait(10) is not None, errand.said()
            errand.close()
    return told


def refusal(*hosts: Host, settings: SshSettings = QUICK, tell: Callable[[str], None] = print) -> str:
    """Why they can't be connected to."""
    with Fleet(hosts, settings, tell) as fleet, pytest.raises(HostsError) as caught:
        fleet.connect()
    assert isinstance(caught.value, TransportError) and caught.value.exit_code == 125
    assert str(caught.value) == "\n".join(caught.value.faults)
    return str(caught.value)


def test_by_name_and_by_address(home: Home, hosts: list[LabHost]):
    assert works(Host(hosts[0].name), hosts[1].record()) == []


def test_a_name_that_nobody_knows(home: Home):
    said = refusal(Host("no-such-host.invalid"))
    assert said.startswith("no-such-host.invalid: 'no-such-host.invalid' was not found (")


def test_a_port_that_is_refused_is_tried_again(home: Home, hosts: list[LabHost]):
    said = refusal(Host(hosts[0].name, port=9), settings=QUICK._replace(attempts=2))
    where = re.escape(f"{hosts[0].address}:9")
    assert re.fullmatch(
        f"node1: {where} refused the connection; does an ssh server run .* \\(2 attempts\\)", said
    )


def test_one_that_comes_up_between_two_attempts(home: Home, hosts: list[LabHost]):
    hosts[0].stop_sshd()
    timer = threading.Timer(0.4, hosts[0].start_sshd)
    timer.start()
    assert works(Host(hosts[0].name), settings=QUICK._replace(attempts=5)) == []
    timer.join()


def test_one_that_is_cut_off(home: Home, hosts: list[LabHost]):
    hosts[0].cut()
    began = time.monotonic()
    said = refusal(Host(hosts[0].name))
    assert time.monotonic() - began < 3
    where = f"{hosts[0].address}:{hosts[0].port}"
    assert said == f"node1: no answer from {where} within 1 s; is it up, is a firewall between?"


def test_a_network_that_is_not_there(home: Home, lab: Lab):
    nobody = f"{lab.subnet}.200"  # after three seconds the kernel knows that nobody on the cable has it
    said = refusal(Host(nobody), settings=QUICK._replace(connect_timeout=8))
    assert said == (
        f"{nobody}: no route to {nobody}:22; is it up and on a network that this machine reaches?"
    )


def test_one_that_takes_the_connection_and_says_nothing(home: Home, silent: int):
    began = time.monotonic()
    said = refusal(Host("127.0.0.1", port=silent), settings=QUICK._replace(attempts=2))
    assert time.monotonic() - began < 5
    where = f"127.0.0.1:{silent}"
    words = "took the connection, and said nothing for 1 s; is that an ssh server? (2 attempts)"
    assert said == f"127.0.0.1: {where} {words}"


def test_an_sshd_that_hangs(home: Home, hosts: list[LabHost]):
    hosts[0].freeze_sshd()
    assert "and said nothing for 1 s" in refusal(Host(hosts[0].name))


def test_one_that_is_no_ssh_server(home: Home, talker: Callable[[bytes], int]):
    port = talker(b"HTTP/1.1 400 Bad Request\r\n" * 200)
    said = refusal(Host("127.0.0.1", port=port))
    assert said.startswith(f"127.0.0.1: 127.0.0.1:{port} is not an ssh server")


def test_one_that_hangs_up(home: Home, talker: Callable[[bytes], int]):
    port = talker(b"")
    said = refusal(Host("127.0.0.1", port=port))
    assert said.startswith(
        f"127.0.0.1: 127.0.0.1:{port} closed the connection before its ssh server said anything"
    )
    port = talker(b"SSH-2.0-OpenSSH_9.2\r\n")
    said = refusal(Host("127.0.0.1", port=port))
    assert said.startswith(f"127.0.0.1: 127.0.0.1:{port} closed the connection during the key exchange")


def test_an_ssh_server_that_stops_in_the_middle(home: Home, hosts: list[LabHost]):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connections: list[socket.socket] = []

        def greet() -> None:
            connections.append(server.accept()[0])
            connections[0].sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        said = refusal(Host("127.0.0.1", port=port))
        thread.join(5)
        connections[0].close()
    assert said == f"127.0.0.1: the ssh server at 127.0.0.1:{port} stopped answering for 1 s"


# Host keys


def test_an_unknown_host_key_is_refused_then_accepted(home: Home, hosts: list[LabHost]):
    home.known.unlink()
    (home.path / ".ssh").chmod(0o700)
    said = refusal(Host(hosts[0].name))
    where = f"{hosts[0].address}:{hosts[0].port}"
    assert said.startswith(
        f"node1: the host key of {where} is not known (ssh-ed25519 {_fingerprint(hosts[0])})"
    )
    assert "launch --accept-new-host-keys ..., or: ssh -o StrictHostKeyChecking=accept-new " in said
    assert not home.known.exists()
    told = works(Host(hosts[0].name), settings=QUICK._replace(accept_new=True))
    assert len(told) == 1 and _fingerprint(hosts[0]) in told[0]
    assert home.known.stat().st_mode & 0o777 == 0o600
    assert len(home.known.read_text().splitlines()) == 1
    assert works(Host(hosts[0].name)) == []


def _fingerprint(host: LabHost) -> str:
    argv = ["ssh-keygen", "-lf", str(host.folder / "etc/host_key.pub")]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[1]


def test_the_command_that_is_named_accepts_the_key(home: Home, hosts: list[LabHost], lab: Lab):
    home.known.write_text("# nobody\n")
    said = refusal(hosts[0].record())
    command = said.rpartition("or: ")[2].split()
    # OpenSSH does not look at $HOME.
    argv = [command[0], "-F", str(home.path / ".ssh/config"), *command[1:]]
    subprocess.run(argv, check=True, capture_output=True, timeout=20)
    assert works(hosts[0].record()) == []


def test_all_keys_are_accepted_at_once(home: Home, hosts: list[LabHost]):
    home.known.write_text("# no newline at its end")
    records = [Host(host.name) for host in hosts]
    assert len(works(*records, settings=QUICK._replace(accept_new=True))) == len(hosts)
    lines = home.known.read_text().splitlines()
    assert lines[0] == "# no newline at its end" and len(lines) == 1 + len(hosts)
    assert works(*records) == []


def test_a_new_key_that_can_not_be_noted_is_refused(home: Home, hosts: list[LabHost]):
    home.known.unlink()
    home.known.mkdir()
    said = refusal(Host(hosts[0].name), settings=QUICK._replace(accept_new=True))
    assert said == "node1: its host key can't be added to ~/.ssh/known_hosts: is a directory"


def test_ssh_config_may_let_new_keys_in(home: Home, hosts: list[LabHost]):
    home.known.unlink()
    home.config("Host *\n  StrictHostKeyChecking accept-new\n  HashKnownHosts yes\n")
    assert len(works(Host(hosts[0].name))) == 1
    assert home.known.read_text().startswith("|1|")
    assert works(Host(hosts[0].name)) == []


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_always_refused(accept_new: bool, home: Home, hosts: list[LabHost]):
    old = _fingerprint(hosts[0])
    hosts[0].new_host_key()
    home.config("Host *\n  StrictHostKeyChecking no\n")
    before = home.known.read_text()
    said = refusal(Host(hosts[0].name), settings=QUICK._replace(accept_new=accept_new))
    assert said.startswith(
        f"node1: the host key of {hosts[0].address}:{hosts[0].port} has changed: it shows "
    )
    assert f"{_fingerprint(hosts[0])}, ~/.ssh/known_hosts:1 says ssh-ed25519 {old}. Somebody may be" in said
    assert home.known.read_text() == before
    # The command that it names does what it says.
    command = said.rpartition("with: ")[2].split()
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    assert len(works(Host(hosts[0].name))) == 1  # unknown now, and ~/.ssh/config lets such a key in


def test_a_revoked_host_key_is_refused(home: Home, hosts: list[LabHost]):
    key = " ".join((hosts[0].folder / "etc/host_key.pub").read_text().split()[:2])
    home.known.write_text(home.known.read_text() + f"@revoked * {key}\n")
    said = refusal(Host(hosts[0].name), settings=QUICK._replace(accept_new=True))
    assert f"was revoked by ~/.ssh/known_hosts:{len(home.known.read_text().splitlines())}" in said


def test_known_hosts_files_of_ssh_config(home: Home, hosts: list[LabHost], tmp_path: Path):
    elsewhere = tmp_path / "known elsewhere"
    home.known.rename(elsewhere)
    assert "is not known" in refusal(Host(hosts[0].name))
    home.config(f'Host *\n  UserKnownHostsFile ~/.ssh/known_hosts "{elsewhere}"\n')
    assert works(Host(hosts[0].name)) == []


# Who we are


def test_a_key_that_is_refused(home: Home, hosts: list[LabHost]):
    _make_key(home.key)
    said = refusal(Host(hosts[0].name))
    where = f"{hosts[0].address}:{hosts[0].port}"
    assert said.startswith(
        f"node1: {where} refused the login as {hosts[0].user} (tried: ~/.ssh/id_ed25519); is that"
    )


def _make_key(path: Path, passphrase: str = "") -> None:
    for file in (path, path.with_suffix(".pub")):
        file.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True, timeout=20)


def test_no_key_at_all(home: Home, hosts: list[LabHost]):
    home.key.unlink()
    assert "(there was no key to offer); is that the right user" in refusal(Host(hosts[0].name))


def test_another_user(home: Home, hosts: list[LabHost]):
    said = refusal(Host(hosts[0].name, user="nobody-there"))
    assert "refused the login as nobody-there (tried: ~/.ssh/id_ed25519)" in said


def test_a_locked_key_is_said_and_the_agent_unlocks_it(
    home: Home, hosts: list[LabHost], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plain = tmp_path / "plain"
    plain.write_bytes(home.key.read_bytes())
    plain.chmod(0o600)
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(home.key)]
    subprocess.run(argv, check=True, capture_output=True, timeout=20)
    said = refusal(Host(hosts[0].name))
    assert said.endswith(
        "(there was no key to offer; ~/.ssh/id_ed25519 is protected by a passphrase); unlock it with: "
        "ssh-add ~/.ssh/id_ed25519"
    )
    path = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        _until(lambda: os.path.exists(path))
        subprocess.run(["ssh-add", str(plain)], check=True, capture_output=True, timeout=20)
        assert works(Host(hosts[0].name)) == []
        home.config("Host *\n  IdentityAgent none\n")
        assert "ssh-add" in refusal(Host(hosts[0].name))
    finally:
        agent.kill()
        agent.wait()


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def test_an_agent_that_is_gone_is_no_obstacle(
    home: Home, hosts: list[LabHost], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert works(Host(hosts[0].name)) == []


def test_too_many_keys(home: Home, hosts: list[LabHost]):
    names = [f"id_{number}" for number in range(8)]
    for name in names:
        _make_key(home.path / ".ssh" / name)
    home.config("Host *\n" + "".join(f"  IdentityFile ~/.ssh/{name}\n" for name in names))
    said = refusal(Host(hosts[0].name))
    assert re.search(
        r"closed the connection during the login as root, after \d keys \(~/.ssh/id_0, ", said
    ), said


def test_a_key_file_that_is_none(home: Home, hosts: list[LabHost]):
    home.key.write_text("not a key\n")
    assert "~/.ssh/id_ed25519 is no key that can be used" in refusal(Host(hosts[0].name))


# What ssh_config says, and gateways


def test_the_hostfile_wins_over_ssh_config(home: Home, hosts: list[LabHost]):
    home.config(f"Host wrong\n  HostName {hosts[0].address}\n  Port 9\n  User nobody-there\n")
    assert "9 refused" in refusal(Host("wrong"))
    assert works(Host("wrong", user=hosts[0].user, port=hosts[0].port)) == []


def test_included_files_count(home: Home, hosts: list[LabHost]):
    (home.path / ".ssh/conf.d").mkdir()
    (home.path / ".ssh/conf.d/one.conf").write_text(f"Host short\n  HostName {hosts[0].address}\n")
    home.config(f"Include conf.d/*.conf\nHost short\n  Port {hosts[0].port}\n  User {hosts[0].user}\n")
    assert works(Host("short")) == []


def test_a_configuration_that_can_not_be_read_is_said(home: Home, hosts: list[LabHost]):
    home.config("Host *\n  nonsense\n")
    assert refusal(Host(hosts[0].name)).startswith("node1: ~/.ssh/config can't be understood: ")
    home.config("Host *\n  Port many\n")
    assert "~/.ssh/config" in refusal(Host(hosts[0].name))


def test_through_another_host(home: Home, hosts: list[LabHost]):
    home.config(f"Host {hosts[1].name} {hosts[2].name}\n  ProxyJump {hosts[0].name}\n")
    assert works(Host(hosts[1].name), Host(hosts[2].name)) == []


def test_through_two_hosts_in_the_order_written(home: Home, hosts: list[LabHost]):
    home.config(f"Host {hosts[2].name}\n  ProxyJump {hosts[0].name},{hosts[1].name}\n")
    assert works(Host(hosts[2].name)) == []
    home.config(f"Host {hosts[2].name}\n  ProxyJump no-such-host.invalid,{hosts[1].name}\n")
    said = refusal(Host(hosts[2].name))
    assert said.startswith(
        "node3: its gateway node2: its gateway no-such-host.invalid: 'no-such-host.invalid' was not found"
    )


def test_a_gateway_whose_key_is_unknown(home: Home, hosts: list[LabHost]):
    home.config(f"Host {hosts[1].name}\n  ProxyJump {hosts[0].name}\n")
    home.known.write_text("".join(home.known.read_text().splitlines(keepends=True)[1:]))
    said = refusal(Host(hosts[1].name))
    assert said.startswith("node2: its gateway node1: the host key of ")
    assert len(works(Host(hosts[1].name), settings=QUICK._replace(accept_new=True))) == 1


def test_a_gateway_that_can_not_reach_the_host(home: Home, hosts: list[LabHost]):
    home.config(f"Host {hosts[1].name}\n  ProxyJump {hosts[0].name}\n")
    hosts[1].stop_sshd()
    said = refusal(Host(hosts[1].name))
    assert said.startswith(
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
    assert "node1: its ProxyCommand '/no/such/relay" in refusal(Host(hosts[0].name))


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


# All of them together


def test_all_failures_are_told_together_in_the_order_of_the_hosts(
    home: Home, hosts: list[LabHost], silent: int
):
    hosts[1].new_host_key()
    said = refusal(
        Host("127.0.0.1", port=silent),
        Host(hosts[0].name),
        Host(hosts[1].name),
        Host("no-such-host.invalid"),
        Host(hosts[2].name, port=9),
    ).splitlines()
    assert [line.partition(":")[0] for line in said] == [
        "127.0.0.1",
        "node2",
        "no-such-host.invalid",
        "node3",
    ]


def test_few_at_a_time(home: Home, hosts: list[LabHost]):
    assert works(*(Host(host.name) for host in hosts), settings=QUICK._replace(fanout=1)) == []


def test_whoever_waits_is_told_for_whom_and_why(home: Home, hosts: list[LabHost], silent: int):
    told: list[str] = []
    settings = SshSettings(connect_timeout=1.5, attempts=2)
    names = [f"127.0.0.{number}" for number in range(1, 6)]
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        refusal(
            Host(hosts[0].name),
            *(Host(name, port=port) for name in names),
            settings=settings,
            tell=told.append,
        )
    assert told[0] == (
        f"waiting for 127.0.0.1 (127.0.0.1:{port}: waiting for its ssh server, 2nd attempt), "
        f"127.0.0.2 (127.0.0.2:{port}: waiting for its ssh server, 2nd attempt), "
        f"127.0.0.3 (127.0.0.3:{port}: waiting for its ssh server, 2nd attempt) and 2 more"
    )


def test_ctrl_c_ends_it_at_once(home: Home, hosts: list[LabHost], silent: int):
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    many = [Host(f"127.0.0.{number}", port=silent) for number in range(1, 9)]
    with (
        pytest.raises(KeyboardInterrupt),
        Fleet(
            [Host(hosts[0].name), *many], SshSettings(connect_timeout=30, attempts=9, fanout=4), interrupt
        ) as fleet,
    ):
        fleet.connect()
    assert time.monotonic() - began < 2 + 1.5
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ssh ")]


def test_no_hosts_is_no_problem(home: Home):
    assert works() == []


def test_connecting_anew_fails_with_the_same_words(home: Home, hosts: list[LabHost]):
    with Fleet([Host(hosts[0].name)], QUICK, print) as fleet:
        fleet.connect()
        hosts[0].stop_sshd()
        with pytest.raises(TransportError, match="node1: .* refused the connection"):
            fleet.redial(hosts[0].name)
        assert not fleet.is_alive(hosts[0].name)
        hosts[0].start_sshd()
        fleet.redial(hosts[0].name)
        assert fleet.is_alive(hosts[0].name)
