"""An engine on another machine, behind ``ssh://``, as a context names it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.conftest import Launch, executable
from tests.docker.engine import BASE
from tests.docker.host_engines import DockerHost, Site


def test_a_context(two_hosts: Site, engines: list[DockerHost], launch: Launch, tmp_path: Path):
    """Of the first host; `ssh` knows the lab. Its tasks see nothing of this machine."""
    ssh = tmp_path / "bin" / "ssh"
    executable(ssh, f'#!/bin/sh\nexec /usr/bin/ssh -F {two_hosts[0].ssh_config} "$@"\n')
    env = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    for words in ("create lab --docker host=ssh://node1", "use lab"):
        argv = ["docker", "context", *words.split()]
        made = {"HOME": str(launch.home), **env}
        subprocess.run(argv, env=made, check=True, capture_output=True, timeout=30)
    options = ["--docker", BASE, "--no-mount", "--workers", "2", "--"]
    ended = launch(*options, "sh", "-c", "echo up on $(hostname)", env=env, timeout=60, code=0)
    for number in (0, 1):
        assert f"worker/{number} | up on worker-{number}\n" in ended.out
    assert launch("clean", env=env, timeout=60).out == "nothing to remove\n"
