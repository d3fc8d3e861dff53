"""The system of the launcher starts no more threads for its user (``ulimit -u``, ``pids.max``)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.backends import WAITS
from tests.conftest import COMMAND, Launch, Started
from tests.seeing import RunFolder, last_run
from tests.ssh.host import LabHost
from tests.ssh.lab import ONE, TWO, Lab

pytestmark = pytest.mark.promise("no thread or process is left for the launcher's user")

#: Users that run nothing: on Debian daemon, bin, sys and so on.
USERS = range(1, 8)
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


class LimitedLaunch(Launch):
    """The installed command, for a user that has no other process: the kernel does not limit root.

    Args:
        home: The home, of that user.
        uid: The user.
    """

    def __init__(self, home: Path, uid: int) -> None:
        super().__init__(home)
        self._as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]

    def begin(self, *words: str, most: int | None = None) -> Started:
        """Start it, with so many threads and processes at the most, its own among them."""
        limit = [] if most is None else ["prlimit", f"--nproc={most}:"]
        return self.start(*words, cwd="/", command=[*limit, *self._as_user, *COMMAND])

    def limit(self, started: Started, most: int) -> None:
        """Limit the threads and processes of one that runs."""
        limit = ["prlimit", f"--pid={started.process.pid}", f"--nproc={most}:"]
        subprocess.run([*self._as_user, *limit], timeout=10, check=True)


@pytest.fixture
def limited(lab: Lab) -> Iterator[LimitedLaunch]:
    """The command with the keys of the lab, for a user that no other test has now."""
    with ExitStack() as stack:
        lock = stack.enter_context(socket.socket(socket.AF_UNIX))
        uid = next(uid for uid in USERS if _is_bound(lock, f"\0tf-launcher-test-user-{uid}"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        home = folder / "home"  # the tests' own folder is root's alone
        lab.move_in(home)
        for path in (folder, home, *home.rglob("*")):
            os.chown(path, uid, uid)
        command = LimitedLaunch(home, uid)
        yield command
        for started in command.started:
            started.kill()


def _is_bound(lock: socket.socket, name: str) -> bool:
    try:
        lock.bind(name)
    except OSError:
        return False
    return True


def test_a_host_is_lost_and_no_thread_is_left(limited: LimitedLaunch, hosts: list[LabHost]):
    started = limited.begin(*TWO, "--lease", "6", "--grace", "1", "--", *WAITS).up(2, 60)
    limited.limit(started, 1)
    hosts[1].kill_sshd_sessions()
    assert "Traceback" not in started.wait(60, code=125).err
    report = last_run(limited).report
    assert (report["exit_code"], report["failure"]["host"]) == (125, "node2")
    assert "ulimit -u" in report["failure"]["text"]


def test_the_port_of_a_relay_is_used_and_no_thread_is_left(limited: LimitedLaunch):
    """Such a connection is refused, with a line; the job goes on, and so does its relay with more threads."""
    path = limited.home / "relay"
    with socket.socket(socket.AF_UNIX) as program:
        program.bind(str(path))
        path.chmod(0o777)
        program.listen()
        started = limited.begin(*ONE, "--relay", str(path), "--", "python3", "-uc", ASKS)
        started.until(lambda it: "asking" in it.out, 60)
        limited.limit(started, 1)
        started.until(lambda it: "ulimit -u" in it.err and "refused" in it.out, 20)
        limited.limit(started, 1000)
        program.settimeout(20)
        peer, _ = program.accept()
        with peer:
            peer.sendall(b"x")
        ended = started.wait(30, code=0)
    assert ended.err.count("ulimit -u") == 1, ended.err
    assert "answered" in ended.out


@pytest.mark.parametrize("most", [1, 3, 5])
def test_too_few_threads_for_all_hosts(limited: LimitedLaunch, most: int):
    ended = limited.begin(*TWO, "true", most=most).wait(30)
    if most == 5 and ended.code == 0:  # one thread had ended when the last one began
        return
    assert ended.code == 125 and "ulimit -u" in ended.err, ended.err
    assert not re.search("Traceback|Errno|RuntimeError", ended.err), ended.err


@pytest.mark.parametrize("words", [[], ["-d"], ["--tmux"]], ids=str)
def test_too_few_processes_for_tasks_on_this_machine(limited: LimitedLaunch, words: list[str]):
    for most in (1, 2, 3):
        ended = limited.begin(*words, "--workers", "1", "true", most=most).wait(30)
        if ended.code == 0:  # the job needs no more
            continue
        assert ended.code == 125
        assert "ulimit -u" in ended.err and "Errno" not in ended.err, ended.err
    for path in limited.state.glob("*"):
        report = RunFolder(path).report
        assert report["exit_code"] == 0 or "ulimit -u" in report["failure"]["text"], report
