"""A lab as a whole: it comes up, meets no other, and whatever happens leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.seeing import alive
from tests.ssh.host import PATIENCE, until
from tests.ssh.lab import Lab
from tests.ssh.test_lab import ssh

pytestmark = pytest.mark.timeout(240)
TOP = Path(__file__).parents[2]
#: Networks of labs whose end is looked at: nobody else gets one of their numbers right after it.
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
    until(lambda: not Path(folder).exists(), PATIENCE, f"{folder} is gone")
    until(
        lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), PATIENCE, "its processes are gone"
    )


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


def test_a_lab_that_can_not_be_built_leaves_nothing_and_says_why():
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in ASIDE:
            asked.append(number)
            yield number

    with pytest.raises(RuntimeError, match="no lab: a host did not come up: .*no-such-folder"):
        Lab(2, show=["/tmp/no-such-folder"], numbers=numbers())
    assert not Path(f"/var/tmp/tf-launcher-lab-{os.getuid()}-{asked[-1]}").exists()
