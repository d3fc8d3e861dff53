"""The main process of a pod takes its program from the first process of its user and its container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.transports import bootstrap
from tests.kubernetes.cluster import soon

#: Sends a program to the socket as a user, without asking whether it is wanted; prints what it gets.
SENDS = """\
import os, socket, sys
os.setuid(int(sys.argv[1]))
peer = socket.socket(socket.AF_UNIX)
peer.connect("\\0" + sys.argv[2])
peer.sendall(sys.argv[3].encode())
print("sent", flush=True)
try:
    print(peer.recv(100))
except ConnectionResetError:
    print(b"")
"""
#: A program, which says who has sent it.
PROGRAM = "import os\nos.write(1, b'from %s ' + os.read(0, 9))\n"


@pytest.fixture
def name() -> str:
    return f"launch-test-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def process(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """It, in a process namespace of its own, as a container has."""
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--"]
    with subprocess.Popen([*namespace, *bootstrap.waiting(sys.executable, name, 60)]) as process:
        assert soon(lambda: f"@{name}" in Path("/proc/net/unix").read_text())
        yield process
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces, and be another user")
def test_only_its_own_user_in_its_container_is_heard(process: subprocess.Popen[bytes], name: str):
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    inside = ["nsenter", f"--target={child}", "--pid", "--"]
    others = []
    for before, user in ((inside, 1000), ([], 0)):
        wrong = bootstrap.frame((PROGRAM % "another").encode()).decode()
        argv = [*before, sys.executable, "-c", SENDS, str(user), name, wrong]
        others.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
        assert others[-1].stdout is not None and others[-1].stdout.readline() == b"sent\n"
    sent = bootstrap.frame((PROGRAM % "launch").encode()) + b"it begins"
    passing = [*inside, *bootstrap.passing(sys.executable, name, 30)]
    with subprocess.Popen(passing, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin is not None and first.stdout is not None
        first.stdin.write(sent)
        first.stdin.flush()
        assert first.stdout.read() == b"from launch it begins"
    assert first.returncode in (0, -signal.SIGKILL)  # the end of the main process is that of its namespace
    assert [other.communicate(timeout=10)[0] for other in others] == [b"b''\n", b"b''\n"]
    assert process.wait(10) == 0


def test_it_ends_if_nobody_comes(name: str):
    assert subprocess.run(bootstrap.waiting(sys.executable, name, 1), timeout=30).returncode == 1
