"""What is a file and what is a list; and files that can't be hostfiles."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.cli import hosts
from launcher.cli.inventory import read_hosts
from launcher.errors import HostfileError, InputError
from launcher.job import Host
from tests.unit.cli.conftest import Call


def test_a_list():
    assert [(h.name, h.slots) for h in read_hosts("node1:2,node2:4")] == [("node1", 2), ("node2", 4)]


def test_a_file(weird_path: Path):
    (weird_path / "hosts").write_text("node1 slots=2\n# nobody\nnode2\n")
    assert [host.name for host in read_hosts(str(weird_path / "hosts"))] == ["node1", "node2"]


def test_a_file_with_the_name_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "node1").write_text("node7\n")
    monkeypatch.chdir(tmp_path)
    assert [host.name for host in read_hosts("node1")] == ["node7"]


MISSING = ["lab.yaml", "lab.YML", "hosts.txt", "my.hosts", "./lab", "/nowhere/lab", "a\nb/c"]


@pytest.mark.parametrize("text", MISSING)
def test_a_missing_file_is_never_a_list(text: str):
    with pytest.raises(HostfileError, match="no such hostfile"):
        read_hosts(text)


def test_a_link_to_nowhere(tmp_path: Path):
    os.symlink("nowhere", tmp_path / "lab")
    with pytest.raises(HostfileError, match="no such hostfile"):
        read_hosts(str(tmp_path / "lab"))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"node1\nnode\xff\n", ":2: not UTF-8 text: byte 0xff"),
        (b"node1\n\nnode2\0\n", ":3: a NUL byte"),
        (b"#" * (4 * 1024 * 1024 + 1), "too large for a hostfile: more than 4 MB"),
    ],
    ids=["latin-1", "binary", "large"],
)
def test_what_is_no_text(tmp_path: Path, data: bytes, what: str):
    (tmp_path / "lab").write_bytes(data)
    with pytest.raises(HostfileError) as caught:
        read_hosts(str(tmp_path / "lab"))
    assert what in str(caught.value)


def test_what_cannot_be_read(tmp_path: Path):
    with pytest.raises(HostfileError, match="Is a directory"):
        read_hosts(str(tmp_path))
    with pytest.raises(HostfileError, match="too large"):
        read_hosts("/dev/zero")


def test_a_byte_order_mark_is_no_host(tmp_path: Path):
    (tmp_path / "lab").write_bytes(b"\xef\xbb\xbfnode1\n")
    assert [host.name for host in read_hosts(str(tmp_path / "lab"))] == ["node1"]


def test_a_pipe_is_read(tmp_path: Path):
    reader, writer = os.pipe()
    os.write(writer, b"node1 slots=3\n")
    os.close(writer)
    try:
        assert read_hosts(f"/dev/fd/{reader}")[0].slots == 3
    finally:
        os.close(reader)


FULL = (
    Host("node1", slots=2, gpus=("0", "1"), env=(("SECRET", "hush"),), labels=("fast",)),
    Host("node2", user="ann", gpus=()),
)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "read_hosts", lambda _: FULL)


def test_a_table_of_what_is_used(full: None, call: Call, capsys: pytest.CaptureFixture[str]):
    assert call(hosts, "X") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["host", "user", "slots", "gpus", "env", "labels"]
    assert lines[1].split() == ["node1", "2", "0,1", "SECRET", "fast"]
    assert lines[2].split() == ["node2", "ann", "none"]
    assert lines[-1] == "2 hosts, 2 slots (1 host without a number), 2 GPUs"


def test_json_holds_all_but_values(full: None, call: Call, capsys: pytest.CaptureFixture[str]):
    assert call(hosts, "--json", "X") == 0
    out = capsys.readouterr().out
    assert "hush" not in out
    found = json.loads(out)
    assert [host["name"] for host in found] == ["node1", "node2"]
    assert found[0]["gpus"] == ["0", "1"]
    assert set(found[0]) == set(Host._fields)


def test_faults_are_raised(call: Call):
    with pytest.raises(InputError):
        call(hosts, "no/such")
