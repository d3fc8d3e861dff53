"""The lab does what it says: else nothing that is shown on it means anything."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ssh.host import TIME_LIMIT, LabHost, until
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(240)


def ssh(lab: Lab, host: LabHost, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """OpenSSH, not what the launcher uses."""
    argv = ["ssh", "-F", str(lab.ssh_config), "-o", "KexAlgorithms=curve25519-sha256", *options]
    return subprocess.run([*argv, host.name, command], capture_output=True, text=True, timeout=60)


@pytest.fixture
def echo(lab: Lab, hosts: list[LabHost]) -> Iterator[subprocess.Popen[bytes]]:
    """A ``cat`` on the first host."""
    argv = ["ssh", "-F", str(lab.ssh_config), hosts[0].name, "exec cat"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert answer(process, b"one\n", TIME_LIMIT) == b"one\n"
    yield process
    process.kill()
    process.communicate()


def answer(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
    """What comes back in time for a line that is sent."""
    assert process.stdin and process.stdout
    process.stdin.write(line)
    return received(process, seconds)


def received(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """What comes in time."""
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return os.read(process.stdout.fileno(), 1000) if ready else None


# What a host is


def test_each_host_accepts_a_login_and_has_its_own_name(lab: Lab, hosts: list[LabHost]):
    for host in hosts:
        done = ssh(lab, host, "hostname; whoami; pwd; echo $HOME; echo ~")
        name = host.name
        assert done.stdout.split() == [name, host.user, *[str(host.home)] * 3], done.stderr
    assert len({host.address for host in hosts}) == len(hosts) == 4


def test_a_host_has_processes_and_files_of_its_own(lab: Lab, hosts: list[LabHost]):
    started = ssh(lab, hosts[0], "sleep 600 >/dev/null 2>&1 & echo $!; touch ~/mine /tmp/mine")
    pid = int(started.stdout.split()[0])
    # Its shell has forked it, but it may not have called exec yet.
    until(lambda: (pid, "sleep 600") in hosts[0].processes(), TIME_LIMIT, "the sleeper sleeps")
    assert hosts[0].files() == ["/tmp/mine", f"{hosts[0].home}/mine"]
    files = [f"file {path}" for path in hosts[0].files()]
    assert hosts[0].left() == [f"process {pid} (sleep 600)", *files]
    assert all(host.left() == [] for host in hosts[1:])
    assert not Path("/tmp/mine").exists()
    hosts[0].run(["kill", str(pid)])
    # Its first process reaps what it inherited, as an init does.
    until(lambda: not hosts[0].processes(), TIME_LIMIT, "the sleeper is gone, not even a zombie")
    hosts[0].empty()
    assert hosts[0].left() == []


# What can happen to it


def test_cut_is_silence_and_restore_brings_all_of_it(echo: subprocess.Popen[bytes], hosts: list[LabHost]):
    hosts[0].cut()
    assert answer(echo, b"two\n", 1.0) is None
    assert not hosts[0].answers()
    until(hosts[1].answers, TIME_LIMIT, "the other host answers")
    assert echo.poll() is None
    hosts[0].restore()
    # As long again as it was cut, at most: so TCP tries again.
    assert received(echo, 60) == b"two\n"
    until(hosts[0].answers, TIME_LIMIT, "it answers again")


def test_healing_undoes_everything_at_once(lab: Lab, hosts: list[LabHost]):
    host = hosts[0]
    ssh(lab, host, "mkdir -p deep/er && touch deep/er/x; ln -s / link; setsid sleep 600 >/dev/null 2>&1 &")
    host.banner("hello")
    host.set_shell("/bin/csh")
    host.no_python()
    host.slow(delay=100)
    host.new_host_key()
    host.read_only_home()
    host.fill_disk()
    host.cut()
    lab.heal()
    assert host.left() == []
    assert host.files() == []
    done = ssh(lab, host, "python3 -c 'import os; print(os.environ[\"SHELL\"])' && touch x && rm x")
    assert (done.stdout, done.stderr, done.returncode) == ("/bin/bash\n", "", 0)


TOP = Path(__file__).parents[2]
#: Networks of labs whose end is looked at: no other lab gets one of their numbers right after it.
ASIDE = range(120 + os.getpid() % 100, 255)


def test_nothing_stays_when_its_owner_is_killed():
    code = (
        f"import time; from tests.ssh.lab import Lab; lab = Lab(2, numbers={ASIDE})\n"
        "lab.hosts[0].run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 &'])\n"
        "print(lab.folder, *[host.pid for host in lab.hosts if host.pid], flush=True); time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=TOP)
    assert owner.stdout
    folder, *pids = owner.stdout.readline().decode().split()
    assert Path(folder).exists()
    assert all(Path(f"/proc/{pid}/exe").exists() for pid in pids)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    until(lambda: not Path(folder).exists(), TIME_LIMIT, f"{folder} is gone")
    until(
        lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids),
        TIME_LIMIT,
        "its processes are gone",
    )
