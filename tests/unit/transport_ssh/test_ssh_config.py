"""``~/.ssh/config``, what hostfiles say before it, and gateways as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import TransportError
from launcher.transport.ssh.config import SshConfig
from launcher.transport.ssh.dial import Hop, parse_hop
from launcher.transport.ssh.failures import HostFailure


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ``.ssh`` of a home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path / ".ssh"


def look_up(name: str, user: str | None = None, port: int | None = None) -> dict[str, object]:
    """What counts for a host."""
    found: dict[str, object] = SshConfig().with_own(user, port).base_ssh_config.lookup(name)
    return found


def test_without_a_file(folder: Path):
    assert look_up("node1")["hostname"] == "node1"


def test_a_hostfile_wins_and_counts_for_the_rest(folder: Path):
    (folder / "config").write_text(
        "User general\nHost node1\n  Port 2222\n  ProxyCommand relay %h %p %r\n"
        "Match user me\n  HostName other\n"
    )
    assert (look_up("node1")["user"], look_up("node1")["port"]) == ("general", "2222")
    own = look_up("node1", "me", 7)
    assert (own["user"], own["port"], own["hostname"]) == ("me", "7", "other")
    assert own["proxycommand"] == "relay other 7 me"


def test_includes_are_followed_and_blocks_go_on_after_them(folder: Path):
    (folder / "config").write_text(
        'Host node1\n  Include parts/*.conf "with space"\n  Port 1\nHost *\n  User all\n'
    )
    (folder / "parts").mkdir()
    (folder / "parts/a.conf").write_text("Host node1\n  HostName a\nHost nodeX\n")
    (folder / "parts/b.conf").write_text("include = parts/deeper\n")
    (folder / "parts/deeper").write_text("Host node2\n  HostName b\n")
    (folder / "with space").write_text("Compression yes\n")
    assert (look_up("node1")["hostname"], look_up("node1")["port"]) == ("a", "1")
    assert look_up("node2")["hostname"] == "b" and "port" not in look_up("node2")
    assert look_up("node2")["compression"] == "yes" and look_up("node2")["user"] == "all"


def test_files_that_include_each_other(folder: Path):
    (folder / "config").write_text("Include config\n")
    with pytest.raises(TransportError, match="include each other"):
        SshConfig()


def test_what_can_not_be_understood(folder: Path):
    (folder / "config").write_text("Host x\n  nonsense\n")
    with pytest.raises(TransportError, match="~/.ssh/config can't be understood: .*nonsense"):
        SshConfig().with_own(None, None)


def test_what_can_not_be_read(folder: Path):
    (folder / "config").mkdir()
    with pytest.raises(TransportError, match=r"\.ssh/config can't be read: Is a directory"):
        SshConfig()


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("gate", Hop("gate")),
        ("Gate.Lab", Hop("Gate.Lab")),
        ("me@gate:2222", Hop("gate", "me", 2222)),
        ("ssh://me@gate:2222", Hop("gate", "me", 2222)),
        ("[fe80::1]:22", Hop("fe80::1", None, 22)),
        ("node@node", Hop("node", "node")),
    ],
)
def test_gateways_as_they_are_written(text: str, hop: Hop):
    assert parse_hop(text) == hop


@pytest.mark.parametrize("text", ["me@", "gate:port", "[fe80::1"])
def test_what_is_no_gateway(text: str):
    with pytest.raises(HostFailure, match="is no gateway"):
        parse_hop(text)
