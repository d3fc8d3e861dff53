"""The SDK comes without what is not used of it, and paramiko can be had afterwards."""

from __future__ import annotations

import subprocess
import sys

_SEEN = """
import sys
from launcher.transport.docker import lean
lean.fetch()
print("docker" in sys.modules, "paramiko" in sys.modules)
import paramiko
print(paramiko.Transport.__name__)
from launcher.transport.docker import engine, fleet
print(engine.docker.DockerClient.__name__)
"""


def test_the_sdk_without_paramiko():
    command = [sys.executable, "-W", "error", "-c", _SEEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout.splitlines() == ["True False", "Transport", "DockerClient"], done.stderr
