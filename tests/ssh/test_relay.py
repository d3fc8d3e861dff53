"""``--relay``: tasks on other machines reach a socket of this one through the SSH connection."""

from __future__ import annotations

import re
import signal
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from launcher.backends.ssh.connections import SshConnections
from launcher.backends.ssh.relay import MAX_CONNECTIONS
from tests.conftest import Launch
from tests.seeing import soon
from tests.ssh.host import TIME_LIMIT, LabHost
from tests.ssh.lab import ONE, TWO, Lab
from tests.told import Told

pytestmark = pytest.mark.timeout(180)

#: Sends so many bytes, says that it is through, and prints what came back: how much, and its digest.
TALK = """
import hashlib, os, socket, sys, threading
way = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
data = os.urandom(int(sys.argv[2]))
def send():
    way.sendall(data)
    way.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
digest, size = hashlib.sha256(), 0
while piece := way.recv(1 << 16):
    digest.update(piece)
    size += len(piece)
print(size, digest.digest() == hashlib.sha256(data).digest())
"""


#: Opens so many connections, one when the other is answered, and says whether the last is closed at once.
CROWD = """
import socket, sys
ways = []
for _ in range(int(sys.argv[2])):
    way = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    way.settimeout(60)
    ways.append(way)
    try:
        way.sendall(b"x")
        answer = way.recv(1)
    except ConnectionError:  # closed before it has read what was sent
        answer = b""
print(len(ways), answer)
"""

#: Connects again and again to a server that sends without end, and closes while more is coming.
LEAVES = """
import socket, sys
for number in range(int(sys.argv[2])):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as way:
        way.sendall(b"x" * 50_000)
        for _ in range(number % 4):
            way.recv(1 << 16)
print("left")
"""

#: A task that asks its relay again and again, and counts the answers.
KEEPS_ASKING = """
import os, socket, time
host, port = os.environ["LAUNCH_RELAY"].split(":")
asked = 0
while True:
    try:
        with socket.create_connection((host, int(port)), 1) as way:
            way.settimeout(1)
            way.sendall(b"x")
            asked += way.recv(1) == b"x"
            print(f"answer {asked} at {port}", flush=True)
    except OSError as error:
        print("no answer:", error, flush=True)
    time.sleep(0.1)
"""


class Echo(socketserver.ThreadingUnixStreamServer):
    """A socket of this machine that says what it hears."""

    request_queue_size = 128
    daemon_threads = True
    #: Whether it repeats the first piece that it hears without end.
    endless = False

    def __init__(self, path: str) -> None:
        super().__init__(path, Echoes)
        self.path = path


class Echoes(socketserver.BaseRequestHandler):
    """One connection to it."""

    server: Echo

    def handle(self) -> None:
        """Send back all that comes, until either side ends it."""
        with suppress(OSError):
            while piece := self.request.recv(1 << 16):
                self.request.sendall(piece)
                while self.server.endless:
                    self.request.sendall(piece)


@pytest.fixture
def folder() -> Iterator[str]:
    """The path of a socket has to be short."""
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.fixture
def echo(folder: str) -> Iterator[Echo]:
    with Echo(f"{folder}/echo") as server:
        serving = threading.Thread(target=server.serve_forever, args=[0.05])
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def crowd_on(host: LabHost, port: int, count: int) -> str:
    """What `CROWD` says there."""
    return host.run(["python3", "-c", CROWD, str(port), str(count)], timeout=120).stdout.decode().strip()


@pytest.mark.promise("the relay to a socket of this machine")
def test_all_hosts_reach_it(lab: Lab, fleet: SshConnections, told: Told, echo: Echo):
    ports = fleet.relay(echo.path)
    assert sorted(ports) == [host.name for host in lab.hosts]
    talks = [host.start(["python3", "-c", TALK, str(ports[host.name]), "3000001"]) for host in lab.hosts]
    assert [talk.communicate(timeout=120)[0] for talk in talks] == [b"3000001 True\n"] * len(talks)
    assert told.lines == []


