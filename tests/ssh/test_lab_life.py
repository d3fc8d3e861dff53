"""A lab as a whole: it comes up, meets no other, and whatever happens leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.seeing import alive
from tests.ssh import lab as lab_module
from tests.ssh.host import PATIENCE, LabHost, until
from tests.ssh.lab import Lab
from tests.ssh.test_lab import needs_spaces, ssh

pytestmark = pytest.mark.timeout(240)
TOP = Path(__file__).parents[2]
#: Networks of labs whose end is looked at: nobody else gets one of their numbers right after it.
ASIDE = range(120 + os.getpid() % 100, 255)


def _gone(lab: Lab) -> bool:
    pids = [host.pid for host in lab.hosts if host.pid]
    alive = any(Path(f"/proc/{pid}").exists() for pid in pids)
    return not (lab.folder.exists() or lab.subnet + "." in _addresses() or alive)


def test_two_labs_do_not_meet_and_leave_nothing(lab: Lab):
    with Lab(2, numbers=ASIDE) as other:
        assert other.subnet != lab.subnet
        assert ssh(other, other.hosts[1], "hostname").returncode == 0
        assert not _gone(other)
    until(lambda: _gone(other), PATIENCE, "the other lab is gone")
    assert ssh(lab, lab.hosts[1], "hostname").returncode == 0


@needs_spaces
def test_many_hosts():
    with Lab(32) as lab:
        assert lab.hosts[31].run(["hostname"]).stdout == b"node32\n"
        assert len({host.address for host in lab.hosts}) == 32


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
    until(lambda: not Path(folder).exists(), PATIENCE, f"{folder} is gone")
    until(
        lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), PATIENCE, "its processes are gone"
    )


@needs_spaces
def test_a_warden_that_is_killed_takes_all_but_the_folder_which_the_next_lab_removes():
    with Lab(2, numbers=ASIDE) as lab:
        warden = _parent(_parent(lab.hosts[0].pid))
        os.kill(warden, signal.SIGKILL)
        pids = [host.pid for host in lab.hosts]
        until(lambda: not any(map(alive, (warden, *pids))), PATIENCE, "the hosts are gone")
        assert lab.folder.exists()
        until(lambda: lab.subnet + "." not in _addresses(), PATIENCE, "its cable is gone")
        (lab.folder / "stale").touch()
        with Lab(1, numbers=[lab.number]) as other:
            assert other.folder == lab.folder
            assert not (other.folder / "stale").exists()
            assert ssh(other, other.hosts[0], "exit 7").returncode == 7


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _addresses() -> str:
    return subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, timeout=60).stdout


#: Run by somebody who is not root: what such a lab can do.
_PLAIN = """
import json, subprocess, sys, time
from tests.ssh.host import NeedsRoot, until
from tests.ssh.lab import Lab

def ssh(command):
    argv = ["ssh", "-F", str(lab.ssh_config), "node2", command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 255), done
    return done.stdout.split()

lab = Lab(2)
one, two = lab.hosts
home, pid = ssh("pwd; sleep 600 >/dev/null 2>&1 & echo $!; touch x")
assert home == str(two.home) == ssh("echo $HOME")[0], home
# Its shell has forked it, but it may not have called exec yet.
until(lambda: (int(pid), "sleep 600") in two.processes(), 30, "the sleeper sleeps")
assert two.left() == [f"process {pid} (sleep 600)", f"file {two.home}/x"], two.left()
assert one.left() == []
two.set_shell("/bin/csh")
two.banner("hello")
assert ssh("echo $shell:t")[-1] == "csh"
assert "hello" in ssh("true")
two.new_host_key()
assert ssh("echo hi") == []
try:
    two.cut()
except NeedsRoot as error:
    assert str(error) == "node2.cut() needs root: network namespaces"
lab.heal()
assert two.left() == []
assert ssh("echo hi; sleep 600 >/dev/null 2>&1 &") == ["hi"]
print(lab.folder, flush=True)
time.sleep(600)
"""


@needs_spaces
def test_a_lab_of_somebody_else_than_root(hosts: list[LabHost]):
    """Run on a host of the lab: there is an account for it; killed, it leaves nothing."""
    with open(hosts[0].folder / "etc/passwd", "a") as accounts:
        accounts.write("dev:x:12345:12345:dev:/:/bin/bash\n")
    code = hosts[0].folder / "tmp/code"
    for name in ("launcher/__init__.py", "launcher/job.py", "tests/ssh"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        if (TOP / name).is_dir():
            # Others may be compiling their modules: what Python writes meanwhile comes and goes.
            shutil.copytree(TOP / name, code / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(TOP / name, code / name)
    user = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    # Once more: what ends it with us does not outlive a change of users.
    user += ["setpriv", "--pdeathsig", "KILL"]
    python = ["env", "PYTHONPATH=/tmp/code", "python3", "-B", "-c", _PLAIN]
    with hosts[0].start([*user, *python]) as lab:
        assert lab.stdout and lab.stderr
        folder = lab.stdout.readline().decode().strip()
        lab.kill()
        assert lab.stderr.read().decode() == ""
    until(lambda: not Path(folder).exists(), PATIENCE, f"{folder} is gone")
    until(lambda: not hosts[0].processes(), PATIENCE, "its processes are gone")
    until(lambda: hosts[0].sshds() == hosts[0].sshd(), PATIENCE, "its sshds are gone")
    shutil.rmtree(code)


@needs_spaces
def test_a_lab_that_can_not_be_built_leaves_nothing_and_says_why():
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in ASIDE:
            asked.append(number)
            yield number

    with pytest.raises(RuntimeError, match="no lab: a host did not come up: .*no-such-folder"):
        Lab(2, show=["/tmp/no-such-folder"], numbers=numbers())
    assert not Path(f"/var/tmp/tf-launcher-lab-{os.getuid()}-{asked[-1]}").exists()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(lab_module, "SEARCH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install .*iproute2.*openssh-client"):
        Lab(1)
