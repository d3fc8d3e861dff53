"""Processes as the kernel shows them, and signals to exactly the one meant."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from launcher.processes import kernel


def test_a_process_with_an_odd_name():
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 (\\n', 0, 0, 0); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as it:
        assert it.stdout
        it.stdout.readline()
        process = kernel.look_at(it.pid)
        assert process is not None
        assert (process.pid, process.parent) == (it.pid, os.getpid())
        assert not process.ended
        assert it.pid in kernel.children_of(os.getpid())
        assert it.pid in [child.pid for child in kernel.descendants_of(os.getpid())]
        assert it.pid in kernel._children_by_scan(os.getpid())
        it.communicate(b"\n")


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_signal_never_goes_to_a_later_process_of_that_number(pidfd: bool, monkeypatch: pytest.MonkeyPatch):
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "60"]) as it:
        process = kernel.look_at(it.pid)
        assert process is not None
        assert not kernel.send(process._replace(start=process.start - 1), signal.SIGKILL)
        assert it.poll() is None
        assert kernel.send(process, signal.SIGTERM)
        it.wait()
        assert not kernel.send(process, signal.SIGTERM)
        assert kernel.look_at(it.pid) is None


#: Goes on as its child, again and again, without a pause; ends by itself if nobody does it.
_RELAY = """
import os, time
os.setsid()
os.write(1, b"up")
end = time.monotonic() + 50
while time.monotonic() < end:
    if os.fork(): os._exit(0)
"""


def test_a_group_is_killed_as_a_whole_however_fast_it_forks():
    read, write = os.pipe()
    with open(read, "rb") as output:
        first = subprocess.Popen([sys.executable, "-c", _RELAY], stdout=write)
        os.close(write)
        assert output.read(2) == b"up"
        first.wait(40)
        runner = subprocess.Popen(["sleep", "60"])
        ours = kernel.look_at(runner.pid)
        assert ours is not None
        until = time.monotonic() + 40
        while select.select([output], [], [], 0.01)[0] == []:  # its end comes with the last of them
            assert time.monotonic() < until
            group = [process for process in kernel.all_processes() if process.group == first.pid]
            kernel.kill_groups([*group, ours, ours._replace(group=0), ours._replace(session=0)])
        assert output.read() == b""
        assert runner.poll() is None, "it is of our own session"
        runner.kill()
        runner.wait()


def test_a_group_whose_number_was_used_again_is_left_alone():
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as it:
        process = kernel.look_at(it.pid)
        assert process is not None and process.group == it.pid
        kernel.kill_groups([process._replace(start=process.start - 1)])
        assert it.poll() is None
        kernel.kill_groups([process])
        assert it.wait(40) == -signal.SIGKILL


_WITHOUT_DESCRIPTORS = """
import os, resource, signal, subprocess, sys
from launcher.processes import kernel
kernel.keep_reserve()
child = subprocess.Popen(["sleep", "60"])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = []
try:
    while True:
        kept.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
me = os.getpid()
assert kernel.look_at(child.pid).parent == me
assert kernel.children_of(me) == [child.pid]
assert [found.pid for found in kernel.descendants_of(me)] == [child.pid]
assert child.pid in [found.pid for found in kernel.all_processes()]
assert kernel.watermark_of(child.pid) == 0
assert kernel.send(kernel.look_at(child.pid), signal.SIGKILL)
assert child.wait() == -signal.SIGKILL
assert kernel.look_at(child.pid) is None
print("all seen")
"""


def test_processes_are_seen_and_signalled_without_a_descriptor_left():
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DESCRIPTORS], capture_output=True, timeout=50, check=False
    )
    assert done.stdout == b"all seen\n", done.stderr.decode()


def test_not_to_know_is_not_to_have_seen_that_it_is_gone(monkeypatch: pytest.MonkeyPatch):
    def no_descriptor(path: str) -> bytes:
        raise OSError(24, "Too many open files", path)

    monkeypatch.setattr(kernel, "_read", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        kernel.look_at(os.getpid())


def test_descendants_are_killed_though_the_time_is_over():
    """It may be us who did nothing for so long. In a process of its own: it kills all that is below it."""
    code = (
        "import os, subprocess; from launcher.processes import kernel\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "kernel.kill_descendants(0.0, lambda: None)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == -9"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
