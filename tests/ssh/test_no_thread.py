"""The system of the launcher starts no more threads for its user (``ulimit -u``, ``pids.max``)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.local.seeing import last_run
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab

#: A user with a name on every system; the kernel limits no threads of root.
DAEMON = 1
AS_DAEMON = ["setpriv", f"--reuid={DAEMON}", f"--regid={DAEMON}", "--clear-groups"]

COMMAND = [*AS_DAEMON, sys.executable, "-m", "launcher"]
#: Connects to the relay until it is answered.
ASKS = """
import os, socket, time
host, port = os.environ["LAUNCH_RELAY"].split(":")
time.sleep(0.5)
print("asking")
while True:
    time.sleep(0.2)
    with socket.create_connection((host, int(port)), 20) as way:
        try:
            answer = way.recv(1)
        except ConnectionError:
            answer = b""
    if answer:
        break
    print("refused")
print("answered")
"""


@pytest.fixture
def daemon_launch(lab: Lab) -> Iterator[Launch]:
    """The installed command, with the keys of the lab, for a user that is not root."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # the tests' own folder is root's alone
        home = Path(folder) / "home"
        lab.move_in(home)
        for path in (Path(folder), home, *home.rglob("*")):
            os.chown(path, DAEMON, DAEMON)
        command = Launch(home)
        yield command
        for started in command.started:
            started.kill()


def limit_threads(pid: int, most: int) -> None:
    """Let a process start no thread or child while its user has so many."""
    subprocess.run([*AS_DAEMON, "prlimit", f"--pid={pid}", f"--nproc={most}:"], timeout=10, check=True)


def test_a_host_is_lost_and_no_thread_is_left(daemon_launch: Launch, hosts: list[LabHost]):
    started = daemon_launch.start(
        "--hosts", "node1,node2", "--workers", "2", "--lease", "6", "--grace", "1", "--", "sh", "-c",
        "echo up; exec sleep 300", cwd="/", command=COMMAND,
    )  # fmt: skip
    started.until(lambda it: it.out.count("up") == 2, 60)
    limit_threads(started.process.pid, 1)
    hosts[1].kill_sshd_sessions()
    ended = started.wait(60)
    assert ended.code == 125
    assert "Traceback" not in ended.err
    report = json.loads((last_run(daemon_launch).path / "report.json").read_text())
    assert (report["exit_code"], report["failure"]["host"]) == (125, "node2")
    assert "ulimit -u" in report["failure"]["text"]


def test_the_port_of_a_relay_is_used_and_no_thread_is_left(daemon_launch: Launch, hosts: list[LabHost]):
    """Such a connection is refused, with a line; the job goes on, and so does its relay with more threads."""
    path = daemon_launch.home / "relay"
    with socket.socket(socket.AF_UNIX) as program:
        program.bind(str(path))
        path.chmod(0o777)
        program.listen()
        started = daemon_launch.start(
            "--hosts", "node1", "--workers", "1", "--relay", str(path), "--", "python3", "-uc", ASKS,
            cwd="/", command=COMMAND,
        )  # fmt: skip
        started.until(lambda it: "asking" in it.out, 60)
        limit_threads(started.process.pid, 1)
        started.until(lambda it: "ulimit -u" in it.err and "refused" in it.out, 20)
        limit_threads(started.process.pid, 1000)
        program.settimeout(20)
        peer, _ = program.accept()
        with peer:
            peer.sendall(b"x")
        ended = started.wait(30)
    assert ended.code == 0, ended.err
    assert ended.err.count("ulimit -u") == 1, ended.err
    assert "answered" in ended.out


@pytest.mark.parametrize("most", [1, 3, 5])
def test_too_few_threads_for_all_hosts(daemon_launch: Launch, most: int):
    command = ["prlimit", f"--nproc={most}:", *COMMAND]
    words = ("--hosts", "node1,node2", "--workers", "2", "true")
    ended = daemon_launch.start(*words, cwd="/", command=command).wait(30)
    assert ended.code == 125
    lines = ended.err.splitlines()
    assert lines and all(line.startswith("launch: node") and "ulimit -u" in line for line in lines), ended.err
