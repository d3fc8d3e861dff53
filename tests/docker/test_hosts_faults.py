"""What goes wrong with containers on the hosts of a hostfile, and the messages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import Launch
from tests.docker.host_engines import DockerHost, docker_on


def test_an_image_that_is_not_there(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--docker", "127.0.0.1:1/none:1", "--workers", "4", "--no-mount"]
    ended = launch("--hosts", hostfile, *options, "--pull", "never", "true", cwd=tmp_path, timeout=60)
    assert ended.code == 125
    assert "node1, node2: the engine has no image 127.0.0.1:1/none:1, and --pull never" in ended.err
    ended = launch("--hosts", hostfile, *options, "true", cwd=tmp_path, timeout=60)
    assert ended.code == 125
    assert "launch: pulling the image 127.0.0.1:1/none:1 on node1\n" in ended.err
    for host in hosts:  # in one line where the registry's answer is the same
        assert re.search(rf"\b{host.name}\b.*: the image 127.0.0.1:1/none:1 cannot be pulled: ", ended.err)


def test_an_engine_that_is_not_there(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    hosts[0].stop()
    hosts[1].host.program("docker", None)
    try:
        ended = launch(*docker_on(hostfile, "--workers", "4", "--no-mount", "true"), cwd=tmp_path, timeout=60)
    finally:
        hosts[1].stop()
        hosts[1].host.heal()
        hosts[0].start()
        hosts[1].start()
    assert ended.code == 125
    assert "node1: no Docker engine responds: is it running?" in ended.err
    assert "node2: the `docker` command is missing (No such file" in ended.err
