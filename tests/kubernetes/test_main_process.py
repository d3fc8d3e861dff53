"""The main process of a pod takes its program from the first process of its user and its container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backends import bootstrap
from launcher.backends.connections import AgentArguments, Connections
from launcher.backends.link import ReconnectingLink
from launcher.backends.programs import RemoteProgram, start_program
from launcher.event_loop import EventLoop
from tests.contract.driver import Driver
from tests.seeing import soon

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
#: Listens at the socket as a user; prints how many bytes of descriptors it gets.
LISTENS = """\
import os, socket, sys
os.setuid(int(sys.argv[1]))
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[2])
listener.listen()
print("listens", flush=True)
print(sum(len(data) for *_, data in listener.accept()[0].recvmsg(1, 100)[1]))
"""
#: A program, which says who has sent it.
PROGRAM = "import os\nos.write(1, b'from %s ' + os.read(3, 9))\n"


@pytest.fixture
def name() -> str:
    return f"launch-test-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def process(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """It, in a process namespace of its own, as a container has."""
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--"]
    with subprocess.Popen([*namespace, *bootstrap.waiting_command(sys.executable, name, 60, "/")]) as process:
        soon(lambda: f"@{name}" in Path("/proc/net/unix").read_text())
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
    frames = [b"", (PROGRAM % "launch").encode(), b"", b""]
    sent = b"".join(map(bootstrap.frame, frames)) + b"it begins"
    passing = [*inside, *bootstrap.passing_command(sys.executable, name, 30)]
    with subprocess.Popen(passing, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin is not None and first.stdout is not None
        first.stdin.write(sent)
        first.stdin.flush()
        assert first.stdout.read() == b"from launch it begins"
    assert first.returncode in (0, -signal.SIGKILL)  # the end of the main process is that of its namespace
    assert [other.communicate(timeout=10)[0] for other in others] == [b"b''\n", b"b''\n"]
    assert process.wait(10) == 0


def test_it_ends_if_nobody_comes(name: str):
    assert subprocess.run(bootstrap.waiting_command(sys.executable, name, 1, "/"), timeout=30).returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces, and be another user")
@pytest.mark.parametrize("user", [0, 1000])
def test_another_process_at_its_socket_gets_nothing(name: str, user: int):
    """Of another user; or of another container: its process namespace is not ours."""
    argv = [sys.executable, "-c", LISTENS, str(user), name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"listens\n"
        namespace = ["unshare", "--pid", "--fork", "--"] if user == 0 else []
        argv, sent = bootstrap.passing_command(sys.executable, name, 30), bootstrap.frame(b"") * 4
        done = subprocess.run([*namespace, *argv], input=sent, capture_output=True, timeout=30)
        assert other.communicate(timeout=10)[0] == b"0\n"
    assert done.returncode == 1 and b"another one has its socket" in done.stderr


class _Pod(Connections):
    """A pod whose containers share their processes: its main process is not the first one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `Connections.start_agent`."""
        entry = "launcher.agent.main:serve_passed"
        sent = bootstrap.passing_input(entry, {**arguments.as_json(), "grace": 20.0}, arguments.token)
        argv = bootstrap.passing_command(sys.executable, self._name, 30)
        return start_program(host, argv, sent, sys.executable)


def test_tasks_have_their_grace_where_it_is_not_the_first_process(name: str, tmp_path: Path):
    saved = tmp_path / "saved"
    script = f"trap 'sleep 2; : > {saved}; exit' TERM; echo up; while :; do sleep 0.1; done"
    command = bootstrap.waiting_command(sys.executable, name, 60, "/")
    with subprocess.Popen(command) as main, EventLoop() as loop:
        link = ReconnectingLink(loop, _Pod(name), AgentArguments.new("node1", 30.0))
        agent = Driver(link, "node1", {}, loop)
        agent.start("worker/0", ["sh", "-c", script])
        agent.until(lambda: agent.output("worker/0") == b"up\n")
        main.terminate()
        assert "it was sent SIGTERM" in (agent.to_the_end() or "")
        main.wait(30)
        link.close()
    assert saved.exists()
