"""Keys of hosts and of users: what is accepted, and the messages of refusals."""

from __future__ import annotations

import os
import re
import socket
import socketserver
import subprocess
import threading
from pathlib import Path

import pytest

from launcher.backends.ssh.keys import connect_agent
from launcher.backends.ssh.rows import ACCEPT_NEW_HOST_KEYS
from launcher.config.table import CONNECT_TIMEOUT
from launcher.job import Host
from tests.seeing import soon
from tests.ssh.connecting import PATIENT, Home, refusal, works
from tests.ssh.host import LabHost, make_key
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(240)

ACCEPTING = PATIENT.with_values({ACCEPT_NEW_HOST_KEYS: True})


@pytest.mark.promise("host key unknown, then accepted")
def test_an_unknown_host_key_is_refused_then_accepted(home: Home, hosts: list[LabHost]):
    home.known.unlink()
    (home.path / ".ssh").chmod(0o700)
    message = refusal(Host(hosts[0].name))
    unknown = f"the host key of {hosts[0].address}:22 is not known (ssh-ed25519 {_fingerprint(hosts[0])})"
    assert message.startswith(f"node1: {unknown}") and "launch --accept-new-host-keys ..." in message
    assert not home.known.exists()
    notices = works(Host(hosts[0].name), settings=ACCEPTING)
    assert len(notices) == 1 and _fingerprint(hosts[0]) in notices[0]
    assert home.known.stat().st_mode & 0o777 == 0o600
    assert len(home.known.read_text().splitlines()) == 1
    assert works(Host(hosts[0].name)) == []


def _fingerprint(host: LabHost) -> str:
    argv = ["ssh-keygen", "-lf", str(host.folder / "etc/host_key.pub")]
    return subprocess.check_output(argv, text=True).split()[1]


def test_a_private_key_that_others_may_read_is_ignored(home: Home, hosts: list[LabHost]):
    home.key.chmod(0o644)
    message = refusal(Host(hosts[0].name))
    assert "its permissions 0644 are too open" in message
    assert message.endswith("chmod 600 ~/.ssh/id_ed25519")
    home.key.chmod(0o400)
    assert works(Host(hosts[0].name)) == []


def test_the_command_that_is_named_accepts_the_key(home: Home, hosts: list[LabHost], lab: Lab):
    home.known.write_text("# none\n")
    message = refusal(hosts[0].record())
    command = message.rpartition("or: ")[2].split()
    # OpenSSH does not look at $HOME.
    argv = [command[0], "-F", str(home.path / ".ssh/config"), *command[1:]]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    assert works(hosts[0].record()) == []


def test_all_keys_are_accepted_at_once(home: Home, hosts: list[LabHost]):
    home.known.write_text("# no newline at its end")
    records = [Host(host.name) for host in hosts]
    assert len(works(*records, settings=ACCEPTING)) == len(hosts)
    lines = home.known.read_text().splitlines()
    assert lines[0] == "# no newline at its end" and len(lines) == 1 + len(hosts)
    assert works(*records) == []


def test_a_new_key_that_can_not_be_written_is_refused(home: Home, hosts: list[LabHost]):
    home.known.unlink()
    home.known.mkdir()
    message = refusal(Host(hosts[0].name), settings=ACCEPTING)
    assert message == "node1: its host key cannot be added to ~/.ssh/known_hosts: is a directory"


@pytest.mark.promise("host key under a hashed name")
def test_ssh_config_may_accept_new_keys(home: Home, hosts: list[LabHost]):
    home.known.unlink()
    home.config("Host *\n  StrictHostKeyChecking accept-new\n  HashKnownHosts yes\n")
    assert len(works(Host(hosts[0].name))) == 1
    assert home.known.read_text().startswith("|1|")
    assert works(Host(hosts[0].name)) == []


@pytest.mark.promise("host key changed, revoked")
@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_always_refused(accept_new: bool, home: Home, hosts: list[LabHost]):
    hosts[0].new_host_key()
    home.config("Host *\n  StrictHostKeyChecking no\n")
    before = home.known.read_text()
    message = refusal(Host(hosts[0].name), settings=ACCEPTING if accept_new else PATIENT)
    assert message.startswith(f"node1: the host key of {hosts[0].address}:22 has changed: it shows ")
    assert f"{_fingerprint(hosts[0])}, ~/.ssh/known_hosts:1 has another ssh-ed25519 key. " in message
    assert home.known.read_text() == before
    # The command that it names does what it says.
    command = message.rpartition("with: ")[2].split()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert len(works(Host(hosts[0].name))) == 1  # unknown now, and ~/.ssh/config lets such a key in


