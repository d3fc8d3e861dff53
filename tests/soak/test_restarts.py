"""SIGKILL of tasks at random moments with restarts: no port is lost, no task lives twice, nothing is left.

``LAUNCH_SOAK=N`` repeats each case N times (``make soak``: 50, which is more than 1,000 kills here).
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.backends import Docker
from tests.conftest import Launch, Started
from tests.docker.conftest import alive
from tests.seeing import STUBS, Family, kill, last_run, named, soon
from tests.soak.test_kills import ELSEWHERE, HERE, TIMES, repeated
from tests.ssh.host import LabHost

CODE = (STUBS / "alone.py").read_text(encoding="utf-8")
#: Seconds that the tasks run; kills in that time.
SECONDS, KILLS = (12.0, 24) if os.environ.get("LAUNCH_SOAK") else (8.0, 12)
pytestmark = pytest.mark.timeout(240)


def command(restart: str, *options: str, seconds: float = SECONDS) -> list[str]:
    """A job of six workers and two ps, which end by themselves after so many seconds."""
    roles = ["--ps", "2", "--workers", "6", "--restarts", "1000", "--restart", restart, "--grace", "1"]
    return [*roles, *options, "-c", CODE, str(time.time() + seconds)]


def kill_some(started: Started, kill_task: Callable[[str, int], object], count: int) -> None:
    """Kill main processes of random tasks at random moments, in the time that the tasks run."""
    killed: set[tuple[str, int]] = set()
    until = time.monotonic() + SECONDS - 2
    while len(killed) < count and time.monotonic() < until:
        time.sleep(random.random() * 0.3)
        last = dict(re.findall(r"(?m)^(\S.*?) +\| up (\d+)", started.out))
        running = {(task, int(pid)) for task, pid in last.items()} - killed
        if running:
            victim = random.choice(sorted(running))
            kill_task(*victim)
            killed.add(victim)
    assert killed


def check(launch: Launch) -> None:
    """Every attempt had the port of its task, and none met another attempt."""
    run = last_run(launch)
    assert 97 not in {event["status"]["code"] for event in run.events if event["event"] == "TaskMoved"}
    for task in run.report["tasks"]:
        log = (run.path / "logs" / f"{task['task'].replace('/', '-')}.log").read_text()
        ports = {int(port) for port in re.findall(r"up \d+ (\d+)", log)}
        # A busy machine may start a ps only when the job is done.
        assert ports == {task["port"]} or (not ports and task["state"] == "stopped")
        assert [each["attempt"] for each in task["earlier"]] == [*range(1, task["attempt"])]


@pytest.mark.promise("kills with restarts: never two attempts, no port lost")
@repeated
@pytest.mark.parametrize("restart", ["task", "job"])
def test_here(launch: Launch, family: Family, restart: str, turn: int):
    started = launch.start(*command(restart)).up(8, 60)
    kill_some(started, lambda _, pid: kill(pid), KILLS if restart == "task" else 3)
    started.wait(90, code=0)
    check(launch)
    family.gone(HERE)


@pytest.mark.promise("the launcher, agent or watchdog is killed in a restart")
@repeated
@pytest.mark.parametrize("victim", ["launcher", "agent", "watchdog", "Ctrl-C"])
def test_the_end_in_a_restart(launch: Launch, family: Family, victim: str, turn: int):
    started = launch.start(*command(random.choice(["task", "job"]), seconds=60.0)).up(8, 60)
    kill_some(started, lambda _, pid: kill(pid), 3)
    time.sleep(random.random() * 2)
    if victim == "Ctrl-C":
        started.send(signal.SIGINT)
    elif victim == "launcher":
        started.kill()
    else:
        kill(soon(lambda: named(family.alive(), f"launch-{victim}"), 20)[0])
    assert started.wait(30).code == {"launcher": -signal.SIGKILL, "Ctrl-C": 130}.get(victim, 125)
    family.gone(HERE)


@pytest.mark.promise("kills with restarts: never two attempts, no port lost")
@pytest.mark.parametrize("turn", range(max(1, TIMES // 5)))
def test_on_hosts(ssh_launch: Launch, hosts: list[LabHost], turn: int):
    words = command("task", "--hosts", "node1:4,node2:4", seconds=600.0)
    started = ssh_launch.start(*words, cwd="/").up(8, 60)
    by_name = {host.name: host for host in hosts}

    def kill_task(label: str, pid: int) -> None:
        host = by_name[label.split()[0]]  # it is before the name of the task
        host.run(["sh", "-c", f"kill -KILL {pid} 2>/dev/null || true"])

    kill_some(started, kill_task, KILLS // 2)
    # The task that was killed last may not have been started again yet. Then its failure is that of the job.
    assert started.stop(signal.SIGTERM, 90).code in (143, 137)
    check(ssh_launch)


@pytest.mark.promise("kills with restarts: never two attempts, no port lost")
@pytest.mark.parametrize("turn", range(max(1, TIMES // 5)))
def test_in_containers(here: Docker, turn: int):
    started = here.start(*command("task", seconds=600.0)).up(8, 120)

    def kill_task(label: str, pid: int) -> None:
        for container in alive(here.engine, here.run.path.name):
            if label.replace("/", "-") in container:
                here.engine.tried("exec", container, "sh", "-c", f"kill -KILL {pid} 2>/dev/null || true")

    kill_some(started, kill_task, KILLS // 2)
    # The task that was killed last may not have been started again yet. Then its failure is that of the job.
    assert started.stop(signal.SIGTERM, 90).code in (143, 137)
    check(here.launch)
    soon(here.is_empty, ELSEWHERE, "containers are left")
