"""Connections over SSH are lost again and again, where a login takes seconds: the job goes on every time.

``LAUNCH_SOAK=N`` loses each connection N times, and has logins of five seconds, too.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack

import pytest

from tests.conftest import Launch, Started
from tests.ssh.host import LabHost

TIMES = int(os.environ.get("LAUNCH_SOAK", "1"))
#: What takes how many seconds, on each host: the server, before it lets a user in, or the login shell.
SLOW = [(("server", 0), ("server", 2), ("shell", 2))]
if TIMES > 1:
    SLOW += [(("server", 5), ("shell", 5), ("shell", 0))]
#: Seconds of a job until its first loss, and for each further one.
_START, _EACH = 60, 30
SCRIPT = "echo up; until test -e ~/end; do sleep 0.1; done"


def make_slow(host: LabHost, what: str, seconds: int) -> ExitStack:
    """Make each login take so long, until the returned context ends."""
    stack = ExitStack()
    if what == "shell":
        host.start_up(f"sleep {seconds}")
        return stack
    keys = host.folder / "etc/authorized_keys"
    host.program("slow-keys", f"#!/bin/sh\nsleep {seconds}\nexec cat {keys}\n")
    by_command = "AuthorizedKeysCommand /usr/bin/slow-keys\nAuthorizedKeysCommandUser root"
    stack.enter_context(host.sshd_with(f"AuthorizedKeysFile none\n{by_command}"))
    return stack


@pytest.mark.promise("lost connections where logins take seconds")
@pytest.mark.timeout(_START + TIMES * _EACH)
@pytest.mark.parametrize("slow", SLOW, ids=str)
def test_a_job_outlives_lost_connections(
    ssh_launch: Launch, hosts: list[LabHost], slow: tuple[tuple[str, int], ...]
):
    with ExitStack() as stack:
        for host, (what, seconds) in zip(hosts, slow, strict=False):
            stack.enter_context(make_slow(host, what, seconds))
        used = hosts[: len(slow)]
        names = ",".join(host.name for host in used)
        words = ["--hosts", names, "--workers", str(len(used)), "--", "sh", "-c", SCRIPT]
        started = ssh_launch.start(*words, cwd="/").up(len(used), _START)
        lost, until = dict.fromkeys((host.name for host in used), 0), time.monotonic() + TIMES * _EACH
        while min(lost.values()) < TIMES:
            assert time.monotonic() < until and started.process.poll() is None, started.err
            time.sleep(random.random())
            for host in used:
                if lost[host.name] < TIMES and _returns(started, host) == lost[host.name]:
                    assert host.kill_sshd_sessions()
                    lost[host.name] += 1
        started.until(lambda it: all(_returns(it, host) == TIMES for host in used), _EACH)
        for host in used:
            host.expected.append("end")
            (host.home / "end").touch()
        started.wait(60, code=0)
        print(f" [{lost}]", end="")


def _returns(started: Started, host: LabHost) -> int:
    """How often a host was connected to again."""
    return started.err.count(f"{host.name}: connected again")
