"""``--sync`` to real hosts: what arrives, what the second time costs, and the messages when it fails."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Launch, executable
from tests.seeing import soon
from tests.ssh.host import CACHE, TIME_LIMIT, LabHost
from tests.ssh.lab import ALL, ONE, TWO
from tests.unit.files.hosts import snapshot

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """200 files as a project has them, and some odd ones."""
    root = tmp_path / "project"
    words = Path(__file__).read_text().split()
    for number in range(200):
        path = root / f"package{number % 50}/module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(words[number % 100 :]) + str(number))
    (root / "empty folder").mkdir()
    (root / "new\nline").write_text("odd")
    (root / "link").symlink_to("package1")
    with open(os.fsencode(root) + b"/\xff\xfe", "wb") as file:
        file.write(b"\0\xff")
    executable(root / "run.sh", "#!/bin/sh\n")
    return root


def synced(tree: Path) -> dict[bytes, tuple[str, int, object]]:
    """What is in a synced folder, or a copy of it, but the list of what was copied."""
    return {path: found for path, found in snapshot(tree).items() if path != b".tf-launcher-sync"}


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of these files; folders count nothing."""
    size = 0
    for path in paths:
        with suppress(FileNotFoundError):  # renamed in this moment
            size += 0 if path.is_dir() else path.lstat().st_size
    return size


def arriving(host: LabHost) -> int:
    """Bytes of the files that have arrived, or are arriving, in trees that are not complete."""
    return size_of((host.there(host.home) / CACHE / "trees").glob(".tf-launcher-new-*/**/*"))


@pytest.mark.promise("only changes are sent")
def test_to_four_hosts_and_again(ssh_launch: Launch, hosts: list[LabHost], project: Path):
    for host in hosts:
        host.expected.append("copies")
    copy = "mkdir -p ~/copies && cp -a . ~/copies/$COPY && rm -rf package1 && echo >>run.sh"
    for number, unit in ((1, "MB"), (2, "kB"), (3, "kB")):  # what tasks have removed or changed comes again
        options = [*ALL, "--sync", ".", "-x", f"COPY={number}", "--", "sh", "-c", copy]
        ended = ssh_launch(*options, cwd=project, timeout=100, code=0)
        line = rf"launch: synced 203 files \(\d.* MB\) to 4 hosts, [\d.]+ {unit} sent, in "
        assert re.search(line, ended.err), ended.err
        for host in hosts:
            assert synced(host.there(host.home) / f"copies/{number}") == snapshot(project)
            assert not os.listdir(host.there(host.home) / CACHE / "work")
        executable(project / "run.sh", "#!/bin/sh\n")


@pytest.mark.promise("`DIR:PLACE`; two launches at once")
@pytest.mark.promise("links out of the tree, FIFOs, setuid, hard links, rewrites of the same size")
def test_a_place_of_two_launches_at_once_and_odd_files(
    ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path
):
    """Links are never followed, pipes stay, no file is setuid; what tasks make in the place is kept."""
    place, code, got = hosts[0].there(hosts[0].home) / "place", tmp_path / "code", tmp_path / "got"
    hosts[0].expected.append("place")
    code.mkdir()
    (code / "train").touch()
    os.link(code / "train", code / "again")
    (code / "out of it").symlink_to("/etc")
    (code / "setuid").touch()
    (code / "setuid").chmod(0o4755)
    os.mkfifo(code / "pipe")
    make = "cd ~/place; mkdir $0; cp -d * $0; mkfifo $0/pipe; chmod u+s $0/setuid; ln $0/train $0/third"
    planned = ssh_launch(*ONE, "--sync", ".", "--dry-run", "true", cwd=code)
    assert "left out as sockets, pipes or devices: pipe; " in planned.out
    for text in ("1", "2"):  # of the same size
        (code / "train").write_text(text)
        for at in (1, 2):
            options = ["--sync", ".", "--sync", ".:~/place", "--collect", f"~/place/{text}{at}:{got}"]
            ssh_launch.start(*ONE, *options, "--", "sh", "-c", make, f"{text}{at}", cwd=code)
        for started in ssh_launch.started[-2:]:
            assert "/pipe: neither file, folder nor link: left out" in started.wait(60, code=0).err
    for top in (place, *(got / "worker-0" / name for name in ("11", "12", "21", "22"))):
        text = "1" if top.name in ("11", "12") else "2"
        assert (top / "train").read_text() == (top / "again").read_text() == text
        assert os.readlink(top / "out of it") == "/etc"
        assert (top / "setuid").stat().st_mode & 0o7777 == 0o755
        assert not (top / "pipe").exists()
    assert (place / "11").is_dir(), "what a task has made"
    assert not os.listdir(hosts[0].there(hosts[0].home) / CACHE / "work")


