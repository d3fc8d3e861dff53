"""``launch prepare`` on real hosts: environments, faults, and what is left when it is interrupted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended, Launch, Started
from tests.pythons import oldest_python
from tests.seeing import command_line, soon
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab
from tests.ssh.package_index import PASSWORD, PackageIndex

pytestmark = pytest.mark.timeout(240)
TOP = ".local/share/tf-launcher/environments"
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture
def index(lab: Lab, tmp_path: Path) -> Iterator[PackageIndex]:
    """An index with ``tiny``, which needs ``tinier``."""
    with PackageIndex(tmp_path / "wheels", lab.address) as index:
        index.add("tiny", needs=("tinier>=1",))
        index.add("tinier")
        (tmp_path / "requirements.txt").write_text(index.options + "tiny  # needs tinier\n")
        yield index


@pytest.fixture
def quick(hosts: list[LabHost]) -> list[LabHost]:
    """The hosts, each with uv, which makes environments in a tenth of the time; some files of theirs stay."""
    for host in hosts:
        _ready(host)
    return hosts


def _ready(host: LabHost) -> None:
    if UV is None:
        pytest.skip("needs uv")
    host.program("uv", f'#!/bin/sh\nexec {UV} "$@"\n')
    host.expected += [".local", ".cache"]


def prepare(launch: Launch, hosts: str, *args: str, code: int | None = 0, **more: Any) -> Ended:
    """Run it in the folder with ``requirements.txt``."""
    words = ("prepare", "--hosts", hosts, *args)
    return launch(*words, code=code, cwd=launch.home.parent, timeout=200, **more)


def start(launch: Launch, host: LabHost, *args: str, **more: Any) -> Started:
    """Start it there."""
    return launch.start("prepare", "--hosts", host.name, *args, cwd=launch.home.parent, **more)


def version(host: LabHost, name: str = "default", module: str = "tiny") -> str:
    """The version of the module, as the environment of a host imports it."""
    python = host.home / TOP / name / "bin/python"
    code = f"import {module}; print({module}.version)"
    return host.run([str(python), "-I", "-c", code], check=False).stdout.decode().strip()


def folders(host: LabHost) -> list[str]:
    """The folders of environments on a host."""
    return sorted(name for name in os.listdir(host.there(host.home / TOP)) if "-py3" in name)


def rows(ended: Ended) -> dict[str, str]:
    """Host -> the rest of its row in the table."""
    return dict(re.split(r"\s+", line, maxsplit=1) for line in ended.out.splitlines()[1:])


@pytest.mark.promise("`launch prepare`: eight hosts, each with another fault or none")
def test_eight_hosts_of_all_kinds(launch: Launch, tmp_path: Path):
    old = oldest_python()
    if os.geteuid() != 0 or old is None:
        pytest.skip("needs root, for hosts made of network namespaces, and Python 3.8")
    with Lab(8) as lab, PackageIndex(tmp_path / "wheels", lab.address) as index:
        index.add("tiny", needs=("tinier>=1",))
        index.add("tinier", platform=f"manylinux2014_{os.uname().machine}")
        (tmp_path / "requirements.txt").write_text(index.options + "tiny\n")
        lab.move_in(launch.home)
        config = launch.home / ".ssh/config"
        config.write_text("Host node6\n  ProxyJump node1\n" + config.read_text())
        hosts = lab.hosts
        for host in hosts:
            _ready(host)
        hosts[2].no_python()
        hosts[2].program("python3", f'#!/bin/sh\nexec {old} "$@"\n')
        hosts[3].run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(hosts[3].home)])
        index.refused.add(hosts[4].address)
        hosts[6].new_host_key()
        hosts[7].banner('{"state": "ready"}')
        names = ",".join(host.name for host in hosts)

        ended = prepare(launch, names, code=1)
        good = [hosts[number - 1] for number in (1, 2, 5, 6, 8)]
        assert [version(host) for host in good] == ["1.0"] * 5
        table = rows(ended)
        assert list(table) == names.split(",")
        assert all(re.fullmatch(r"3\.\d+ +[\d.]+ [kM]B +ready", table[host.name]) for host in good)
        assert re.search(r"failed: Python 3.8: .* does not satisfy Python>=3.9", table["node3"])
        assert "failed: its disk is full: 1 MB free, about 50 MB are needed" in table["node4"]
        assert "host key" in table["node7"] and "has changed" in table["node7"]
        steps = re.findall(r"\] node5: (sending|installing) ", ended.err)
        assert steps == ["installing", "sending", "installing"]
        assert "[8/8]" in ended.err
        assert PASSWORD not in ended.err + ended.out

        seen = len(index.requests)
        prepare(launch, "node1,node2,node5,node6,node8")
        assert len(index.requests) == seen
        table = rows(prepare(launch, names, "--check", code=1))
        assert table["node1"].endswith("ready") and "failed: " in table["node7"]


def test_no_password_is_on_a_command_line(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex, tmp_path: Path
):
    index.refused.add(quick[1].address)
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):  # The programs of the packages take longer.
            seen.update(command_line(int(pid)) for pid in os.listdir("/proc") if pid.isdigit())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        ended = prepare(ssh_launch, "node1,node2")
    finally:
        done.set()
        looking.join()
    assert any("pip install" in line for line in seen)
    assert not [line for line in seen if PASSWORD in line]
    assert PASSWORD not in ended.err + ended.out
    homes = (tmp_path / "home", *(host.there(host.home) for host in quick[:2]))
    files = [path for home in homes for path in home.rglob("*") if path.is_file()]
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


@pytest.mark.promise("`launch prepare` uses the package indexes of pip where uv has none of its own")
def test_the_package_indexes_of_pip(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex, tmp_path: Path
):
    """Whoever has set a mirror for pip alone gets packages from there, also by uv, which reads none of it."""
    (tmp_path / "requirements.txt").write_text("tiny\n")
    settings = index.options.replace("--", "").replace("url ", "url = ").replace("host ", "host = ")
    (quick[0].home / ".config/pip").mkdir(parents=True)
    (quick[0].home / ".config/pip/pip.conf").write_text(f"[global]\n{settings}")
    (tmp_path / "pip.conf").write_text(f"[global]\n{settings}")
    here = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    quick[0].expected.append(".config")

    own = {**here, "UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple"}
    ended = prepare(ssh_launch, "node1", env=own, code=1)
    assert "uv's own settings" in ended.err and "pip" in ended.err
    assert not index.requests

    ended = prepare(ssh_launch, "node1", env=here)
    assert version(quick[0]) == "1.0"
    assert {host for host, _ in index.requests} >= {quick[0].address}, "the host has them from the index"
    assert "sending" not in ended.err
    assert PASSWORD not in ended.err + ended.out


def test_no_index_of_pip(launch: Launch, tmp_path: Path):
    (tmp_path / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /no/such/folder\n")
    env = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    ended = launch("prepare", "six", cwd=tmp_path, env=env, timeout=120, code=1)
    assert "those of pip were used: " in ended.err and "no-index" in ended.err


def test_changes_are_seen_and_mended(ssh_launch: Launch, quick: list[LabHost], index: PackageIndex):
    host = quick[0]
    looked = quick[1].home / "looked"
    quick[1].program("python3.99", f"#!/bin/sh\n: >{looked}\nexit 1\n")
    prepare(ssh_launch, "node1,node2", "--check", code=1)
    assert not quick[1].there(looked).exists(), "no Python is started that is not needed"
    done = prepare(ssh_launch, "node1")
    assert "ready: launch --hosts node1 --venv default --sync . PROGRAM\n" in done.err
    first = folders(host)
    python = str(host.home / TOP / "default/bin/python")
    host.run(["uv", "pip", "uninstall", "--python", python, "tinier"])
    table = rows(prepare(ssh_launch, "node1,node2", "--check", code=1))
    assert table["node1"].endswith("changed") and table["node2"].endswith("missing")
    prepare(ssh_launch, "node1")
    assert version(host, module="tinier") == "1.0"

    # A new version is taken only if the user asks for it; the old environment stays for those who run in it.
    index.add("tinier", "2.0")
    prepare(ssh_launch, "node1")
    assert version(host, module="tinier") == "1.0"
    prepare(ssh_launch, "node1", "--upgrade")
    assert version(host, module="tinier") == "2.0"
    assert set(first) < set(folders(host))
    prepare(ssh_launch, "node1", "--name", "other")
    assert version(host, "other", "tinier") == "2.0"

    months = str(40 * 24 * 3600)
    code = f"import os, sys, time; t = time.time() - {months}; [os.utime(p, (t, t)) for p in sys.argv[1:]]"
    paths = [str(host.home / TOP / name / "environment.json") for name in folders(host)]
    host.run(["python3", "-c", code, *paths])
    host.there(host.home / TOP / "other/environment.json").touch()  # as a run does
    prepare(ssh_launch, "node1", "--clean")
    assert folders(host) == [os.readlink(host.there(host.home / TOP / "other"))]


@pytest.mark.promise("`launch prepare` that is killed, cut off or started twice")
def test_two_at_once_make_one_environment(ssh_launch: Launch, quick: list[LabHost], index: PackageIndex):
    index.open.clear()
    both = [start(ssh_launch, quick[0]) for _ in range(2)]
    soon(lambda: any("/files/" in path for _, path in index.requests))
    index.open.set()
    assert [started.wait(120).code for started in both] == [0, 0]
    assert version(quick[0]) == "1.0"
    assert len(folders(quick[0])) == 1


@pytest.mark.promise("`launch prepare` that is killed, cut off or started twice")
def test_an_interrupted_one_leaves_no_environment(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    prepare(ssh_launch, "node4")  # versions are known
    index.open.clear()
    hosts = quick[:3]
    killed, stopped, cut = [start(ssh_launch, host) for host in hosts]
    wanted = {(host.address, "/files/tiny-1.0-py3-none-any.whl") for host in hosts}
    soon(lambda: wanted <= set(index.requests))
    assert not any(host.there(host.home / TOP / "default").exists() for host in hosts)
    killed.kill()
    stopped.send(signal.SIGINT)
    hosts[2].kill_sshd_sessions()
    assert stopped.wait().code == 130
    assert cut.wait(60).code == 1
    soon(lambda: not any(host.processes() for host in hosts), 30)
    assert [folders(host) for host in hosts] == [[]] * 3
    index.open.set()
    prepare(ssh_launch, "node1,node2,node3")
    assert [version(host) for host in hosts] == ["1.0"] * 3


@pytest.mark.long
def test_one_interrupted_while_it_sends_leaves_no_environment(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    prepare(ssh_launch, "node4")  # versions are known
    index.open.clear()
    hosts = quick[:2]
    killed, cut = [start(ssh_launch, host, "--offline") for host in hosts]
    for started in (killed, cut):
        started.until(lambda started: "downloading wheels here" in started.err)
    for host in hosts:
        host.kill_sshd_sessions(signal.SIGSTOP)
    index.open.set()
    for started in (killed, cut):
        started.until(lambda started: "sending 2 wheels" in started.err)
    killed.kill()
    hosts[0].kill_sshd_sessions(signal.SIGCONT)
    hosts[1].kill_sshd_sessions()
    ended = cut.wait(60, code=1)
    assert rows(ended)["node2"] == "failed: the connection broke (the other side closed it)"
    soon(lambda: not any(host.processes() for host in hosts), 30)
    assert [folders(host) for host in hosts] == [[]] * 2
    prepare(ssh_launch, "node1,node2", "--offline")
    assert [version(host) for host in hosts] == ["1.0"] * 2


def test_what_a_killed_program_left_is_removed(ssh_launch: Launch, quick: list[LabHost], index: PackageIndex):
    host = quick[0]
    prepare(ssh_launch, "node2")  # versions are known
    index.open.clear()
    started = start(ssh_launch, host)
    soon(lambda: any(address == host.address for address, _ in index.requests))
    host.kill(signal.SIGKILL, *(it.pid for it in host.processes("python3")))
    assert "node1: failed: " in started.wait(60, code=1).err
    index.open.set()
    soon(lambda: not host.processes(), 30)
    left = folders(host)
    assert len(left) == 1
    prepare(ssh_launch, "node1")
    assert version(host) == "1.0"
    assert len(folders(host)) == 1 and folders(host) != left


@pytest.mark.slow
def test_a_host_without_uv_has_pip(ssh_launch: Launch, hosts: list[LabHost], index: PackageIndex):
    hosts[0].program("uv", None)
    if hosts[0].run(["python3", "-c", "import ensurepip"], check=False).returncode:
        pytest.skip("needs python3-venv")
    hosts[0].expected += [".local", ".cache"]
    prepare(ssh_launch, "node1", "--offline")
    assert hosts[0].address not in {address for address, _ in index.requests}
    assert version(hosts[0]) == "1.0"


@pytest.mark.long
def test_a_host_without_an_answer_of_the_index_gets_wheels_after_two_attempts(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    index.silent.add(quick[0].address)
    assert "so wheels are sent" in prepare(ssh_launch, "node1").err
    attempts = [path for address, path in index.requests if address == quick[0].address]
    assert max(map(attempts.count, attempts)) == 2
    assert version(quick[0]) == "1.0"


def test_a_disk_that_gets_full_gets_no_wheels(ssh_launch: Launch, quick: list[LabHost], index: PackageIndex):
    host = quick[0]
    index.add("tinier", "2.0", size=60 << 20)
    host.run(["mount", "-t", "tmpfs", "-o", "size=52m", "small", str(host.home)])
    ended = prepare(ssh_launch, "node1", code=1)
    assert "wheels are sent" not in ended.err
    assert re.match("failed: .*No space left on device", rows(ended)["node1"])
    assert folders(host) == []


def test_a_folder_that_other_users_can_change_is_refused(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    link = 'ln -s "$PWD" $0'
    made = ["chown 1234 $0", "chmod 770 $0", "rmdir $0; chown 1234 .; " + link, "rmdir $0; " + link]
    for host, commands in zip(quick, made, strict=True):
        script = f"mkdir -p $0 .local/o; cd .local/o; {commands}"
        host.run(["sh", "-ec", script, str(host.home / TOP)])
    table = rows(prepare(ssh_launch, "node1,node2,node3,node4", code=1))
    assert ["other users can write to" in table[host.name] for host in quick] == [True] * 3 + [False]
    assert version(quick[3]) == "1.0"


def test_a_download_here_ends_with_launch(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex, tmp_path: Path
):
    prepare(ssh_launch, "node3")  # versions are known
    index.open.clear()
    numbers = (signal.SIGINT, signal.SIGKILL)
    temporary = {number: tmp_path / number.name for number in numbers}
    started = {}
    for number, host in zip(numbers, quick, strict=False):
        temporary[number].mkdir()
        environ = {"TMPDIR": str(temporary[number])}
        started[number] = start(ssh_launch, host, "--offline", env=environ)

    def downloads(number: signal.Signals) -> bool:
        lines = [command_line(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()]
        return any("download" in line and str(temporary[number]) in line for line in lines)

    def has_ended(number: signal.Signals) -> bool:
        return not downloads(number)

    def wheels(number: signal.Signals) -> bool:
        return any(temporary[number].glob("tf-launcher-*"))

    soon(lambda: all(downloads(number) and wheels(number) for number in numbers))
    for number in numbers:
        ended = started[number].stop(number)
        soon(partial(has_ended, number), 5)
        if number == signal.SIGINT:
            assert ended.code == 130
            assert not wheels(number)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ('yes \'{"stage": "a"}\'', "sent 20000 lines"),
        ('echo \'{"state": "ready", "size": 1e999}\'', "sent a wrong answer"),
        ("yes | tr -d '\\n'", "failed: it printed no error"),
    ],
)
def test_a_hostile_host_gets_one_line(
    ssh_launch: Launch, hosts: list[LabHost], index: PackageIndex, does: str, says: str
):
    # The real one starts it, and it takes the place of our program.
    hosts[0].program("python3", f"#!/bin/sh\necho; echo '<tf-launcher program: ready>'\nexec 2>&-\n{does}\n")
    ended = prepare(ssh_launch, "node1", code=1)
    assert says in rows(ended)["node1"]
    assert len(ended.err.splitlines()) < 10


def test_a_host_name_with_shell_syntax(ssh_launch: Launch, tmp_path: Path):
    names = ("$(touch pwned)", "-oProxyCommand=touch pwned")
    (tmp_path / "lab.yaml").write_text(json.dumps({"hosts": [{"name": name} for name in names]}))
    assert prepare(ssh_launch, "lab.yaml", "--check", "anything", code=None).code in (1, 2)
    assert not list(tmp_path.rglob("pwned"))
