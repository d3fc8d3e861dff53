"""``--tensorboard`` on another machine: its page is seen here, through the SSH connection."""

from __future__ import annotations

import signal
import socket
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.local.board import FOLDER, page_of, url_of
from tests.seeing import last_run, soon
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab

pytestmark = pytest.mark.timeout(180)

JOB = ["--hosts", "node1,node2", "--chief", "--workers", "1", "--lease", "30", "--workdir", str(FOLDER)]
JOB += ["-x", f"PYTHONPATH={FOLDER}"]


@pytest.mark.promise("TensorBoard on a host is seen here, even after a broken connection")
def test_through_a_connection_that_breaks(hosts: list[LabHost], ssh_launch: Launch, tmp_path: Path):
    logs = tmp_path / "logs"
    started = ssh_launch.start(*JOB, f"--tensorboard={logs}", "--", "sleep", "200", cwd=tmp_path)
    url = url_of(started)
    assert url.startswith("http://localhost:")
    assert page_of(url) == f"<title>TensorBoard</title>{logs}"
    port = int(url.split(":")[2].strip("/"))
    (task,) = (task for task in last_run(ssh_launch).plan["tasks"] if task["task"] == "tensorboard/0")
    assert task["host"] == "node1"
    other = ["python3", "-c", f"import socket; socket.create_connection(('node1', {task['port']}), 5)"]
    assert hosts[1].run(other, check=False).returncode  # only node1 itself may connect
    with socket.create_connection(("127.0.0.1", port)) as idle:
        hosts[0].cut()
        started.until(lambda it: "node1: connection lost" in it.err, 60)
        hosts[0].restore()
        started.until(lambda it: "node1: connected again" in it.err, 60)
        idle.settimeout(60)
        assert idle.recv(1) == b""
    assert page_of(url) == f"<title>TensorBoard</title>{logs}"
    assert started.stop(signal.SIGINT, 60).code == 130
    with suppress(OSError):  # another test may have the port now
        assert str(logs) not in urllib.request.urlopen(url, timeout=10).read().decode()
    assert last_run(ssh_launch).report["tensorboard"] == url


def test_a_server_that_forbids_it(lab: Lab, ssh_launch: Launch, tmp_path: Path):
    with lab.hosts[0].sshd_with("AllowTcpForwarding no"):
        started = ssh_launch.start(*JOB, "--tensorboard", "--", "sleep", "200", cwd=tmp_path)
        url = url_of(started)

        def said() -> bool:
            try:
                urllib.request.urlopen(url, timeout=10).close()
            except OSError:
                pass
            return "its ssh server forbids connections to its own ports (AllowTcpF" in started.err

        soon(said, 60, "a notice")
        assert started.stop(signal.SIGINT, 60).code == 130
