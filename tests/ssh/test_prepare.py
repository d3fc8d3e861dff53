"""``launch prepare`` on real hosts: environments, faults, and what is left when it is interrupted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Ended, Launch
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


def prepare(launch: Launch, hosts: str, *args: str, timeout: float = 120.0) -> Ended:
    """Run it in the folder with ``requirements.txt``."""
    return launch("prepare", "--hosts", hosts, *args, cwd=launch.home.parent, timeout=timeout)


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
    if os.geteuid() != 0:
        pytest.skip("needs root: hosts made of network namespaces")
    old = oldest_python()
    if old is None:
        pytest.skip("needs Python 3.8")
    show: list[str | os.PathLike[str]] = [sys.prefix, sys.base_prefix, Path(__file__).parents[2]]
    with Lab(8, show) as lab, PackageIndex(tmp_path / "wheels", lab.address) as index:
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

        ended = prepare(launch, names)
        print(ended.err, ended.out)
        assert ended.code == 1
        good = [hosts[number - 1] for number in (1, 2, 5, 6, 8)]
        assert [version(host) for host in good] == ["1.0"] * 5
        table = rows(ended)
        assert list(table) == names.split(",")
        assert all(re.fullmatch(r"3\.\d+ +[\d.]+[KM] +ready", table[host.name]) for host in good)
        assert re.search(r"failed: Python 3.8: .* does not satisfy Python>=3.9", table["node3"])
        assert "failed: its disk is full: 1 MB free, about 50 MB are needed" in table["node4"]
        assert "host key" in table["node7"] and "has changed" in table["node7"]
        steps = re.findall(r"\] node5: (sending|installing) ", ended.err)
        assert steps == ["installing", "sending", "installing"]
        assert "[8/8]" in ended.err
        assert PASSWORD not in ended.err + ended.out

        seen = len(index.requests)
        again = prepare(launch, "node1,node2,node5,node6,node8")
        assert (again.code, len(index.requests)) == (0, seen), again.err
        check = prepare(launch, names, "--check")
        assert check.code == 1 and rows(check)["node1"].endswith("ready")
        assert "failed: " in rows(check)["node7"]


def test_no_password_is_on_a_command_line(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex, tmp_path: Path
):
    index.refused.add(quick[1].address)
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            seen.update(command_line(int(pid)) for pid in os.listdir("/proc") if pid.isdigit())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        ended = prepare(ssh_launch, "node1,node2")
    finally:
        done.set()
        looking.join()
    assert ended.code == 0, ended.err
    assert any("pip install" in line for line in seen)
    assert not [line for line in seen if PASSWORD in line]
    assert PASSWORD not in ended.err + ended.out
    found = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    found += [path for host in quick[:2] for path in host.there(host.home).rglob("*") if path.is_file()]
    holding = [path for path in found if PASSWORD.encode() in path.read_bytes()]
    assert not holding


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
    ended = ssh_launch("prepare", "--hosts", "node1", cwd=tmp_path, env=own, timeout=120, code=1)
    assert "uv's own settings" in ended.err and "pip" in ended.err
    assert not index.requests

    ended = ssh_launch("prepare", "--hosts", "node1", cwd=tmp_path, env=here, timeout=120, code=0)
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
    assert prepare(ssh_launch, "node1,node2", "--check").code == 1
    assert not quick[1].there(looked).exists(), "no Python is started that is not needed"
    done = prepare(ssh_launch, "node1")
    assert done.code == 0 and "ready: launch --hosts node1 --venv default --sync . PROGRAM\n" in done.err
    first = folders(host)
    python = str(host.home / TOP / "default/bin/python")
    host.run(["uv", "pip", "uninstall", "--python", python, "tinier"])
    check = prepare(ssh_launch, "node1,node2", "--check")
    assert check.code == 1
    assert rows(check)["node1"].endswith("changed") and rows(check)["node2"].endswith("missing")
    assert prepare(ssh_launch, "node1").code == 0
    assert version(host, module="tinier") == "1.0"

    # A new version is taken only if the user asks for it; the old environment stays for those who run in it.
    index.add("tinier", "2.0")
    assert prepare(ssh_launch, "node1").code == 0
    assert version(host, module="tinier") == "1.0"
    assert prepare(ssh_launch, "node1", "--upgrade").code == 0
    assert version(host, module="tinier") == "2.0"
    assert set(first) < set(folders(host))
    assert prepare(ssh_launch, "node1", "--name", "other").code == 0
    assert version(host, "other", "tinier") == "2.0"

    months = str(40 * 24 * 3600)
    code = f"import os, sys, time; t = time.time() - {months}; [os.utime(p, (t, t)) for p in sys.argv[1:]]"
    paths = [str(host.home / TOP / name / "environment.json") for name in folders(host)]
    host.run(["python3", "-c", code, *paths])
    host.there(host.home / TOP / "other/environment.json").touch()  # as a run does
    assert prepare_clean(ssh_launch, "node1").code == 0
    assert folders(host) == [os.readlink(host.there(host.home / TOP / "other"))]


def prepare_clean(launch: Launch, hosts: str) -> Ended:
    """Remove what was not used."""
    return launch("prepare", "--hosts", hosts, "--clean", timeout=60)


@pytest.mark.promise("`launch prepare` that is killed, cut off or started twice")
def test_two_at_once_make_one_environment(ssh_launch: Launch, quick: list[LabHost], index: PackageIndex):
    index.open.clear()
    both = [ssh_launch.start("prepare", "--hosts", "node1", cwd=ssh_launch.home.parent) for _ in range(2)]
    soon(lambda: any("/files/" in path for _, path in index.requests))
    index.open.set()
    assert [started.wait(120).code for started in both] == [0, 0]
    assert version(quick[0]) == "1.0"
    assert len(folders(quick[0])) == 1


@pytest.mark.promise("`launch prepare` that is killed, cut off or started twice")
def test_an_interrupted_one_leaves_no_environment(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    assert prepare(ssh_launch, "node4").code == 0  # versions are known
    index.open.clear()
    hosts, folder = quick[:3], ssh_launch.home.parent
    killed, stopped, cut = [ssh_launch.start("prepare", "--hosts", host.name, cwd=folder) for host in hosts]
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
    assert prepare(ssh_launch, "node1,node2,node3").code == 0
    assert [version(host) for host in hosts] == ["1.0"] * 3


def test_one_interrupted_while_it_sends_leaves_no_environment(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    assert prepare(ssh_launch, "node4").code == 0  # versions are known
    index.open.clear()
    hosts, arguments = quick[:2], ("prepare", "--offline", "--hosts")
    killed, cut = [ssh_launch.start(*arguments, host.name, cwd=ssh_launch.home.parent) for host in hosts]
    for started in (killed, cut):
        started.until(lambda started: "downloading wheels here" in started.err)
    for host in hosts:
        host.signal_sshd_sessions("STOP")
    index.open.set()
    for started in (killed, cut):
        started.until(lambda started: "sending 2 wheels" in started.err)
    killed.kill()
    hosts[0].signal_sshd_sessions("CONT")
    hosts[1].kill_sshd_sessions()
    ended = cut.wait(60, code=1)
    assert rows(ended)["node2"] == "failed: the connection broke (the other side closed it)"
    soon(lambda: not any(host.processes() for host in hosts), 30)
    assert [folders(host) for host in hosts] == [[]] * 2
    assert prepare(ssh_launch, "node1,node2", "--offline").code == 0
    assert [version(host) for host in hosts] == ["1.0"] * 2


def test_what_a_killed_program_left_is_removed(ssh_launch: Launch, quick: list[LabHost], index: PackageIndex):
    host = quick[0]
    assert prepare(ssh_launch, "node2").code == 0  # versions are known
    index.open.clear()
    started = ssh_launch.start("prepare", "--hosts", "node1", cwd=ssh_launch.home.parent)
    soon(lambda: any(address == host.address for address, _ in index.requests))
    host.run(["pkill", "-KILL", "python3"])
    ended = started.wait(60)
    assert ended.code == 1 and "node1: failed: " in ended.err
    index.open.set()
    soon(lambda: not host.processes(), 30)
    left = folders(host)
    assert len(left) == 1
    assert prepare(ssh_launch, "node1").code == 0
    assert version(host) == "1.0"
    assert len(folders(host)) == 1 and folders(host) != left


@pytest.mark.slow
def test_a_host_without_uv_has_pip(ssh_launch: Launch, hosts: list[LabHost], index: PackageIndex):
    hosts[0].program("uv", None)
    if hosts[0].run(["python3", "-c", "import ensurepip"], check=False).returncode:
        pytest.skip("needs python3-venv")
    hosts[0].expected += [".local", ".cache"]
    ended = prepare(ssh_launch, "node1", "--offline", timeout=200)
    assert ended.code == 0, ended.err
    assert {address for address, _ in index.requests}.isdisjoint({hosts[0].address})
    assert version(hosts[0]) == "1.0"


@pytest.mark.slow
def test_a_host_without_an_answer_of_the_index_gets_wheels_after_two_attempts(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    index.silent.add(quick[0].address)
    ended = prepare(ssh_launch, "node1")
    assert ended.code == 0 and "so wheels are sent" in ended.err, ended.err
    attempts = [path for address, path in index.requests if address == quick[0].address]
    assert max(map(attempts.count, attempts)) == 2
    assert version(quick[0]) == "1.0"


def test_a_disk_that_gets_full_gets_no_wheels(ssh_launch: Launch, quick: list[LabHost], index: PackageIndex):
    host = quick[0]
    index.add("tinier", "2.0", size=60 << 20)
    host.run(["mount", "-t", "tmpfs", "-o", "size=52m", "small", str(host.home)])
    ended = prepare(ssh_launch, "node1")
    assert ended.code == 1 and "wheel" not in ended.err, ended.err
    assert rows(ended)["node1"].startswith("failed: ") and "No space left on device" in rows(ended)["node1"]
    assert folders(host) == []


def test_a_folder_that_other_users_can_change_is_refused(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    link = f'ln -s "$PWD" {TOP}'
    made = [
        f"chown 1234 {TOP}",
        f"chmod 770 {TOP}",
        f"rmdir {TOP}; chown 1234 .; {link}",
        f"rmdir {TOP}; {link}",
    ]
    for host, commands in zip(quick, made, strict=True):
        host.run(["sh", "-ec", f"mkdir -p {TOP} .local/o; cd .local/o; {commands}".replace(TOP, f"~/{TOP}")])
    table = rows(prepare(ssh_launch, "node1,node2,node3,node4"))
    assert ["other users can write to" in table[host.name] for host in quick] == [True] * 3 + [False]
    assert version(quick[3]) == "1.0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_download_here_ends_with_launch(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex, tmp_path: Path, number: signal.Signals
):
    assert prepare(ssh_launch, "node2").code == 0  # versions are known
    index.open.clear()
    index.requests.clear()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    arguments = ("prepare", "--hosts", "node1", "--offline")
    started = ssh_launch.start(*arguments, cwd=tmp_path, env={"TMPDIR": str(temporary)})

    def downloads() -> bool:
        lines = [command_line(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()]
        return any("download" in line and str(temporary) in line for line in lines)

    def wheels() -> bool:
        return any(temporary.glob("tf-launcher-*"))

    soon(lambda: any("/files/" in path for _, path in index.requests))
    assert downloads() and wheels()
    ended = started.stop(number)
    soon(lambda: not downloads(), 5)
    if number == signal.SIGINT:
        assert ended.code == 130
        assert not wheels()


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
    ended = prepare(ssh_launch, "node1")
    assert ended.code == 1, ended.err
    assert says in rows(ended)["node1"]
    assert len(ended.err.splitlines()) < 10


def test_an_unknown_host_key_is_refused_or_accepted_as_the_user_says(
    ssh_launch: Launch, quick: list[LabHost], index: PackageIndex
):
    known = ssh_launch.home / ".ssh/known_hosts"
    known.write_text("")
    ended = prepare(ssh_launch, "node1,node2", "--check")
    assert ended.code == 1 and ended.err.count("is not known (") == 2
    config = ssh_launch.home / ".ssh/config"
    config.write_text("Host node1\n  StrictHostKeyChecking accept-new\n" + config.read_text())
    assert rows(prepare(ssh_launch, "node1", "--check"))["node1"] == "missing"
    assert known.read_text().count("\n") == 1


def test_a_host_name_with_shell_syntax(ssh_launch: Launch, tmp_path: Path):
    (tmp_path / "lab.yaml").write_text(
        'hosts: [{name: "$(touch pwned)"}, {name: "-oProxyCommand=touch pwned"}]\n'
    )
    assert prepare(ssh_launch, str(tmp_path / "lab.yaml"), "--check", "anything").code in (1, 2)
    assert not list(tmp_path.rglob("pwned"))
