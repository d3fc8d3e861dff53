"""What tasks print arrives whole and in order, and delays nothing else."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import pytest

from launcher.common import events
from launcher.common.cluster import TaskId
from tests.contract.driver import AT_ONCE, QUICK, SOON, Driver
from tests.contract.sites import Eyes
from tests.seeing import soon

MB = 1 << 20


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("for i in 1 2; do echo out $i; echo err $i >&2; done", b"out 1\nerr 1\nout 2\nerr 2\n"),
        (r"printf '\000\377\r\n\033[2J end'", b"\0\xff\r\n\x1b[2J end"),
        (
            r"printf '\n<tf-launcher agent, wire 1>\n\005\000\000\000\002'",
            b"\n<tf-launcher agent, wire 1>\n\5\0\0\0\2",
        ),
    ],
    ids=["both streams", "binary", "like our own messages"],
)
def test_output_is_as_printed(agent: Driver, script: str, output: bytes):
    agent.run("worker/0", ["sh", "-c", script])
    assert agent.output("worker/0") == output


def test_much_just_before_the_exit(agent: Driver, eyes: Eyes):
    loop = "import os\ndata = bytes(range(256)) * 20480\nwhile data: data = data[os.write(1, data):]\n"
    loop += "os._exit(3)"
    assert agent.run("worker/0", [eyes.site.python, "-c", loop]).code == 3
    assert agent.output("worker/0") == bytes(range(256)) * 20480


def test_output_closed_and_going_on(agent: Driver, eyes: Eyes):
    script = "echo bye; exec >&- 2>&-; while ! [ -e end ]; do sleep 0.05; done; exit 9"
    agent.start("worker/0", ["sh", "-c", script], workdir=eyes.site.folder)
    agent.prints("worker/0", b"bye\n")
    agent.quiet(0.5)  # the agent sees the end of the output
    assert agent.fact(events.TaskExited) is None
    eyes.write("end", b"")
    assert agent.wait(events.TaskExited).code == 9
    agent.wait(events.TaskGone)


def test_output_held_open_by_a_process_of_another_task(agent: Driver, eyes: Eyes):
    """A task passes its output on to one that is not its child: its end does not wait for that."""
    fifo = eyes.site.folder + "/fifo"
    eyes.code("import os, sys; os.mkfifo(sys.argv[1])", fifo)
    take = (
        "import os, socket, sys, time\n"
        "s = socket.socket(1); s.bind(sys.argv[1] + '.sock'); s.listen(); print('up', flush=True)\n"
        "c, _ = s.accept(); m, fds, *_ = socket.recv_fds(c, 1, 1); c.send(b'x')\n"
        "time.sleep(60)"
    )
    give = (
        "import socket, sys\n"
        "s = socket.socket(1); s.connect(sys.argv[1] + '.sock'); socket.send_fds(s, [b'x'], [1]); s.recv(1)\n"
        "print('given')"
    )
    agent.start("worker/0", [eyes.site.python, "-c", take, fifo])
    agent.prints("worker/0", b"up")
    agent.run("worker/1", [eyes.site.python, "-c", give, fifo])
    assert agent.output("worker/1") == b"given\n"
    assert agent.fact(events.TaskGone, "worker/0") is None
    agent.stopped("worker/0")


def test_many_at_once_are_not_mixed(agent: Driver, eyes: Eyes):
    code = "import sys; sys.stdout.writelines(f'{sys.argv[1]} {i}\\n' for i in range(20000))"
    for index in range(8):
        agent.start(f"worker/{index}", [eyes.site.python, "-c", code, str(index)])
    for index in range(8):
        agent.wait(events.TaskGone, f"worker/{index}")
        assert agent.output(f"worker/{index}") == b"".join(b"%d %d\n" % (index, i) for i in range(20000))


@pytest.mark.promise("bounded memory")
@pytest.mark.timeout(200)
def test_memory_is_bounded_while_nothing_reads(open_agent: Callable[[], Driver], eyes: Eyes):
    """256 MiB are printed while the link is not read: the task waits, the agent stays small, all comes."""
    agent = open_agent()
    pid = agent.ready().pid

    def peak() -> int:
        return int(eyes.status(pid, "VmHWM").split()[0]) * 1024

    small = peak()  # a fork is as large as what it is a fork of, here pytest
    size = 1 << 28
    code = (
        "import os, sys\n"
        "data, at, size = bytes(range(256)) * 4096, 0, int(sys.argv[1])\n"
        "while at < size: at += os.write(1, data[at % 256 : min(len(data), size - at + at % 256)])\n"
    )
    task = agent.started("worker/0", [eyes.site.python, "-c", code, str(size)])
    agent.started("worker/1", ["sh", "-c", "while echo line; do :; done"])
    time.sleep(1.5)  # the link is not read
    assert peak() < small + 32 * MB
    assert eyes.alive(task.pid) == [task.pid]
    agent.stop("worker/1", steps=QUICK)
    taken, total = hashlib.sha256(), 0

    def drained() -> bool:
        nonlocal total
        data, _ = agent.drain("worker/0"), agent.drain("worker/1")
        taken.update(data)
        total += len(data)
        return agent.fact(events.TaskGone, "worker/0") is not None

    agent.until(drained, timeout=150)
    assert total == size
    expected = hashlib.sha256()
    for _ in range(size >> 20):
        expected.update(bytes(range(256)) * 4096)
    assert taken.digest() == expected.digest()
    assert agent.wait(events.TaskExited, "worker/0").code == 0
    assert peak() < small + 48 * MB


def test_a_stop_works_while_nothing_reads(agent: Driver, eyes: Eyes):
    pid = agent.started("worker/0", ["sh", "-c", "while echo line; do :; done"]).pid
    time.sleep(0.3)
    agent.send_unread(events.StopTasks(agent.host, (TaskId("worker/0"),), AT_ONCE))
    soon(lambda: not eyes.alive(pid), SOON)
    agent.wait(events.TaskGone)
    assert set(agent.output("worker/0").splitlines()) <= {b"line", b""}
