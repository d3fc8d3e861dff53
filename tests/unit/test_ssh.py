"""Hosts over SSH, as far as no host is needed: known_hosts, and the options of a host in ssh_config."""

from __future__ import annotations

import base64
import os
import pwd
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from paramiko import PKey

from launcher.backends import here, ssh_query
from launcher.backends.ssh.keys import KnownHosts
from launcher.backends.ssh.options import HostOptions, Queries, SshError, host_options, parse_gateway
from launcher.job import Host
from tests.conftest import executable

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="it is about the ssh command")


class Key(PKey):
    """A host key."""

    def __init__(self, blob: bytes, kind: str = "ssh-ed25519") -> None:
        self._blob, self._kind = blob, kind

    def asbytes(self) -> bytes:
        return self._blob

    def get_name(self) -> str:
        return self._kind


KEY = Key(b"key one")


def line(names: str, key: Key = KEY) -> str:
    """A line of the file."""
    return f"{names} {key.get_name()} {base64.b64encode(key.asbytes()).decode()} a comment\n"


def options(path: Path, address: str = "node1", port: int = 22, hashed: bool = False) -> HostOptions:
    """Of a host whose known_hosts is at this path."""
    return HostOptions(
        address, address=address, port=port, user="me", known_hosts=(str(path),), hash_known_hosts=hashed
    )


def verdict(text: str, path: Path, address: str = "node1", port: int = 22) -> str:
    """The refusal of `KEY` by a file with this text; empty: it is the host's."""
    path.write_text(text)
    try:
        KnownHosts().check(options(path, address, port), KEY, accept_new=False)
    except SshError as failure:
        return str(failure)
    return ""


@pytest.mark.parametrize(
    ("names", "address", "port", "known"),
    [
        ("node1", "node1", 22, True),
        ("a,Node1,b", "NODE1", 22, True),
        ("node2", "node1", 22, False),
        ("node*", "node17", 22, True),
        ("node?", "node17", 22, False),
        ("node*,!node1", "node1", 22, False),
        ("!node1,node*", "node1", 22, False),
        ("[node1]:2222", "node1", 2222, True),
        ("node1", "node1", 2222, False),
        ("[node*]:2222", "node1", 2222, True),
        ("fe80::1", "fe80::1", 22, True),
        ("|1|not base64|x", "node1", 22, False),
        ("|1|ü|x", "node1", 22, False),
        ("#node1", "node1", 22, False),
        ("@cert-authority *", "node1", 22, False),
    ],
)
def test_which_host_a_line_is_about(names: str, address: str, port: int, known: bool, tmp_path: Path):
    message = verdict(line(names), tmp_path / "known", address, port)
    assert (message == "") is known
    assert known or "is not known (ssh-ed25519 SHA256:" in message


def test_known_algorithms_come_first(tmp_path: Path):
    (tmp_path / "known").write_text(line("node1", Key(b"k", "ssh-rsa")))
    found = KnownHosts().algorithms(
        options(tmp_path / "known"), ("ssh-ed25519", "rsa-sha2-256", "rsa-sha2-512")
    )
    assert found == ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519")


@pytest.mark.promise("host key under a hashed name")
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen on this machine")
def test_hashed_names_are_those_of_openssh(tmp_path: Path):
    path, key = tmp_path / "known", tmp_path / "key"
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=50)
    kind, encoded = key.with_suffix(".pub").read_text().split()[:2]
    own = Key(base64.b64decode(encoded), kind)
    path.write_text(f"node1 {kind} {encoded}\n[node1]:2222 {kind} {encoded}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(path)], check=True, timeout=50, capture_output=True)
    assert "node1" not in path.read_text()
    known = KnownHosts()
    for port in (22, 2222):
        known.check(options(path, "node1", port), own, accept_new=False)
    # And OpenSSH finds what is written here.
    known.check(options(path, "node3", hashed=True), own, accept_new=True)
    assert "node3" not in path.read_text()
    subprocess.run(
        ["ssh-keygen", "-F", "node3", "-f", str(path)], check=True, timeout=50, capture_output=True
    )
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(key)], check=True, timeout=50, capture_output=True, text=True
    )
    assert own.fingerprint == shown.stdout.split()[1]


