"""The lab does what it says: else nothing that is shown on it means anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.ssh.host import TIME_LIMIT, LabHost, until
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(240)


def ssh(lab: Lab, host: LabHost, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """OpenSSH, not what the launcher uses."""
    argv = ["ssh", "-F", str(lab.ssh_config), "-o", "KexAlgorithms=curve25519-sha256", *options]
    return subprocess.run([*argv, host.name, command], capture_output=True, text=True, timeout=60)


# What a host is


def test_a_host_has_processes_and_files_of_its_own(lab: Lab, hosts: list[LabHost]):
    started = ssh(lab, hosts[0], "sleep 600 >/dev/null 2>&1 & echo $!; touch ~/mine /tmp/mine")
    pid = int(started.stdout.split()[0])
    # Its shell has forked it, but it may not have called exec yet.
    until(lambda: (pid, "sleep 600") in hosts[0].processes(), TIME_LIMIT, "the sleeper sleeps")
    assert hosts[0].files() == ["/tmp/mine", f"{hosts[0].home}/mine"]
    files = [f"file {path}" for path in hosts[0].files()]
    assert hosts[0].left() == [f"process {pid} (sleep 600)", *files]
    assert all(host.left() == [] for host in hosts[1:])
    assert not Path("/tmp/mine").exists()
    hosts[0].run(["kill", str(pid)])
    # Its first process reaps what it inherited, as an init does.
    until(lambda: not hosts[0].processes(), TIME_LIMIT, "the sleeper is gone, not even a zombie")
    hosts[0].empty()
    assert hosts[0].left() == []


# What can happen to it


def test_healing_undoes_everything_at_once(lab: Lab, hosts: list[LabHost]):
    host = hosts[0]
    ssh(lab, host, "mkdir -p deep/er && touch deep/er/x; ln -s / link; setsid sleep 600 >/dev/null 2>&1 &")
    host.banner("hello")
    host.set_shell("/bin/csh")
    host.no_python()
    host.slow(delay=100)
    host.new_host_key()
    host.read_only_home()
    host.fill_disk()
    host.cut()
    lab.heal()
    assert host.left() == []
    assert host.files() == []
    done = ssh(lab, host, "python3 -c 'import os; print(os.environ[\"SHELL\"])' && touch x && rm x")
    assert (done.stdout, done.stderr, done.returncode) == ("/bin/bash\n", "", 0)
