"""The Python stacks of tasks that hang, on each backend: the odd one is named, and all go on."""

from __future__ import annotations

import json

import pytest

from tests.backends import SOON, Backend, on

#: All but the last one wait for each other, as in a collective. It comes later.
HANGS = """
import json, os, socket, sys, threading, time
addresses = json.loads(os.environ["CLUSTER_SPEC"])["worker"]
mine = os.environ["TASK_ADDRESS"]
host, port = addresses[0].rsplit(":", 1)
def serve():
    with socket.create_server((host, int(port))) as server:
        peers = [server.accept()[0] for _ in addresses]
        for peer in peers:
            peer.sendall(b".")
def connected():
    for _ in range(600):
        try:
            return socket.create_connection((host, int(port)), 5)
        except OSError:
            time.sleep(0.05)
def all_reduce(peer):
    peer.settimeout(120)
    peer.recv(1)
def wait_for_data():
    time.sleep(float(sys.argv[1]))
if mine == addresses[0]:
    threading.Thread(target=serve).start()
if mine == addresses[-1]:
    print("up", flush=True)
    wait_for_data()
    all_reduce(connected())
else:
    peer = connected()
    print("up", flush=True)
    all_reduce(peer)
print("went on", flush=True)
"""


def _check(backend: Backend, workers: int, hang_seconds: int, *options: str) -> None:
    """Take the stacks of a job whose last worker hangs."""
    words = (*options, "--", "python3", "-c", HANGS, str(hang_seconds))
    started = backend.up(*words, workers=workers)
    text = backend.beside("stacks").wait(SOON, code=0).out
    odd, others = json.loads(backend.beside("stacks", "--json").wait(SOON, code=0).out)
    assert odd["tasks"] == [f"worker/{workers - 1}"]
    assert [frame.split()[0] for frame in odd["threads"][0]["frames"]] == ["wait_for_data", "<module>"]
    assert others["tasks"] == [f"worker/{number}" for number in range(workers - 1)]
    assert others["threads"][0]["frames"][0].startswith("all_reduce (<string>:")
    assert text.startswith(f"worker/{workers - 1}:\n    wait_for_data (<string>:")
    ended = started.wait(SOON + hang_seconds, code=0)
    assert ended.out.count("went on") == workers


@pytest.mark.promise("`launch stacks` names the odd task of a job that hangs, everywhere; the job goes on")
@on("local")
def test_the_odd_one_of_a_job_that_hangs(backend: Backend):
    """It is named, while all others are folded, and training goes on."""
    _check(backend, 3, 6)


@pytest.mark.promise("`launch stacks` names the odd task of a job that hangs, everywhere; the job goes on")
@pytest.mark.long
@pytest.mark.timeout(400)
@on("local", "ssh", "docker", "docker-ssh", "slurm", "kubernetes")
def test_the_odd_one_of_a_job_elsewhere(backend: Backend):
    """Even where a program travels to the host first; it leaves no file and no process."""
    workers = 8 if backend.hosts[0] == "localhost" else 3
    _check(backend, workers, 30)
    if hasattr(backend, "machines"):
        assert not [path for machine in backend.machines for path in machine.files() if "py-spy" in path]
        assert not [line for line in backend.command_lines() if "py-spy" in line or "dump --json" in line]


@pytest.mark.long
@pytest.mark.timeout(400)
@on("docker")
def test_a_container_with_few_rights(backend: Backend):
    """Its agent runs as another user than root, and may gain no rights."""
    _check(backend, 3, 30, "--no-mount", "--user", "1234:1234")