def test_many_launches_add_each_key_once(tmp_path: Path):
    path = tmp_path / "new/folder/known"
    stores = [KnownHosts() for _ in range(8)]

    def add(store: KnownHosts) -> None:
        for host in range(20):
            store.check(options(path, f"node{host}"), Key(b"key of %d" % host), accept_new=True)

    threads = [threading.Thread(target=add, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    names = sorted(line.split()[0] for line in path.read_text().splitlines())
    assert names == sorted(f"node{host}" for host in range(20))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


# ssh_config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ``.ssh`` of a home that is not the account's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    (tmp_path / ".ssh").mkdir()
    return tmp_path / ".ssh"


def test_without_a_file(folder: Path):
    found = host_options(Host("node1"))
    assert (found.address, found.port, found.agent) == ("node1", 22, "/agent")
    assert found.known_hosts == (f"{folder}/known_hosts", f"{folder}/known_hosts2")
    assert f"{folder}/id_ed25519" in found.identity_files


@needs_ssh
def test_a_hostfile_wins_and_counts_for_the_rest(folder: Path):
    (folder / "config").write_text(
        "User general\nHost node1\n  Port 2222\n  ProxyCommand relay %h %p %r\n"
        "  UserKnownHostsFile none\n  IdentityAgent none\nMatch user me\n  HostName other\n"
    )
    found = host_options(Host("node1"))
    assert (found.user, found.port, found.agent, found.known_hosts) == ("general", 2222, "", ())
    assert host_options(Host("node1", user="me", port=7)).proxy_command == "relay other 7 me"
    with pytest.raises(SshError, match="shell of its ProxyCommand would interpret"):
        host_options(Host("node1", user="*"))


@needs_ssh
@pytest.mark.parametrize("file", ["the user's", "the system's"])
def test_the_name_of_this_machine_may_lead_to_another_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
):
    """Also if $HOME is not the home of the account, and has no file of its own."""
    path = folder / "config" if file == "the user's" else tmp_path / "ssh_config"
    monkeypatch.setattr(ssh_query, "_SYSTEM_FILE", str(tmp_path / "ssh_config"))
    here._leads_here.cache_clear()
    assert here.is_here(Host(os.uname().nodename))
    path.write_text(f"Host {os.uname().nodename}\n  HostName 192.0.2.1\n")
    here._leads_here.cache_clear()
    assert not here.is_here(Host(os.uname().nodename))
    here._leads_here.cache_clear()


@needs_ssh
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Host x\n  nonsense\n", "~/.ssh/config cannot be understood: .*nonsense"),
        ("Port many\n", "~/.ssh/config cannot be understood: .*line 1: Bad"),
    ],
)
def test_an_ssh_config_that_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
):
    (folder / "config").write_text(text)
    with pytest.raises(SshError, match=message):
        host_options(Host("x"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SshError, match="the `ssh` command, which reads ~/.ssh/config, is missing here"):
        host_options(Host("x"))


# One answer of ``ssh -G`` for several hosts: the text, the hosts, and how often ssh is asked.
SHARED = [
    ("", ["node1", "node2", "node3"], 1),
    ("User me\n\nHost *\n  Port 7", ["node1", "node2"], 1),
    ("Host node*\n  User me\nHost gate\n  Port 7", ["node1", "gate", "node2", "other", "third"], 3),
    ("Host node1\n  HostName 10.0.0.1\nHost node2\n  HostName 10.0.0.2", ["node1", "node2"], 2),
    ("Host node? !node2\n  User me", ["node1", "node2", "node3"], 2),
    ("Host node*\n  HostName %h.lab", ["node1", "node2"], 2),
    ("Host node*\n  HostName gate", ["node1", "node2"], 2),
    ("Host *\n  Match all\n  User me", ["node1", "node2"], 1),
    ("Match host node2\n  User me", ["node1", "node2", "node3"], 3),
    ("Match exec true\n  User me", ["node1", "node2"], 2),
    ("Include more", ["node1", "node2"], 2),
    ("Host x\n  Include more", ["node1", "node2"], 2),
    ("CanonicalizeHostname yes", ["node1", "node2"], 2),
    ('Host="node2"\n  User=me', ["node1", "node2", "node3"], 2),
]


@needs_ssh
@pytest.mark.parametrize(("text", "hosts", "queries"), SHARED)
def test_hosts_of_the_same_lines_share_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, hosts: list[str], queries: int
):
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    more = tmp_path / "more"
    more.write_text("Host node1\n  Port 9\n")
    config, log = tmp_path / "config", tmp_path / "log"
    config.write_text(text.replace("more", str(more)))
    script = f'#!/bin/sh\necho >>{log}\nexec {shutil.which("ssh")} -F {config} "$@"\n'
    ssh = executable(tmp_path / "bin/ssh", script)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    expected = [host_options(Host(name)) for name in hosts]
    log.unlink()
    together = Queries()
    with ThreadPoolExecutor(len(hosts)) as pool:
        found = list(pool.map(lambda name: host_options(Host(name), together), hosts))
    assert found == expected
    assert len(log.read_text()) == queries


@pytest.mark.parametrize(
    ("text", "gateway"),
    [
        ("gate", Host("gate")),
        ("Gate.Lab", Host("Gate.Lab")),
        ("me@gate:2222", Host("gate", user="me", port=2222)),
        ("ssh://me@gate:2222", Host("gate", user="me", port=2222)),
        ("[fe80::1]:22", Host("fe80::1", port=22)),
        ("me@[FE80::1%Eth0]:22", Host("FE80::1%Eth0", user="me", port=22)),
        ("gate@Gate", Host("Gate", user="gate")),
    ],
)
def test_gateways_as_they_are_written(text: str, gateway: Host):
    assert parse_gateway(text) == gateway


@pytest.mark.parametrize("text", ["me@", "gate:port", "[fe80::1"])
def test_texts_that_are_not_a_gateway(text: str):
    with pytest.raises(SshError, match="is not a gateway"):
        parse_gateway(text)
