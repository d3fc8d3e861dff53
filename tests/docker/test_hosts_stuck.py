"""An engine on another machine that hangs, or is killed: the agent in its container ends its tasks."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.host_engines import DockerHost, docker_on
from tests.ssh.host import until

#: Says that it is up, and does not end by itself.
LASTING = ("--no-mount", "--lease", "6", "--", "sh", "-c", "echo up; exec sleep 600")
#: Seconds for what ends by itself, on a busy machine.
SOON = 60


@pytest.fixture
def stuck(hosts: list[DockerHost]) -> Iterator[DockerHost]:
    """The first of the hosts; its engine goes on after the test, and no longer sticks."""
    yield hosts[0]
    hosts[0].go_on()
    hosts[0].host.empty()


def nothing_runs(hosts: list[DockerHost]) -> None:
    """Wait until no process is left in the containers of all hosts."""
    until(lambda: not any(host.inside() for host in hosts), SOON, "nothing runs in the containers")


def test_while_containers_start(
    stuck: DockerHost, hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    """What the engine still makes of a container ends by itself: its stdin is closed."""
    stuck.stick_at("run")
    started = launch.start(*docker_on(hostfile, "--workers", "4", *LASTING), cwd=tmp_path)
    started.until(lambda it: "waiting for node1: its engine to start the container" in it.err, SOON)
    started.send(signal.SIGINT)
    assert started.wait(40).code == 130
    stuck.go_on()
    until(lambda: not stuck.containers(), SOON, "no container")


@pytest.mark.promise("containers on hosts: engine killed, stopped by SIGSTOP")
def test_while_tasks_run(
    stuck: DockerHost, hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    """They go on for the lease, as where a connection is lost."""
    started = launch.start(*docker_on(hostfile, "--workers", "4", *LASTING), cwd=tmp_path)
    started.until(lambda it: it.out.count("up") == 4, 40)
    stuck.stick()
    started.until(lambda it: "launch: node1: connection lost (no answer for " in it.err, SOON)
    ended = started.wait(SOON)
    assert ended.code == 125
    assert "host node1 is lost: no answer for " in ended.err
    nothing_runs(hosts)


@pytest.mark.promise("containers on hosts: engine killed, stopped by SIGSTOP")
def test_one_that_is_killed(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    """Its container outlives it for the lease. Once it is back the container is removed."""
    started = launch.start(*docker_on(hostfile, "--workers", "4", *LASTING), cwd=tmp_path)
    started.until(lambda it: it.out.count("up") == 4, 40)
    hosts[0].kill()
    try:
        ended = started.wait(60)
        nothing_runs(hosts)
    finally:
        hosts[0].start()
    assert ended.code == 125
    # The command is told in one of two ways: data that the engine has not read may be left.
    assert re.search("host node1 is lost: .*its Docker engine has gone", ended.err)
    until(lambda: not hosts[0].containers(), 20, "it is not among its containers")