@pytest.mark.promise("host key changed, revoked")
def test_a_revoked_host_key_is_refused(home: Home, hosts: list[LabHost]):
    key = " ".join((hosts[0].folder / "etc/host_key.pub").read_text().split()[:2])
    home.known.write_text(home.known.read_text() + f"@revoked * {key}\n")
    message = refusal(Host(hosts[0].name), settings=ACCEPTING)
    assert f"is revoked by ~/.ssh/known_hosts:{len(home.known.read_text().splitlines())}" in message


def test_known_hosts_files_of_ssh_config(home: Home, hosts: list[LabHost], tmp_path: Path):
    elsewhere = tmp_path / "known_elsewhere"
    home.known.rename(elsewhere)
    assert "is not known" in refusal(Host(hosts[0].name))
    home.config(f"Host *\n  UserKnownHostsFile ~/.ssh/known_hosts {elsewhere}\n")
    assert works(Host(hosts[0].name)) == []


def test_keys_that_are_refused(home: Home, hosts: list[LabHost]):
    host = Host(hosts[0].name)
    other = refusal(Host(hosts[0].name, user="no-such-user"))
    assert "refused the login as no-such-user (tried: ~/.ssh/id_ed25519)" in other
    home.key.unlink()
    make_key(home.key, "another")
    text = f"node1: {hosts[0].address}:22 refused the login as root (tried: ~/.ssh/id_ed25519)"
    assert refusal(host).startswith(text)
    home.key.write_text("not a key\n")
    assert "~/.ssh/id_ed25519 is not a key that can be used" in refusal(host)
    home.key.unlink()
    assert "there was no key to offer" in refusal(host)


@pytest.mark.promise("a locked key, ssh-agent")
def test_a_locked_key_is_reported_and_the_agent_unlocks_it(
    home: Home, hosts: list[LabHost], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plain = tmp_path / "plain"
    plain.write_bytes(home.key.read_bytes())
    plain.chmod(0o600)
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(home.key)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    message = refusal(Host(hosts[0].name))
    assert "~/.ssh/id_ed25519 is protected by a passphrase" in message
    assert message.endswith("ssh-add ~/.ssh/id_ed25519")
    path = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        soon(lambda: _listens(path))
        subprocess.run(["ssh-add", str(plain)], check=True, capture_output=True, timeout=60)
        assert works(Host(hosts[0].name)) == []
        monkeypatch.delenv("SSH_AUTH_SOCK")
        home.config(f"Host *\n  IdentityAgent {path}\n")
        assert works(Host(hosts[0].name)) == []
        assert "SSH_AUTH_SOCK" not in os.environ
        home.config("Host *\n  IdentityAgent none\n")
        assert "ssh-add" in refusal(Host(hosts[0].name))
    finally:
        agent.kill()
        agent.wait()


def _listens(path: str) -> bool:
    """Whether the agent accepts connections: its socket is there before that."""
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(path) == 0


def test_an_agent_that_is_gone_or_does_not_answer_is_no_obstacle(
    home: Home, hosts: list[LabHost], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert works(Host(hosts[0].name)) == []
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "gone"))
        silent.listen()
        works(Host(hosts[0].name), settings=PATIENT.with_values({CONNECT_TIMEOUT: 6.0}))


def test_the_environment_is_unchanged_while_an_agent_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Other threads start a ProxyCommand at any moment."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/of/the/user")
    seen = []

    class WithoutKeys(socketserver.BaseRequestHandler):
        """Answers each request, and notes the variable meanwhile."""

        def handle(self) -> None:
            while self.request.recv(5):
                seen.append(os.environ["SSH_AUTH_SOCK"])
                self.request.sendall(b"\0\0\0\5\x0c\0\0\0\0")

    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "agent"), WithoutKeys) as server:
        threading.Thread(target=server.serve_forever, args=[0.05]).start()
        agent = connect_agent(str(tmp_path / "agent"), 10)
        assert agent is not None and agent.get_keys() == ()
        agent.close()
        server.shutdown()
    assert set(seen) == {"/of/the/user"}


def test_too_many_keys(home: Home, hosts: list[LabHost]):
    names = [f"id_{number}" for number in range(8)]
    for name in names:
        make_key(home.path / ".ssh" / name, name)
    home.config("Host *\n" + "".join(f"  IdentityFile ~/.ssh/{name}\n" for name in names))
    expected = r"closed the connection during a login as root, after \d keys \(~/.ssh/id_0, "
    assert re.search(expected, refusal(Host(hosts[0].name)))
