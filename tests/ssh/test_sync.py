"""``--sync`` to real hosts: what arrives, what the second time costs, and what is said when it can't be."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launcher.errors import HostsError
from launcher.job import Host
from launcher.luggage.packing import pack
from launcher.luggage.progress import Lines, Silent, human
from launcher.luggage.requests import parse_syncs
from launcher.luggage.sync import SyncResult, finish, sync
from launcher.transport.ssh.errand import ChannelErrand
from launcher.transport.ssh.fleet import Fleet
from launcher.transport.ssh.settings import SshSettings
from tests.conftest import Launch
from tests.ssh.host import PATIENCE, LabHost, until
from tests.ssh.lab import Lab
from tests.unit.luggage.hosts import snapshot

pytestmark = pytest.mark.timeout(240)
needs_spaces = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
CACHE = ".cache/tf-launcher"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """2,000 files as a project has them, and some odd ones."""
    root = tmp_path / "project"
    words = Path(__file__).read_text().split()
    for number in range(2000):
        path = root / f"package{number % 50}/module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(words[number % 100 :]) + str(number))
    (root / "empty folder").mkdir()
    (root / "new\nline").write_text("odd")
    (root / "link").symlink_to("package1")
    with open(os.fsencode(root) + b"/\xff\xfe", "wb") as file:
        file.write(b"\0\xff")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


class Halfway:
    """Lets something happen in the middle of a sync, as soon as a host has had so much sent and has a file.

    It happens in the thread that sends, which goes on after it.
    """

    def __init__(self, host: LabHost, size: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.happens: Callable[[], object] = lambda: None
        self._blobs = host.there(host.home) / CACHE / "blobs"
        self._least = least
        sent, send = 0, ChannelErrand.send

        def send_or_act(errand: ChannelErrand, data: bytes | memoryview) -> int:
            nonlocal sent
            if errand._host != host.name:  # it has a thread of its own
                return send(errand, data)
            took, before = send(errand, data), sent
            sent += took
            if before < size <= sent:
                until(self._has_a_file, PATIENCE, f"{host.name} has a file")
                self.happens()
            return took

        monkeypatch.setattr(ChannelErrand, "send", send_or_act)

    def _has_a_file(self) -> bool:
        return any(path.stat().st_size > self._least for path in self._blobs.glob("*/*"))


def bring(
    fleet: Fleet, hosts: Sequence[LabHost], *texts: str, job: str = "job1", said: list[str] | None = None
) -> SyncResult:
    progress = Silent() if said is None else Lines(said.append)
    packed = pack(parse_syncs(texts), "/")
    return sync(fleet, [host.name for host in hosts], packed, job, progress, 32)


def failures(fleet: Fleet, hosts: Sequence[LabHost], *texts: str) -> list[str]:
    """What is said, host by host."""
    with pytest.raises(HostsError) as caught:
        bring(fleet, hosts, *texts)
    return list(caught.value.faults)


def test_to_four_hosts_and_again(lab: Lab, fleet: Fleet, project: Path):
    said: list[str] = []
    first = bring(fleet, lab.hosts, str(project), said=said)
    second = bring(fleet, lab.hosts, str(project), job="job2", said=said)
    for result, job in ((first, "job1"), (second, "job2")):
        for host in lab.hosts:
            path = host.home / CACHE / "work" / job / "project"
            assert result.workdirs[host.name] == str(path)
            assert snapshot(host.there(path)) == snapshot(project)
    summaries = [line for line in said if line.startswith("synced")]
    assert [line.split(" (")[0] for line in summaries] == ["synced 2,003 files"] * 2
    assert f" to 4 hosts, {human(first.moved)} sent, in " in summaries[0]
    assert first.moved == 4 * first.size
    assert " to 4 hosts, nothing sent, in " in summaries[1]
    assert second.sent * 10 < first.sent
    assert finish(fleet, [host.name for host in lab.hosts], "job1", 32) == {}
    assert finish(fleet, [host.name for host in lab.hosts], "job2", 32) == {}
    for host in lab.hosts:
        found = {
            path.removeprefix(f"{host.home}/").split("/")[2:3][0]
            for path in host.files()
            if CACHE + "/" in path
        }
        assert found == {"blobs", "lock", "place.lock", "spare"}


def test_to_a_place_that_stays(lab: Lab, fleet: Fleet, project: Path):
    for host in lab.hosts:
        host.expected.append("code")
    bring(fleet, lab.hosts, f"{project}:code/mine")
    node = lab.hosts[0].there(lab.hosts[0].home) / "code/mine"
    (node / "checkpoint").write_text("precious")
    (project / "run.sh").write_text("#!/bin/bash\n")
    second = bring(fleet, lab.hosts, f"{project}:code/mine")
    assert second.sent < len(lab.hosts) * 10_000, "the list of 2,000 files takes 80 kB"
    assert (node / "checkpoint").read_text() == "precious"
    assert (node / "run.sh").read_text() == "#!/bin/bash\n"


@needs_spaces
def test_a_mount_point_is_no_place(lab: Lab, fleet: Fleet, project: Path):
    host = lab.hosts[0]
    assert failures(fleet, [host], f"{project}:/dev/shm") == [
        f"{host.name}: /dev/shm can't be replaced: it is a mount point; give a folder below it"
    ]


@needs_spaces
def test_a_host_without_python_is_told_of_once(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    hosts[1].no_python()
    (tmp_path / "code").mkdir()
    words = ["--hosts", "node1,node2", "--workers", "2", "--sync", ".", "true"]
    ended = ssh_launch(*words, cwd=tmp_path / "code")
    assert ended.code == 125
    assert ended.err.count("no python3") == 1, ended.err
    assert "could not be removed" not in ended.err
    assert not [path for host in hosts for path in host.files() if "/work/" in path]


def test_disks_that_are_full_and_homes_that_are_closed(lab: Lab, fleet: Fleet, project: Path):
    full, closed, well, blocked = lab.hosts
    full.fill_disk()
    closed.read_only_home()
    (blocked.home / ".cache").mkdir()
    (blocked.home / CACHE).write_text("a file")
    said = failures(fleet, lab.hosts, str(project))
    assert len(said) == 3
    assert said[0].startswith(f"{full.name}: disk full: ")
    assert " free" in said[0]
    assert said[1].startswith(f"{closed.name}: ")
    assert "is not writable: Read-only file system" in said[1]
    assert (
        said[2]
        == f"{blocked.name}: {blocked.home}/{CACHE} is in the way: it is no folder ({blocked.home}/{CACHE})"
    )
    (blocked.home / CACHE).unlink()


def test_a_link_that_is_cut_in_the_middle(
    lab: Lab, fleet: Fleet, project: Path, monkeypatch: pytest.MonkeyPatch
):
    """Over another connection it goes on; what has arrived does not come again."""
    (project / "big1").write_bytes(os.urandom(10_000_000))
    (project / "big2").write_bytes(os.urandom(20_000_000))
    slow = lab.hosts[0]
    Halfway(slow, 22_500_000, 1_000_000, monkeypatch).happens = slow.kill_sshd_sessions
    said: list[str] = []
    result = bring(fleet, lab.hosts[:2], str(project), said=said)
    lost, back = [line for line in said if line.startswith(slow.name)]
    assert lost.startswith(f"{slow.name}: connection lost (")
    assert back.startswith(f"{slow.name}: connected again after ")
    assert snapshot(slow.there(result.workdirs[slow.name])) == snapshot(project)
    assert result.sent < 2 * 31_500_000 + 21_000_000, "what had arrived came again"


@needs_spaces
@pytest.mark.slow
def test_a_cable_that_is_out_for_a_while(
    lab: Lab, fleet: Fleet, project: Path, monkeypatch: pytest.MonkeyPatch
):
    """Longer than anybody waits for a sign of life: a sync goes on when it is in again."""
    (project / "big").write_bytes(os.urandom(40_000_000))
    slow = lab.hosts[0]
    said: list[str] = []
    plug = threading.Timer(1.0, slow.restore)

    def watch(text: str) -> None:
        said.append(text)
        if "connection lost" in text:
            plug.start()

    Halfway(slow, 20_000_000, 0, monkeypatch).happens = slow.cut
    packed = pack(parse_syncs([str(project)]), "/")
    result = sync(fleet, [slow.name], packed, "job1", Lines(watch), 32)
    plug.join()
    news = [line for line in said if line.startswith(slow.name)]
    assert news[0] == f"{slow.name}: connection lost (no answer for 10 s); trying again for 60 s"
    assert news[1].startswith(f"{slow.name}: connected again after ")
    assert snapshot(slow.there(result.workdirs[slow.name])) == snapshot(project)


def test_a_host_that_stays_away(lab: Lab, caller: Path, project: Path):
    """It is named, and nothing half done is seen there."""
    gone = lab.hosts[0]
    settings = SshSettings(connect_timeout=2.0, lease=3.0)
    with Fleet([Host(gone.name)], settings, print) as fleet:
        fleet.connect()
        gone.stop_sshd()
        gone.kill_sshd_sessions()
        since = time.monotonic()
        (said,) = failures(fleet, [gone], str(project))
    assert time.monotonic() - since < 30, "a lease is 60 s where nobody says otherwise"
    assert said.startswith(f"{gone.name}: the connection was lost (")
    assert "), and not back after " in said
    assert "refused the connection; does an ssh server run there, on this port?" in said
    gone.start_sshd()


def test_two_launches_at_once(lab: Lab, fleet: Fleet, project: Path):
    results: dict[str, SyncResult] = {}

    def launch(job: str) -> None:
        results[job] = bring(fleet, lab.hosts[:1], str(project), job=job)

    threads = [threading.Thread(target=launch, args=(f"job{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    node = lab.hosts[0]
    for result in results.values():
        assert snapshot(node.there(result.workdirs[node.name])) == snapshot(project)
    assert len(set(results)) == 3