def test_the_limit_of_connections(lab: Lab, fleet: SshConnections, told: Told, echo: Echo):
    port = fleet.relay(echo.path)["node1"]
    node = lab.hosts[0]
    assert crowd_on(node, port, MAX_CONNECTIONS) == f"{MAX_CONNECTIONS} b'x'"
    soon(lambda: "ssh relay" not in str(threading.enumerate()), TIME_LIMIT, "all of them are over")
    assert crowd_on(node, port, MAX_CONNECTIONS + 1) == f"{MAX_CONNECTIONS + 1} b''"
    soon(lambda: told.lines, TIME_LIMIT, "a notice")
    (refused,) = told.lines
    assert refused.startswith(f"node1: more than {MAX_CONNECTIONS} connections at a time ")


def test_a_task_that_closes_in_the_middle_breaks_nothing(
    lab: Lab, fleet: SshConnections, told: Told, echo: Echo
):
    """The server would end the whole connection if anything were sent on a channel that is no more."""
    echo.endless = True
    port = fleet.relay(echo.path)["node1"]
    leaving = [lab.hosts[0].start(["python3", "-c", LEAVES, str(port), "50"]) for _ in range(3)]
    assert [one.communicate(timeout=120)[0] for one in leaving] == [b"left\n"] * 3
    assert fleet.is_alive("node1") and told.lines == []


def test_nothing_listens(lab: Lab, fleet: SshConnections, told: Told, folder: str):
    port = fleet.relay(f"{folder}/none")["node1"]
    assert crowd_on(lab.hosts[0], port, 1) == "1 b''"
    soon(lambda: told.lines, TIME_LIMIT, "a notice")
    assert told.lines == [f"node1: cannot connect its tasks to {folder}/none: no such file or directory"]


def test_a_server_that_forbids_it(lab: Lab, ssh_launch: Launch, echo: Echo):
    words = [*TWO, "--relay", echo.path, "--", "sh", "-c", 'echo "at <$LAUNCH_RELAY>"']
    with lab.hosts[1].sshd_with("AllowTcpForwarding no"):
        ended = ssh_launch(*words, cwd="/", code=0)
    assert re.search(r"^node1 worker/0 \| at <127\.0\.0\.1:\d+>$", ended.out, re.MULTILINE)
    assert "node2 worker/1 | at <>\n" in ended.out
    assert "node2: its ssh server opens no port for its tasks: it forwards no ports (Allow" in ended.err
    assert ended.err.count("node2: ") == 1


def test_tasks_on_this_machine_have_no_relay(launch: Launch, echo: Echo):
    assert "<>" in launch("--relay", echo.path, "--", "sh", "-c", 'echo "<$LAUNCH_RELAY>"').out
    ended = launch("--relay", f"{echo.path}s", "true", code=2)
    assert f"--relay: '{echo.path}s' is not a socket; expected the path of a unix socket" in ended.err


def test_the_port_returns_with_the_network(lab: Lab, ssh_launch: Launch, echo: Echo):
    node = lab.hosts[0]
    words = [*ONE, "--relay", echo.path, "--lease", "30", "--", "-c", KEEPS_ASKING]
    started = ssh_launch.start(*words, cwd="/")
    started.until(lambda it: "answer 4 at" in it.out, 60)
    (port,) = set(re.findall(r"answer \d+ at (\d+)\n", started.out))
    node.cut()
    started.until(lambda it: "node1: connection lost" in it.err, 60)
    node.restore()
    started.until(lambda it: "node1: connected again" in it.err, 60)
    before = started.out.count("answer")
    started.until(lambda it: it.out.count(f"at {port}\n") > before + 3, 60)
    ended = started.stop(signal.SIGINT, 60, code=130)
    assert set(re.findall(r"answer \d+ at (\d+)\n", ended.out)) == {port}
