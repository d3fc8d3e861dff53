"""Containers on the hosts of a hostfile, each by its host's own engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.conftest import jobs
from tests.docker.engine import BASE, Engine
from tests.docker.host_engines import DockerHost, Site, docker_on
from tests.e2e.backends import MEETS
from tests.local.seeing import last_run

#: Binds a port as any program would.
BIND = "import socket, sys; socket.socket().bind(('', int(sys.argv[1])))"


@pytest.mark.promise("`-x NAME`, `PRE*`, `NAME=VALUE`; no secret on a command line")
def test_the_engine_sees_no_secrets_and_the_agents_hold_the_ports(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    script = "until grep watchdog /proc/1/comm; do sleep 0.1; done; echo $TASK_ADDRESS $TOKEN; exec sleep 600"
    options = ["--workers", "2", "-x", "TOKEN=abracadabra", "--memory", "512m", "--cpus", "0.5", "--no-mount"]
    started = launch.start(*docker_on(hostfile, *options, "--", "sh", "-c", script), cwd=tmp_path)
    started.until(lambda it: it.out.count("abracadabra") == 2, 40)
    assert started.out.count("| launch-watchdog") == 2
    job = jobs(launch)[0]
    assert [host.containers() for host in hosts] == [[f"tf-launcher-{job}-node1"], []]
    text = hosts[0].engine.docker("inspect", f"tf-launcher-{job}-node1")
    found = json.loads(text)[0]
    assert "abracadabra" not in text
    assert "sleep" not in text
    assert found["HostConfig"]["NetworkMode"] == "host"
    assert (found["HostConfig"]["Memory"], found["HostConfig"]["NanoCpus"]) == (1 << 30, 1_000_000_000)
    assert found["Config"]["Labels"]["tf-launcher.job"] == job
    port = re.search(rf"{re.escape(hosts[0].host.address)}:(\d+)", started.out)
    assert port is not None
    taken = hosts[0].host.run(["python3", "-c", BIND, port[1]], check=False)
    assert b"Address already in use" in taken.stderr
    started.send(2)
    assert started.wait(40).code == 130


def test_folders_of_the_hosts(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    for host in hosts:
        host.host.run(["mkdir", "-p", "work", "data"])
        host.host.run(["sh", "-c", f"echo {host.name} >data/name"])
    script = "cat /data/name ~/data/name $HOST_HOME/data/name 2>/dev/null; pwd; touch x /data/x 2>&1 || true"
    options = ["--workers", "4", "--workdir", "~/work", "--mount", "~/data:/data", "--read-only"]
    ended = launch(*docker_on(hostfile, *options, "--", "sh", "-c", script), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    for host in hosts:
        printed = [line.partition("| ")[2] for line in ended.out.splitlines() if line.startswith(host.name)]
        assert host.name in printed
        assert f"{host.host.home}/work" in printed
        assert "touch: cannot touch 'x': Read-only file system" in printed
        assert host.host.there(host.host.home / "data/x").exists()
        assert not host.host.there(host.host.home / "work/x").exists()
        host.host.run(["rm", "-r", "work", "data"])


def test_hosts_with_different_images(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    """Each engine is asked only for the image of its own tasks: the other one has no such image."""
    hosts[0].engine.docker("tag", BASE, "only-on-node1:1")
    roles = "{worker: {image: 'only-on-node1:1', hosts: [node1]}, reader: {image: IMAGE, hosts: [node2]}}"
    (tmp_path / "job.yaml").write_text(
        f"command: 'true'\nroles: {roles.replace('IMAGE', repr(BASE))}\nhosts: {hostfile}\n"
    )
    try:
        ended = launch(tmp_path / "job.yaml", "--pull", "never", "--no-mount", cwd=tmp_path, timeout=60)
    finally:
        hosts[0].engine.docker("rmi", "only-on-node1:1")
    assert ended.code == 0, ended.err
    states = {task["task"]: (task["host"], task["state"]) for task in last_run(launch).report["tasks"]}
    assert states == {"worker/0": ("node1", "succeeded"), "reader/0": ("node2", "succeeded")}


def test_this_machine_among_others(
    docker: Engine, two_hosts: Site, hosts: list[DockerHost], launch: Launch, tmp_path: Path
):
    path = tmp_path / "mixed.yaml"
    here = f"{{name: localhost, address: {two_hosts[0].address}, slots: 1}}"
    path.write_text(f"hosts:\n  - {here}\n  - {{name: node1, address: {hosts[0].host.address}, slots: 1}}\n")
    options = ["--workers", "2", "--no-mount", "--", "python3", "-c", MEETS]
    ended = launch(*docker_on(str(path), *options), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert {task["host"] for task in last_run(launch).report["tasks"]} == {"localhost", "node1"}
    assert "| met " in ended.out
    assert docker.lines("ps", "-aq", "--filter", f"label=tf-launcher.job={jobs(launch)[0]}") == []
