"""A launcher that is suspended (SIGSTOP, a closed lid), and ``launch -d`` while it connects."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.conftest import Launch
from tests.seeing import last_run, soon, stopped
from tests.ssh.host import LabHost
from tests.ssh.lab import ONE, TWO

pytestmark = pytest.mark.timeout(360)
SCRIPT = "while :; do echo up; sleep 0.3; done"


def test_the_time_limit_with_an_agent_that_is_suspended(ssh_launch: Launch, hosts: list[LabHost]):
    words = [*TWO, "--timeout", "6", "--grace", "1", "--", "sh", "-c", SCRIPT]
    started = ssh_launch.start(*words, cwd="/").up(4)
    keepers = [it.pid for it in hosts[0].processes("launch-agent", "launch-watchdog")]
    hosts[0].kill(signal.SIGSTOP, *keepers)
    started.until(lambda it: "the time limit of 6s is over" in it.err)
    began = time.monotonic()
    assert "host node1 is lost: its agent did not answer in 4s" in started.wait(60, code=124).err
    assert time.monotonic() - began < 1 + 3 + 10
    hosts[0].kill(signal.SIGCONT, *keepers)  # the agent ends its tasks and itself


@pytest.mark.promise("hosts are lost when the launcher is suspended for longer than its lease")
def test_longer_than_the_lease(ssh_launch: Launch, hosts: list[LabHost]):
    started = ssh_launch.start(*TWO, "--lease", "6", "--", "sh", "-c", SCRIPT, cwd="/")
    _suspend(started.pid, 9.0, lambda: started.out.count("| up") >= 4)
    ended = started.wait(60, code=125)
    assert all(f"host {host} is lost: " in ended.err for host in ("node1", "node2")), ended.err


@pytest.mark.promise("tasks go on when the launcher is suspended for less than its lease")
def test_shorter_than_the_lease(ssh_launch: Launch, hosts: list[LabHost]):
    """The tasks go on, in the background, too, and no line is lost."""
    ssh_launch("-d", *ONE, "--", "sh", "-c", SCRIPT, cwd="/", code=0)
    attached = ssh_launch.start("attach")
    pid = json.loads((last_run(ssh_launch).path / "launcher.json").read_text())["pid"]
    _suspend(pid, 6.0, lambda: attached.out.count("| up") >= 4)
    before = attached.out.count("| up")
    attached.until(lambda it: it.out.count("| up") > before + 20)
    ssh_launch.here("stop", code=0)
    assert "is lost" not in attached.wait(60, code=143).out


def test_ctrl_c_before_all_tasks_run(ssh_launch: Launch, hosts: list[LabHost]):
    hosts[0].cut()
    started = ssh_launch.start("-d", "--hosts", "node1", "--", "sh", "-c", SCRIPT, cwd="/")
    started.until(lambda it: "waiting for node1" in it.err)
    assert started.stop(signal.SIGINT, 30, code=130).out == ""


def _suspend(pid: int, seconds: float, when: Callable[[], bool]) -> None:
    soon(when)
    os.kill(pid, signal.SIGSTOP)
    soon(lambda: stopped(pid))
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
