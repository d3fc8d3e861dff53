"""SIGKILL of launcher, agent, watchdog and task at start, run and stop: nothing is left, the code is right.

``LAUNCH_SOAK=N`` repeats each case N times (``make soak``: 50); without it each runs once.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.backends import Docker
from tests.conftest import Launch, Started
from tests.seeing import Family, kill, named, soon, stub
from tests.ssh.host import LabHost

TIMES = int(os.environ.get("LAUNCH_SOAK", "1"))
MOMENTS = ("start", "run", "stop")
VICTIMS = ("launcher", "agent", "watchdog", "task")
#: Seconds after which nothing may be left: on this machine, on hosts, in containers.
HERE, ELSEWHERE, CONTAINERS = 3.0, 30.0, 40.0
#: Children in sessions of their own, deaf to SIGTERM.
SCRIPT = "trap '' TERM; (setsid sleep 300 &); echo up $$; sleep 300 & wait; sleep 300"

repeated = pytest.mark.parametrize("turn", range(TIMES))
moments = pytest.mark.parametrize("moment", MOMENTS)
victims = pytest.mark.parametrize("victim", VICTIMS)
pytestmark = pytest.mark.timeout(240)


def until_moment(started: Started, moment: str, ready: Callable[[], bool], start: float = 0.4) -> None:
    """Wait for the moment.

    Args:
        started: the launch.
        moment: ``start``, ``restart``: a random moment in it; ``stop``: it has begun; else all tasks are up.
        ready: whether all tasks are up.
        start: the longest time after the start, in seconds.
    """
    if moment == "start":
        time.sleep(random.random() * start)
    elif moment == "restart":
        started.until(lambda it: "restart 1 of " in it.err, 90)
        time.sleep(random.random() * 1.5)
    else:
        started.until(lambda _: ready(), 90)
    if moment == "stop":
        started.send(signal.SIGINT)
        started.until(lambda it: "Ctrl-C" in it.err)


def codes(victim: str, moment: str) -> set[int]:
    """The exit codes that are right."""
    if victim == "launcher":
        return {-signal.SIGKILL}
    if moment == "stop":
        return {130}
    return {128 + signal.SIGKILL} if victim == "task" else {125}


@pytest.mark.promise("kills at random moments")
@repeated
@moments
@victims
def test_here(launch: Launch, family: Family, victim: str, moment: str, turn: int):
    words = stub("family", "ignore", "child", "setsid", "cleared", "sleep")
    if victim == "task":
        words = ["sh", "-c", SCRIPT]
    started = launch.start("--workers", "3", "--grace", "1", "--", *words)
    until_moment(
        started, moment, lambda: started.out.count("| up") == 3 if victim == "task" else family.ready() == 3
    )
    if victim == "launcher":
        started.kill()
    elif victim == "task":
        started.up(3, 60)
        kill(int(started.out.partition("| up ")[2].split()[0]))
    else:
        kill(soon(lambda: named(family.alive(), f"launch-{victim}"), 20)[0])
    assert started.wait(30).code in codes(victim, moment)
    family.gone(HERE)


@repeated
@pytest.mark.parametrize("moment", ["start", "run"])
def test_launcher_agent_and_watchdog_at_once(launch: Launch, family: Family, moment: str, turn: int):
    """None of them has time to notice the end of another; the next command kills what they left."""
    words = stub("family", "ignore", "child", "setsid", "sleep")
    started = launch.start("--workers", "3", "--grace", "1", "--", *words)
    victims = soon(lambda: both if len(both := agents(family)) == 2 else None, 20)
    if moment == "run":
        started.until(lambda _: family.ready() == 3, 60)
    pids = [started.pid, *victims]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    started.kill()
    ended = launch("ps", code=0)
    assert "died and left" in ended.err or not family.alive()
    family.gone(HERE)
    assert launch("ps").err.startswith("launch: nothing is running")


def agents(family: Family) -> list[int]:
    """The agent and the watchdog."""
    return [*named(family.alive(), "launch-agent"), *named(family.alive(), "launch-watchdog")]


@pytest.mark.promise("kills at random moments")
@repeated
@moments
@victims
def test_on_a_host(ssh_launch: Launch, hosts: list[LabHost], victim: str, moment: str, turn: int):
    started = ssh_launch.start(
        "--hosts", "node1,node2", "--workers", "2", "--grace", "1", "--", "sh", "-c", SCRIPT, cwd="/"
    )
    until_moment(started, moment, lambda: started.out.count("| up") == 2)
    if victim == "launcher":
        started.kill()
    elif moment == "start":
        started.up(2, 60)
    if victim == "task":
        before, _, after = started.out.partition("| up ")
        name, pid = before.splitlines()[-1].split()[0], after.split()[0]
        host = next(host for host in hosts if host.name == name)
        host.run(["sh", "-c", f"kill -KILL {pid} 2>/dev/null || true"])
    elif victim != "launcher":
        look = f"grep -l launch-{victim} /proc/[0-9]*/comm | cut -d/ -f3"
        pids = hosts[0].run(["sh", "-c", look]).stdout.decode().split()
        hosts[0].run(["sh", "-c", f"kill -KILL {' '.join(pids)} || true"])
    ended = started.wait(90)
    assert ended.code in codes(victim, moment) | ({137, 125} if victim == "task" else set()), ended.err
    # The fixture `lab` fails the test for each process that is left on a host.


@pytest.mark.promise("kills at random moments")
@repeated
@moments
@pytest.mark.parametrize("victim", ["launcher", "container"])
def test_in_containers(here: Docker, victim: str, moment: str, turn: int):
    started = here.start("--workers", "2", "--grace", "1", "--", "sh", "-c", SCRIPT)
    until_moment(started, moment, lambda: started.out.count("| up") == 2)
    if victim == "launcher":
        started.kill()
    else:
        started.up(2, 60)
        here.engine.tried("kill", f"tf-launcher-{here.run.path.name}-worker-1")
    ended = started.wait(60)
    right = {-9} if victim == "launcher" else {130} if moment == "stop" else {125, 137}
    assert ended.code in right, ended.err
    soon(here.is_empty, CONTAINERS, "containers are left")
    assert here.launch("clean", timeout=60).code == 0
