"""No thread is left for this user (``ulimit -u``, ``pids.max`` of a container), or no descriptor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.promise("no thread or process is left for the launcher's user")

#: As a user who has no other processes; the kernel does not limit root.
LIMITED = """
import os, resource
# Before they can be read no more:
import concurrent.futures.thread, encodings.idna, json, launcher.thread_pool, signal, socket, tempfile
from launcher.agent import checks, ports
from launcher.feed.listener import Listener
from launcher.event_loop import EventLoop
from launcher.backends.connections import for_each, slow
from launcher.messages import MessageQueue
def limit(number):
    resource.setrlimit(resource.RLIMIT_NPROC, (number, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
os.setresuid(*[1_000_000 + os.getpid()] * 3)
"""
SCRIPTS = {
    "fewer do the same": """
limit(3)
results, failed = for_each([f"h{n}" for n in range(50)], str, "a step")
assert len(results) == 50 and not failed, failed
""",
    "a loop tries again": """
limit(1)
done = []
with EventLoop() as loop:
    loop.run_in_thread(lambda: 7, lambda future: done.append(future.result()))
    assert not loop.run_until(lambda: done, 0.5)
    limit(20)
    assert loop.run_until(lambda: done, 10)
assert done == [7]
""",
    # The programs on hosts work in sequence.
    "peers are tried in sequence": """
limit(1)
ports.print_unreachable(["127.0.0.1:1", "no-such-name.invalid:1"])
""",
    "hosts are checked in sequence": """
threads, peers = 1, 2
signal.alarm(30)
server = socket.create_server(("127.0.0.1", 0))
(requests, requests_in), (answers, answers_in) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.dup2(requests, 0), os.dup2(answers_in, 1), os.close(requests_in)
    limit(threads)
    checks.main(None)
peer = {"address": "127.0.0.1", "port": server.getsockname()[1], "token": "t"}
os.write(requests_in, json.dumps({"do": "connect", "peers": [peer] * peers, "seconds": 5}).encode() + b"\\n")
for _ in range(peers):
    with server.accept()[0] as way:
        way.sendall(b"t\\n")
assert os.read(answers, 4096).count(b'"ok"') == peers
server.settimeout(0.2)
try:
    server.accept()
    raise AssertionError("a connection more")
except TimeoutError:
    pass
""",
    # The driver of a Python program refuses a task, says so, and accepts the next one.
    "a listener goes on": """
with tempfile.TemporaryDirectory() as folder, MessageQueue() as told:
    listener = Listener(b"k" * 32, folder)
    listener.serve(lambda peer: None)
    limit(1)
    for most in (1, 20):
        limit(most)
        with socket.socket(socket.AF_UNIX) as task:
            task.settimeout(10)
            task.connect(listener.path)
            greeting = task.recv(1)
            assert bool(greeting) == (most == 20), greeting
    listener.close()
    (told,) = told.drain()
assert "ulimit -u" in told.text, told
""",
    "a step goes on without its timer": """
limit(1)
with MessageQueue() as told, slow("a step"):
    assert "ulimit -u" in told.drain()[0].text
""",
}
# Each peer is tried once, by the threads that there are.
SCRIPTS["hosts are checked by few"] = SCRIPTS["hosts are checked in sequence"].replace("1, 2", "5, 8")


def ran(script: str) -> str:
    """Run a script without faults in a Python of its own; returns what it wrote to its stderr."""
    argv = [sys.executable, "-c", script]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a user who has no other processes")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_no_thread_is_left(script: str):
    assert "Traceback" not in ran(LIMITED + script)


#: A connection waits, and no descriptor is left for it.
NO_DESCRIPTOR = """
import os, resource, socket, time
from launcher.event_loop import EventLoop
from launcher.common.trusted_io import accept_own
listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
listener.bind(f"\\0launch-test-{os.getpid()}")
listener.listen()
listener.setblocking(False)
client.connect(listener.getsockname())
with EventLoop() as loop:
    loop.watch(listener.fileno(), lambda: accept_own(listener))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    since = time.process_time()
    loop.run_until(lambda: False, 1.0)
    assert time.process_time() - since < 0.2
"""


def test_without_descriptors_a_loop_does_not_spin():
    ran(NO_DESCRIPTOR)
