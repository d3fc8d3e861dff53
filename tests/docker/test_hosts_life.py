"""Containers on the hosts of a hostfile: whatever ends, nothing of them is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.conftest import jobs
from tests.docker.host_engines import DockerHost, docker_on
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
