"""A project outside of this repository tests its program by the plug-in."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Launch
from tests.docker.engine import BASE, Engine
from tests.testing.test_documents import python_blocks

pytest_plugins = ["pytester"]

#: Workers tell their steps to the ps, which answers; one that has lost it says so, and ends.
PROGRAM = """\
import os, socket, socketserver, sys, time
flags = dict(word[2:].split("=") for word in sys.argv[1:])
host, port = flags["ps_hosts"].split(":")
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
if flags["job_name"] == "ps":
    Server((host, int(port)), Answer).serve_forever()
for _ in range(600):
    try:
        ps = socket.create_connection((host, int(port)), 5)
        break
    except OSError:
        time.sleep(0.05)
ps.settimeout(0.5)
step = 0
while step < 100_000:
    answer = b""
    try:
        ps.sendall(b"%d\\n" % step)
        while not answer:
            try:
                answer = ps.recv(100)
                if not answer:
                    raise ConnectionError
            except TimeoutError:
                print("no answer", flush=True)
    except OSError:
        while not os.path.exists("known"):  # that it has ended
            time.sleep(0.05)
        sys.exit("the ps is lost")
    print("step", step, "on", socket.gethostname(), flush=True)
    step += 1
    time.sleep(0.005)
"""

#: What only containers can, as docs/testing.md has it, and what is the same in them.
CUTS = next(block for block in python_blocks() if "docker:" in block)
ANYWHERE = next(block for block in python_blocks() if "CannotStart" in block)


@pytest.mark.timeout(240, func_only=True)
def test_a_project(docker: Engine, launch: Launch, plugged: pytest.Pytester):
    (plugged.path / "train.py").write_text(PROGRAM)
    (plugged.path / "test_train.py").write_text(ANYWHERE + CUTS)
    command = [sys.executable, "-m", "pytest", f"--cluster-backend=docker:{BASE}", "-W", "error"]
    ended = launch.start(command=command, cwd=plugged.path).wait(200, code=0)
    assert "3 passed" in ended.out.splitlines()[-1]
