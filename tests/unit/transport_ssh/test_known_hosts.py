"""``known_hosts``: whose key it is, which line says so, and how a new one gets in."""

from __future__ import annotations

import base64
import subprocess
import threading
from pathlib import Path

import pytest

from launcher.transport.ssh.known_hosts import (
    Files,
    KnownHosts,
    Standing,
    files_for,
    fingerprint,
    name_in_files,
    shorten,
)

KEY, OTHER = b"key one", b"another key"


def line(names: str, key: bytes = KEY, kind: str = "ssh-ed25519") -> str:
    """A line of the file."""
    return f"{names} {kind} {base64.b64encode(key).decode()} a comment\n"


def judge(text: str, name: str, tmp_path: Path, key: bytes = KEY) -> tuple[Standing, int]:
    """What a file with this text says, and in which line."""
    file = tmp_path / "known"
    file.write_text(text)
    verdict = KnownHosts().judge(name, "ssh-ed25519", key, Files((str(file),), ()))
    return verdict.standing, verdict.entry.line if verdict.entry else 0


@pytest.mark.parametrize(
    ("names", "name", "standing"),
    [
        ("node1", "node1", Standing.KNOWN),
        ("a,Node1,b", "node1", Standing.KNOWN),
        ("node2", "node1", Standing.UNKNOWN),
        ("node*", "node17", Standing.KNOWN),
        ("node?", "node17", Standing.UNKNOWN),
        ("node*,!node1", "node1", Standing.UNKNOWN),
        ("!node1,node*", "node1", Standing.UNKNOWN),
        ("[node1]:2222", "[node1]:2222", Standing.KNOWN),
        ("node1", "[node1]:2222", Standing.UNKNOWN),
        ("[node*]:2222", "[node1]:2222", Standing.KNOWN),
        ("fe80::1", "fe80::1", Standing.KNOWN),
        ("|1|not base64|x", "node1", Standing.UNKNOWN),
        ("#node1", "node1", Standing.UNKNOWN),
    ],
)
def test_whom_a_line_is_about(names: str, name: str, standing: Standing, tmp_path: Path):
    assert judge(line(names), name, tmp_path)[0] is standing


def test_another_key_has_changed_and_its_own_line_says_so(tmp_path: Path):
    text = "# comment\n\nnonsense\n" + line("node1", OTHER, "ssh-rsa") + line("node1", OTHER)
    assert judge(text, "node1", tmp_path) == (Standing.CHANGED, 5)
    assert judge(line("node1", OTHER, "ssh-rsa"), "node1", tmp_path) == (Standing.CHANGED, 1)


def test_one_of_several_keys_is_enough(tmp_path: Path):
    assert judge(line("node1", OTHER) + line("node1"), "node1", tmp_path) == (Standing.KNOWN, 2)


def test_revoked_wins_and_authorities_do_not_count(tmp_path: Path):
    assert judge(line("node1") + "@revoked " + line("*"), "node1", tmp_path) == (Standing.REVOKED, 2)
    assert judge("@cert-authority " + line("*", OTHER), "node1", tmp_path)[0] is Standing.UNKNOWN


def test_hashed_names_as_openssh_writes_them(tmp_path: Path):
    file = tmp_path / "known"
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=50)
    kind, encoded = key.with_suffix(".pub").read_text().split()[:2]
    file.write_text(f"node1 {kind} {encoded}\n[node1]:2222 {kind} {encoded}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, timeout=50, capture_output=True)
    assert "node1" not in file.read_text()
    known, files = KnownHosts(), Files((str(file),), ())
    for name, standing in (
        ("node1", Standing.KNOWN),
        ("[node1]:2222", Standing.KNOWN),
        ("node2", Standing.UNKNOWN),
    ):
        assert known.judge(name, kind, base64.b64decode(encoded), files).standing is standing
    # And OpenSSH finds what is written here.
    known.add("node3", kind, base64.b64decode(encoded), files, hashed=True)
    assert "node3" not in file.read_text()
    subprocess.run(
        ["ssh-keygen", "-F", "node3", "-f", str(file)], check=True, timeout=50, capture_output=True
    )


def test_the_fingerprint_is_the_one_of_openssh(tmp_path: Path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-qt", "ecdsa", "-N", "", "-f", str(key)], check=True, timeout=50)
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(key)], check=True, timeout=50, capture_output=True, text=True
    )
    blob = base64.b64decode(key.with_suffix(".pub").read_text().split()[1])
    assert fingerprint(blob) == shown.stdout.split()[1]


def test_many_threads_add_and_each_key_is_there_once(tmp_path: Path):
    files = Files((str(tmp_path / "new/folder/known"),), ())
    stores = [KnownHosts() for _ in range(8)]  # as so many launchers at the same time

    def add(number: int) -> None:
        for host in range(20):
            verdict = stores[number].add(f"node{host}", "ssh-ed25519", b"key of %d" % host, files)
            assert verdict.standing is Standing.KNOWN

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    file = Path(files.user[0])
    assert sorted(line.split()[0] for line in file.read_text().splitlines()) == sorted(
        f"node{host}" for host in range(20)
    )
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_whoever_was_faster_with_another_key_wins(tmp_path: Path):
    files = Files((str(tmp_path / "known"),), ())
    slow = KnownHosts()
    assert slow.judge("node1", "ssh-ed25519", KEY, files).standing is Standing.UNKNOWN
    KnownHosts().add("node1", "ssh-ed25519", OTHER, files)
    assert slow.add("node1", "ssh-ed25519", KEY, files).standing is Standing.CHANGED


def test_which_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert files_for({}).user == ("/home/me/.ssh/known_hosts", "/home/me/.ssh/known_hosts2")
    assert files_for({"userknownhostsfile": '"/a b" ~/c'}).user == ("/a b", "/home/me/c")
    assert files_for({"userknownhostsfile": "none"}).user == ()
    assert name_in_files("Node1", 22) == "node1"
    assert name_in_files("Node1", 2222) == "[node1]:2222"
    assert shorten("/home/me/.ssh/x") == "~/.ssh/x"
    assert shorten("/home/mean/x") == "/home/mean/x"
