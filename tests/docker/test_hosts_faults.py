"""What goes wrong with containers on the hosts of a hostfile: images, and engines that hang or are killed."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.backends import SOON, WAITS, DockerOnHosts
from tests.docker.host_engines import DockerHost
from tests.seeing import soon


def test_an_image_that_is_not_there(on_hosts: DockerOnHosts):
    options = [*on_hosts.options[:-1], "127.0.0.1:1/none:1", "--workers", "4", "--no-mount"]
    ended = on_hosts.beside(*options, "--pull", "never", "true").wait(60, code=125)
    assert "node1, node2: the engine has no image 127.0.0.1:1/none:1, and --pull never" in ended.err
    ended = on_hosts.beside(*options, "true").wait(60, code=125)
    assert "launch: pulling the image 127.0.0.1:1/none:1 on node1\n" in ended.err
    for host in on_hosts.hosts:  # in one line where the registry's answer is the same
        assert re.search(rf"\b{host}\b.*: the image 127.0.0.1:1/none:1 cannot be pulled: ", ended.err)


def test_an_engine_that_is_not_there(on_hosts: DockerOnHosts):
    first, second = on_hosts.engines
    first.stop()
    second.host.program("docker", None)
    try:
        ended = on_hosts("--workers", "4", "true")
    finally:
        second.stop()
        second.host.heal()
        first.start()
        second.start()
    assert ended.code == 125
    assert "node1: no Docker engine responds: is it running?" in ended.err
    assert "node2: the `docker` command is missing (No such file" in ended.err


@pytest.mark.promise("containers on hosts: launcher killed in steps of 1.2 s")
@pytest.mark.timeout(300)
def test_a_launcher_that_is_killed_early(on_hosts: DockerOnHosts):
    """In steps of 1.2 s: while it looks at the engines, containers are created, agents and tasks start."""
    for step in range(4, 40, 12):
        started = on_hosts.start("--workers", "4", "--", *WAITS)
        time.sleep(step * 0.1)  # the moment is what is tried
        tasks = started.out.count("| up")
        started.kill()
        soon(on_hosts.is_empty, SOON, "all is over")
        if tasks == 4:
            break
    print(f"{step} steps")


# ---------------------------------------------------------------------- engines that hang, or are killed


@pytest.fixture
def stuck(on_hosts: DockerOnHosts) -> Iterator[DockerHost]:
    """The first of the engines; it goes on after the test, and no longer sticks."""
    stuck = on_hosts.engines[0]
    yield stuck
    stuck.go_on()
    stuck.host.empty()


def nothing_runs(backend: DockerOnHosts) -> None:
    """Wait until no process is left in any container: the agent there ends its tasks."""
    soon(lambda: not any(engine.inside() for engine in backend.engines), SOON, "nothing runs there")


def test_an_engine_that_hangs_while_containers_start(on_hosts: DockerOnHosts, stuck: DockerHost):
    """What the engine still makes of a container ends by itself: its stdin is closed."""
    stuck.stick_at("run")
    started = on_hosts.start("--workers", "4", *on_hosts.brief, "--", *WAITS)
    # On a busy machine the other engine takes long, too, and the line names both hosts.
    line = r"for [^:]*\bnode1[^:]*: its engine to start the container"
    started.until(lambda it: re.search(line, it.err), SOON)
    assert started.stop(signal.SIGINT, 40).code == 130
    stuck.go_on()
    soon(lambda: not stuck.containers(), SOON, "no container")


@pytest.mark.promise("containers on hosts: engine killed, stopped by SIGSTOP")
def test_an_engine_that_hangs_while_tasks_run(on_hosts: DockerOnHosts, stuck: DockerHost):
    """They go on for the lease, as where a connection is lost."""
    started = on_hosts.up(*on_hosts.brief, "--", *WAITS, workers=4)
    stuck.stick()
    started.until(lambda it: "launch: node1: connection lost (no answer for " in it.err, SOON)
    assert "host node1 is lost: no answer for " in started.wait(SOON, code=125).err
    nothing_runs(on_hosts)


@pytest.mark.promise("containers on hosts: engine killed, stopped by SIGSTOP")
def test_an_engine_that_is_killed(on_hosts: DockerOnHosts):
    """Its container outlives it for the lease. Once it is back the container is removed."""
    started, engine = on_hosts.up(*on_hosts.brief, "--", *WAITS, workers=4), on_hosts.engines[0]
    engine.kill()
    try:
        ended = started.wait(60)
        nothing_runs(on_hosts)
    finally:
        engine.start()
    assert ended.code == 125
    # The command is told in one of two ways: data that the engine has not read may be left.
    assert re.search("host node1 is lost: .*its Docker engine has gone", ended.err)
    soon(lambda: not engine.containers(), 20, "it is not among its containers")
