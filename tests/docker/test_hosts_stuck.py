"""An engine on another machine that hangs, or dies: that is said, it is not waited for without end, and what
runs in its container is ended all the same."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.host_engines import DockerHost, words
from tests.ssh.host import until

#: Says that it is up, and does not end by itself.
LASTING = ("--no-mount", "--", "sh", "-c", "echo up; exec sleep 600")
#: Seconds for a stuck engine to be noticed.
NOTICED = 60


@pytest.fixture
def stuck(hosts: list[DockerHost]) -> Iterator[DockerHost]:
    """The first of the hosts; its engine goes on after the test, and no longer sticks."""
    yield hosts[0]
    hosts[0].go_on()
    hosts[0].host.empty()


def test_while_containers_start(
    stuck: DockerHost, hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    """What it makes later of a container that nobody wants any more is removed when somebody looks."""
    stuck.stick_at("run")
    started = launch.start(*words(hostfile, "--workers", "4", *LASTING), cwd=tmp_path)
    said = "launch: node1: its Docker engine does not answer; it has not started the container yet"
    started.until(lambda it: said in it.err, NOTICED)
    started.send(signal.SIGINT)
    started.until(lambda it: "waiting for the agent on node1 to close" in it.err, 40)
    started.send(signal.SIGINT)
    ended = started.wait(40)
    assert ended.code == 130
    assert "node1: what it may still make of the container is removed by the next launch there" in ended.err
    stuck.go_on()
    until(
        lambda: launch("clean", "--hosts", hostfile, timeout=40).code == 0 and not stuck.containers(),
        60,
        "it",
    )


def test_while_tasks_run(
    stuck: DockerHost, hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    """They go on for the lease, as where a connection is lost."""
    started = launch.start(*words(hostfile, "--workers", "4", "--lease", "6", *LASTING), cwd=tmp_path)
    started.until(lambda it: it.out.count("up") == 4, 40)
    assert [len(one.inside()) for one in hosts] == [4, 4]
    stuck.stick()
    since = time.monotonic()
    said = "launch: node1: its Docker engine does not answer; its tasks go on, unseen; waiting for "
    started.until(lambda it: said in it.err, NOTICED)
    noticed = time.monotonic() - since
    ended = started.wait(40)
    print(f"noticed after {noticed:.1f} s, over after {time.monotonic() - since:.1f} s\n{ended.err}")
    assert ended.code == 125
    assert "host node1 is lost: its Docker engine has not answered for " in ended.err
    assert "all that ran in its container was ended without it" in ended.err
    assert [one.inside() for one in hosts] == [[], []]


def test_while_tasks_are_stopped(
    stuck: DockerHost, hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    started = launch.start(*words(hostfile, "--workers", "4", "--grace", "2", *LASTING), cwd=tmp_path)
    started.until(lambda it: it.out.count("up") == 4, 40)
    stuck.stick()
    since = time.monotonic()
    started.send(signal.SIGINT)
    ended = started.wait(60)
    print(f"over after {time.monotonic() - since:.1f} s\n{ended.err}")
    assert ended.code == 130
    # Those of the other host may still be ending when that is said.
    assert re.search(r"waiting for worker/0, worker/1(, worker/[23])* to end", ended.err)
    assert [one.inside() for one in hosts] == [[], []]


def test_a_launcher_that_is_killed(
    stuck: DockerHost, hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    started = launch.start(*words(hostfile, "--workers", "4", *LASTING), cwd=tmp_path)
    started.until(lambda it: it.out.count("up") == 4, 40)
    stuck.stick()
    started.kill()
    until(lambda: not any(one.inside() for one in hosts), 40, "all is over in the containers")


def test_one_that_is_killed(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    """Its containers would outlive it. Once it is back it has nothing of them."""
    started = launch.start(*words(hostfile, "--workers", "4", *LASTING), cwd=tmp_path)
    started.until(lambda it: it.out.count("up") == 4, 40)
    hosts[0].kill()
    try:
        ended = started.wait(60)
        left = hosts[0].inside()
    finally:
        hosts[0].start()
    assert ended.code == 125
    assert "host node1 is lost: its Docker engine has gone: was it stopped?" in ended.err
    assert "all that ran in its container was ended without it" in ended.err
    assert left == []
    until(lambda: not hosts[0].containers(), 20, "it is not among its containers")
