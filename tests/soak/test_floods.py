"""Another user of the machine floods every socket of ours: jobs and commands do not notice.

``LAUNCH_SOAK=N`` repeats each case N times; without it each runs once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import Launch
from tests.seeing import last_run
from tests.soak.test_kills import repeated
from tests.ssh.host import LabHost

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of another user"),
    pytest.mark.timeout(240),
]
#: Processes of a flood.
FLOODERS = 3
#: As another user, connects in a loop to all abstract sockets of ours whose names contain its argument. Every
#: second process waits where the queue is full; the others try again at once, and keep connections open.
FLOOD = r"""
import ctypes, os, socket, sys, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(1, 9)  # SIGKILL with its parent
part, patient, until = sys.argv[1], sys.argv[2] == "1", time.monotonic() + 120
names = {}
for line in open("/proc/net/unix").read().splitlines()[1:]:
    fields = line.split()
    if len(fields) == 8 and fields[7].startswith("@tf-launcher-") and part in fields[7]:
        names["\0" + fields[7][1:]] = int(fields[4])
print(len(names), flush=True)
kept = []
while time.monotonic() < until:
    for name, kind in names.items():
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.setblocking(patient)
        try:
            sock.connect(name)
        except OSError:
            pass
        kept.append(sock)
        if patient or len(kept) > 500:
            kept.clear()
"""
#: worker/0 prints numbered lines until there is a file, and ends the job; ps/0 does not end by itself.
SCRIPT = """\
test "$JOB_NAME" = worker || { echo "up $LAUNCH_ATTEMPT"; exec sleep 300; }
i=0
until test -e "$STOP"; do i=$((i + 1)); echo "line $i"; sleep 0.1; done
echo "of $i"
"""


Start = Callable[[list[str]], "subprocess.Popen[bytes]"]


def here(argv: list[str]) -> subprocess.Popen[bytes]:
    """Start a process on this machine."""
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextmanager
def flood(start: Start, part: str = "", python: str = sys.executable) -> Iterator[None]:
    """Flood the sockets whose names contain ``part``."""
    started = [start([python, "-I", "-S", "-c", FLOOD, part, str(n % 2)]) for n in range(FLOODERS)]
    try:
        for process in started:
            assert process.stdout is not None
            assert int(process.stdout.readline() or b"0") > 0, process.communicate()
        time.sleep(0.5)  # the queues are full
        yield
        assert [process.poll() for process in started] == [None] * FLOODERS
    finally:
        for process in started:
            process.kill()
            process.communicate()


@repeated
def test_a_connection_breaks(ssh_launch: Launch, hosts: list[LabHost], turn: int):
    """The commands that ask the launcher, or show its output, work; no line is lost, and none comes twice."""
    host, stop = hosts[0], hosts[0].home / "stop"
    host.expected.append("stop")
    words = ["--hosts", "node1", "--ps", "1", "--workers", "1", "--grace", "1", "-x", f"STOP={stop}"]
    started = ssh_launch.start(*words, "--", "sh", "-c", SCRIPT, cwd="/")
    started.until(lambda it: "| line" in it.out and "| up 1" in it.out, 60)
    job = last_run(ssh_launch).path.name
    with flood(host.start, python="python3"):
        for count in (1, 2, 3):
            assert host.kill_sshd_sessions()
            started.until(lambda it, count=count: it.err.count("connected again") == count, 60)  # type: ignore[misc]
        with flood(here, job):
            tasks = json.loads(ssh_launch("ps", job, "--json", cwd="/", code=0).out)
            assert {task["task"] for task in tasks} == {"ps/0", "worker/0"}
            ssh_launch("restart", job, "ps/0", cwd="/", code=0)
            attached = ssh_launch.start("attach", job, cwd="/").until(lambda it: "| line" in it.out)
            attached.stop(signal.SIGINT, code=130)
        stop.touch()
        ended = started.wait(60, code=0)
    count = int(ended.out.partition("| of ")[2].split()[0])
    assert re.findall(r"\| line (\d+)", ended.out) == [str(number) for number in range(1, count + 1)]
