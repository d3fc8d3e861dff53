"""Containers on the hosts of a hostfile: whatever ends, nothing of them is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.conftest import jobs
from tests.docker.host_engines import DockerHost, docker_on
from tests.local.seeing import last_run
from tests.ssh.host import until

#: Seconds for what ends by itself, on a busy machine.
SOON = 40


@pytest.mark.promise("containers on hosts: launcher killed in steps of 1.2 s")
@pytest.mark.timeout(300)
def test_a_launcher_that_is_killed_early(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    """In steps of 1.2 s: while it looks at the engines, containers are created, agents and tasks start."""
    for step in range(4, 40, 12):
        options = ["--workers", "4", "--no-mount", "--", "sh", "-c", "echo up; exec sleep 600"]
        started = launch.start(*docker_on(hostfile, *options), cwd=tmp_path)
        time.sleep(step * 0.1)  # the moment is what is tried
        tasks = started.out.count("| up")
        started.kill()
        until(lambda: not any(host.left() for host in hosts), SOON, "all is over")
        if tasks == 4:
            break
    print(f"{step} steps")


def test_kept_containers(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--keep", "--workers", "4", "--no-mount"]
    ended = launch(
        *docker_on(hostfile, *options, "--", "sh", "-c", "echo x >/tmp/found"), cwd=tmp_path, timeout=60
    )
    assert ended.code == 0, ended.err
    name = f"tf-launcher-{jobs(launch)[0]}-node1"
    assert f"{name} on node1" in ended.err
    assert "A /tmp/found" in hosts[0].engine.docker("diff", name)
    dry = launch("clean", "--hosts", hostfile, "--dry-run", timeout=60)
    assert f"would remove container {name} on node1" in dry.out
    cleaned = launch("clean", "--hosts", hostfile, timeout=60)
    assert cleaned.code == 0, cleaned.err
    assert f"removed container {name} on node1" in cleaned.out
    assert launch("clean", "--hosts", hostfile, timeout=60).out == "nothing to remove\n"


@pytest.mark.promise("containers on hosts: a cut of 10 s without loss")
@pytest.mark.parametrize("how", ["cut for 10 s", "docker killed"])
def test_a_connection_that_breaks(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path, how: str
):
    """The agent listens: another connection leads to it, and no line is lost."""
    script = "i=0; until [ -e /tmp/end ]; do echo line $i; i=$((i+1)); sleep 0.02; done; echo $i lines"
    options = ["--workers", "1", "--no-mount"]
    started = launch.start(*docker_on(hostfile, *options, "--", "sh", "-c", script), cwd=tmp_path)
    started.until(lambda it: "line 20\n" in it.out, 40)
    host = hosts[0].host
    if how == "cut for 10 s":
        host.cut()
        time.sleep(10)
        host.restore()
    else:
        its = [it.pid for it in host.processes() if it.argv.startswith("docker run")]
        host.run(["kill", "-KILL", *map(str, its)])
    started.until(lambda it: "connected again" in it.err, 60)
    hosts[0].engine.docker("exec", hosts[0].containers()[0], "touch", "/tmp/end")
    ended = started.wait(40)
    assert ended.code == 0, ended.err
    *lines, last = last_run(launch).log("worker/0").decode().splitlines()
    assert (lines, last) == ([f"line {number}" for number in range(len(lines))], f"{len(lines)} lines")


def test_a_host_that_is_cut_off_and_one_whose_agent_is_stopped(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    options = ["--workers", "4", "--lease", "6", "--no-mount"]
    started = launch.start(
        *docker_on(hostfile, *options, "--", "sh", "-c", "echo up; exec sleep 600"), cwd=tmp_path
    )
    started.until(lambda it: it.out.count("up") == 4, 40)
    hosts[1].host.cut()
    agents = [it.pid for it in hosts[0].host.processes() if it.argv.startswith("tf-agent")]
    hosts[0].host.run(["kill", "-STOP", str(max(agents))])  # the watchdog is its parent
    ended = started.wait(60)
    assert ended.code == 125
    assert "host node2 is lost" in ended.err
    assert "host node1 is lost" in ended.err
    until(lambda: not any(host.left() for host in hosts), SOON, "all is over on both")
