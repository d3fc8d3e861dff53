"""An engine on another machine, behind ``ssh://``, as ``DOCKER_HOST`` or a context name it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.engine import BASE
from tests.docker.host_engines import DockerHost, Site

#: Their tasks see nothing of this machine.
OPTIONS = ["--docker", BASE, "--no-mount", "--workers", "2", "--"]
WHERE = ["sh", "-c", "echo up on $(hostname)"]


@pytest.fixture
def over_ssh(two_hosts: Site, hosts: list[DockerHost], tmp_path: Path) -> dict[str, str]:
    """What makes `docker`, and so us, use the engine of the first host; `ssh` knows the lab."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {two_hosts[0].ssh_config} "$@"\n')
    ssh.chmod(0o755)
    return {"DOCKER_HOST": "ssh://node1", "PATH": f"{ssh.parent}:{os.environ['PATH']}"}


def check(launch: Launch, env: dict[str, str]) -> None:
    """A job there: it runs, and nothing of it is left."""
    ended = launch(*OPTIONS, *WHERE, env=env, timeout=60)
    assert ended.code == 0, ended.err
    assert {line for line in ended.out.splitlines() if "up on" in line} == {
        "worker/0 | up on worker-0",
        "worker/1 | up on worker-1",
    }
    assert launch("clean", env=env, timeout=60).out == "nothing to remove\n"


def test_over_ssh(over_ssh: dict[str, str], launch: Launch):
    check(launch, over_ssh)


def test_a_context(over_ssh: dict[str, str], launch: Launch):
    made = {"HOME": str(launch.home), "PATH": over_ssh["PATH"]}
    for args in (["create", "lab", "--docker", f"host={over_ssh['DOCKER_HOST']}"], ["use", "lab"]):
        argv = ["docker", "context", *args]
        assert subprocess.run(argv, env=made, capture_output=True, timeout=30).returncode == 0
    check(launch, {"PATH": over_ssh["PATH"]})
