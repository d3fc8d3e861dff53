"""Containers on the hosts of a hostfile, each by its host's own engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.backends import MEETS, DockerOnHosts
from tests.docker.conftest import jobs
from tests.docker.engine import BASE, Engine
from tests.docker.host_engines import Site

#: Binds a port as any program would.
BIND = "import socket, sys; socket.socket().bind(('', int(sys.argv[1])))"


def test_what_the_engine_is_asked_for_and_the_agents_hold_the_ports(on_hosts: DockerOnHosts):
    """One container for all tasks of a host, with the sum of their limits."""
    script = "until grep watchdog /proc/1/comm; do sleep 0.1; done; echo up $TASK_ADDRESS; exec sleep 600"
    started = on_hosts.up("--memory", "512m", "--cpus", "0.5", "--", "sh", "-c", script, workers=4)
    assert started.out.count("| launch-watchdog") == 4
    job, (first, second) = on_hosts.run.path.name, on_hosts.engines
    assert first.containers() + second.containers() == [f"tf-launcher-{job}-node{n}" for n in (1, 2)]
    found = json.loads(first.engine.docker("inspect", f"tf-launcher-{job}-node1"))[0]
    assert found["HostConfig"]["NetworkMode"] == "host"
    assert (found["HostConfig"]["Memory"], found["HostConfig"]["NanoCpus"]) == (1 << 30, 1_000_000_000)
    assert found["Config"]["Labels"]["tf-launcher.job"] == job
    port = re.search(rf"{re.escape(first.host.address)}:(\d+)", started.out)
    assert port is not None
    taken = first.host.run(["python3", "-c", BIND, port[1]], check=False)
    assert b"Address already in use" in taken.stderr
    assert started.stop(2, 40).code == 130


def test_folders_of_the_hosts(on_hosts: DockerOnHosts):
    for host in on_hosts.machines:
        host.run(["mkdir", "-p", "work", "data"])
        host.run(["sh", "-c", f"echo {host.name} >data/name"])
    script = "cat /data/name ~/data/name $HOST_HOME/data/name 2>/dev/null; pwd; touch x /data/x 2>&1 || true"
    options = ["--workers", "4", "--workdir", "~/work", "--mount", "~/data:/data", "--read-only"]
    ended = on_hosts(*options, "--", "sh", "-c", script, code=0)
    for host in on_hosts.machines:
        printed = [line.partition("| ")[2] for line in ended.out.splitlines() if line.startswith(host.name)]
        assert host.name in printed
        assert f"{host.home}/work" in printed
        assert "touch: cannot touch 'x': Read-only file system" in printed
        assert host.there(host.home / "data/x").exists()
        assert not host.there(host.home / "work/x").exists()
        host.run(["rm", "-r", "work", "data"])


def test_hosts_with_different_images(on_hosts: DockerOnHosts, hostfile: str, tmp_path: Path):
    """Each engine is asked only for the image of its own tasks: the other one has no such image."""
    on_hosts.engine.docker("tag", BASE, "only-on-node1:1")
    roles = "{worker: {image: 'only-on-node1:1', hosts: [node1]}, reader: {image: IMAGE, hosts: [node2]}}"
    (tmp_path / "job.yaml").write_text(
        f"command: 'true'\nroles: {roles.replace('IMAGE', repr(BASE))}\nhosts: {hostfile}\n"
    )
    try:
        ended = on_hosts.beside("job.yaml", "--pull", "never", "--no-mount").wait(60)
    finally:
        on_hosts.engine.docker("rmi", "only-on-node1:1")
    assert ended.code == 0, ended.err
    states = {task["task"]: (task["host"], task["state"]) for task in on_hosts.run.report["tasks"]}
    assert states == {"worker/0": ("node1", "succeeded"), "reader/0": ("node2", "succeeded")}


def test_this_machine_among_others(docker: Engine, two_hosts: Site, on_hosts: DockerOnHosts, tmp_path: Path):
    addresses = {"localhost": two_hosts[0].address, "node1": on_hosts.machines[0].address}
    records = [f"{{name: {name}, address: {address}, slots: 1}}" for name, address in addresses.items()]
    (tmp_path / "mixed.yaml").write_text(f"hosts: [{', '.join(records)}]\n")
    options = ["--hosts", "mixed.yaml", "--docker", BASE, "--no-mount", "--workers", "2"]
    ended = on_hosts.beside(*options, "--", "python3", "-c", MEETS).wait(60, code=0)
    assert {task["host"] for task in on_hosts.run.report["tasks"]} == {"localhost", "node1"}
    assert "| met " in ended.out
    assert docker.lines("ps", "-aq", "--filter", f"label=tf-launcher.job={jobs(on_hosts.launch)[0]}") == []
