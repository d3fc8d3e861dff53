"""``--collect`` from real hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.job import Host
from launcher.luggage.collect import collect
from launcher.luggage.progress import Lines, Silent
from launcher.luggage.requests import Wanted
from launcher.transport.ssh.errand import ChannelErrand
from launcher.transport.ssh.fleet import Fleet
from launcher.transport.ssh.settings import SshSettings
from tests.conftest import Launch
from tests.ssh.lab import Lab
from tests.unit.luggage.hosts import snapshot

pytestmark = pytest.mark.timeout(180)


def furnish(lab: Lab) -> None:
    """Results on each host."""
    for host in lab.hosts:
        host.expected.append("results")
        top = host.there(host.home) / "results"
        (top / "ckpt-7/empty").mkdir(parents=True)
        (top / "ckpt-7/weights").write_bytes(os.urandom(3_000_000) + host.name.encode())
        (top / "ckpt-7/new\nline").write_text("odd")
        (top / "ckpt-7/run").write_text("x")
        (top / "ckpt-7/run").chmod(0o750)
        (top / "latest").symlink_to("ckpt-7")
        with open(os.fsencode(top) + b"/log\xff", "wb") as file:
            file.write(host.name.encode())


def test_from_four_hosts(lab: Lab, fleet: Fleet, tmp_path: Path):
    furnish(lab)
    wanted = [
        Wanted(f"worker/{number}", host.name, "results", path, str(tmp_path / f"out/worker-{number}"))
        for number, host in enumerate(lab.hosts)
        for path in ("latest", "log*", "ckpt-7", "not there")
    ]
    result = collect(fleet, wanted, "job1", Silent(), 32)
    assert result.failures == ()
    assert result.remarks == tuple(
        f"{host.name}: worker/{number}: 'not there' is not there (looked in {host.home}/results)"
        for number, host in enumerate(lab.hosts)
    )
    assert result.files == 4 * 7
    for number, host in enumerate(lab.hosts):
        whole = snapshot(host.there(host.home) / "results/ckpt-7")
        out = tmp_path / f"out/worker-{number}"
        assert snapshot(out / "ckpt-7") == snapshot(out / "latest") == whole
        assert {path: found[2] for path, found in snapshot(out).items() if path.startswith(b"log")} == {
            b"log\xff": host.name.encode()
        }


def test_two_tasks_of_a_host_are_told_that_they_share(ssh_launch: Launch, tmp_path: Path):
    (tmp_path / "code").mkdir()
    words = ["--hosts", "node1:2", "--workers", "2", "--sync", ".", "--collect", "out:got"]
    ended = ssh_launch(*words, "--", "sh", "-c", "echo $TASK_INDEX >out", cwd=tmp_path / "code")
    assert ended.code == 0, ended.err
    remark = "worker/0, worker/1 share the folder on node1: results of the same name are the same file"
    assert remark in ended.err
    assert ended.err.index(remark) < ended.err.index("synced 0 files (0 bytes) to 1 host, nothing sent, in ")
    folder = os.path.realpath(tmp_path / "code/got")
    assert f"collected 2 files (4 bytes) from 1 host into {folder} in " in ended.err
    got = [(tmp_path / f"code/got/worker-{number}/out").read_text() for number in (0, 1)]
    assert got[0] == got[1]


def test_connections_that_break_in_the_middle(
    lab: Lab, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The file that was on its way begins again, over another connection."""
    furnish(lab)
    node = lab.hosts[0]
    (node.there(node.home) / "results/ckpt-7/zz").write_bytes(os.urandom(50_000_000))
    wanted = [Wanted(h.name, h.name, "", "results", str(tmp_path / h.name)) for h in lab.hosts]
    said: list[str] = []
    came, recv = 0, ChannelErrand.recv

    def recv_or_kill(self: ChannelErrand, size: int) -> bytes | None:
        """Of all hosts, when the big file of one is on its way."""
        nonlocal came
        if self._host != node.name:  # it has a thread of its own
            return recv(self, size)
        data, before = recv(self, size), came
        came += len(data or b"")
        if before < 20_000_000 <= came:
            for host in lab.hosts:
                host.kill_sshd_sessions()
        return data

    monkeypatch.setattr(ChannelErrand, "recv", recv_or_kill)
    result = collect(fleet, wanted, "job1", Lines(said.append), 32)
    assert result.failures == ()
    assert result.files == 4 * 4 + 1
    for host in lab.hosts:
        assert snapshot(tmp_path / host.name / "results") == snapshot(host.there(host.home) / "results")
    assert any(line.startswith(f"{node.name}: connection lost (") for line in said)


def test_a_host_that_is_gone_keeps_nothing_from_the_others(lab: Lab, caller: Path, tmp_path: Path):
    furnish(lab)
    gone = lab.hosts[1]
    wanted = [Wanted(h.name, h.name, "", "results/latest", str(tmp_path / h.name)) for h in lab.hosts]
    with Fleet([Host(h.name) for h in lab.hosts], SshSettings(lease=3.0), print) as fleet:
        fleet.connect()
        gone.stop_sshd()
        gone.kill_sshd_sessions()
        result = collect(fleet, wanted, "job1", Silent(), 32)
    (failure,) = result.failures
    assert failure.startswith(f"{gone.name}: the connection was lost (")
    assert failure.endswith(f"; not fetched: 'results/latest' of {gone.name}")
    assert result.files == 3 * 3
    assert not (tmp_path / gone.name).exists()
    gone.start_sshd()