@pytest.mark.parametrize("workdir", ["sub", "/"])
def test_a_program_by_its_path_here(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path, workdir: str):
    """Its copy runs, wherever its working folder is."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("import os; print('runs in', os.path.basename(os.getcwd()) or '/')")
    words = ("--hosts", "node1", "--sync", ".", "--workdir", workdir)
    ended = ssh_launch(*words, tmp_path / "train.py", cwd=tmp_path, timeout=60, code=0)
    assert f"worker/0 | runs in {workdir}" in ended.out


def test_a_folder_that_only_this_machine_has(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    """The hint tells what to do."""
    folder = tmp_path / "only here"
    folder.mkdir()
    ended = ssh_launch("--hosts", "node1", "pwd", cwd=folder, timeout=60, code=126)
    assert f"cannot enter the working folder '{folder}'" in ended.err
    assert re.search(r"^ *hint: .*`--sync \.`.*`workdir:` of a hostfile", ended.err, re.M)
    assert ssh_launch("--hosts", "node1", "--sync", ".", "pwd", cwd=folder, timeout=60).code == 0


@pytest.mark.promise("full disks")
def test_hosts_that_can_not_take_it(ssh_launch: Launch, hosts: list[LabHost], project: Path):
    """All faults are reported at once, and nothing is started."""
    full, closed, well, blocked = hosts
    full.fill_disk()
    closed.read_only_home()
    (blocked.home / ".cache").mkdir()
    (blocked.home / CACHE).write_text("a file")
    ended = ssh_launch(*ALL, "--sync", ".", "echo", "started", cwd=project, timeout=100, code=125)
    assert ended.out == ""
    assert re.search("node1: cannot write .*: (disk full: .* free|No space left)", ended.err), ended.err
    assert re.search("node2: cannot write .*: Read-only file system", ended.err)
    assert f"node4: cannot write {blocked.home}/{CACHE}/" in ended.err
    (blocked.home / CACHE).unlink()
    ended = ssh_launch("--hosts", well.name, "--sync", ".:/dev/shm", "true", cwd=project)
    assert f"{well.name}: /dev/shm is a mount point, or holds the home folder" in ended.err


def test_homes_that_can_not_be_written(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    """A place and an absolute path need no home; else the message says what to give."""
    closed, homeless = hosts[:2]
    closed.read_only_home()
    passwd = homeless.folder / "etc/passwd"
    passwd.write_text(passwd.read_text().replace(f":{homeless.home}:", ":/no/home:"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/run.sh").write_text("pwd | tee made\n")
    place = "/dev/shm/place"
    options = ["--sync", f".:{place}", "--collect", f"{place}/made:{tmp_path / 'got'}", "--", "sh", "run.sh"]
    try:
        for _ in range(2):
            ended = ssh_launch(*TWO, *options, cwd=tmp_path / "code", timeout=60, code=0)
            assert not re.search("cannot|could not", ended.err), ended.err
        got = [(tmp_path / f"got/worker-{number}/made").read_text() for number in (0, 1)]
        assert got == [f"{place}\n"] * 2
        assert [os.listdir(host.there("/dev/shm")) for host in (closed, homeless)] == [["place"]] * 2
    finally:
        for host in (closed, homeless):
            host.run(["rm", "-rf", place])
    for options in (["--sync", "."], ["--output-dirs"]):
        ended = ssh_launch(*TWO, *options, "true", cwd=tmp_path / "code", timeout=60, code=125)
        assert re.search("node1: cannot write .*: Read-only file system; .*PLACE", ended.err), ended.err
        assert re.search("node2: there is no home folder; .*PLACE", ended.err), ended.err
        assert "could not be removed" not in ended.err


@pytest.mark.promise("Python missing or too old")
def test_python_that_is_missing_or_too_old(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    """Each host is reported once, and nothing is brought to the others."""
    hosts[1].no_python()
    real = os.path.realpath(hosts[2].there("/usr/bin/python3")).rpartition("/")[2]
    pretend = f'for c; do :; done\nexec {real} -E -s -S -c "import sys; sys.version_info = (3, 6, 15); $c"\n'
    hosts[2].program("oldpython", f"#!/bin/sh\n{pretend}")
    (tmp_path / "lab.yaml").write_text("hosts: [node1, node2, {name: node3, python: oldpython}]\n")
    options = ["--hosts", "lab.yaml", "--workers", "3", "--sync", ".", "true"]
    ended = ssh_launch(*options, cwd=tmp_path, timeout=60, code=125)
    assert ended.out == ""
    assert ended.err.count("node2: there is no python3 there") == 1, ended.err
    assert ended.err.count("node3: its oldpython is Python 3.6.15, which is too old") == 1
    assert "could not be removed" not in ended.err
    assert not [path for host in hosts for path in host.files() if "/work/" in path]


@pytest.mark.promise("sshd killed, cable cut, in sync and collect")
@pytest.mark.parametrize("seconds", [0, pytest.param(14, marks=pytest.mark.slow)])
def test_a_link_that_breaks_in_the_middle(
    ssh_launch: Launch, hosts: list[LabHost], project: Path, seconds: int
):
    """The sync goes on over another connection: connections are killed, or the cable is out for a while."""
    slow = hosts[0]
    (project / "a big one").write_bytes(os.urandom(8_000_000))
    (project / "big").write_bytes(os.urandom(12_000_000))
    slow.slow(delay=100)  # else everything may have arrived before the test sees that half has
    slow.expected.append("copy")
    started = ssh_launch.start(*ONE, "--sync", ".", "--", "sh", "-c", "cp -a . ~/copy", cwd=project)
    started.until(lambda _: arriving(slow) > 10_000_000)
    if seconds:
        slow.cut()
        threading.Timer(seconds, slow.restore).start()
    else:
        slow.kill_sshd_sessions()
    ended = started.wait(120, code=0)
    assert "node1: connection lost (" in ended.err and "node1: connected again after " in ended.err
    assert synced(slow.there(slow.home) / "copy") == snapshot(project)
    (sent,) = re.findall(r"host, (\d+) MB sent, in ", ended.err)
    assert int(sent) < 22 + 10, "what had arrived came again"


def test_a_time_limit_ends_the_copy(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    (tmp_path / "big").write_bytes(os.urandom(60_000_000))
    hosts[0].slow(delay=300)
    ended = ssh_launch("--timeout", "4", *ONE, "--sync", ".", "echo", "started", cwd=tmp_path, code=124)
    assert ended.out == ""
    assert f"{hosts[0].name}: the copy was stopped by the time limit" in ended.err, ended.err
    work = hosts[0].there(hosts[0].home) / CACHE / "work"
    soon(lambda: not list(work.glob("*")), TIME_LIMIT, "the host has removed the folder of the run")
