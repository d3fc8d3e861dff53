"""No thread is left for this user (``ulimit -u``, ``pids.max`` of a container), or no descriptor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: As a user who has no other processes; the kernel does not limit root.
LIMITED = """
import os, resource
from launcher.loop import Loop
from launcher.transports.base import for_each
import concurrent.futures.thread, launcher.threads  # before they can be read no more
def limit(number):
    resource.setrlimit(resource.RLIMIT_NPROC, (number, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
os.setresuid(*[1_000_000 + os.getpid()] * 3)
"""
HOSTS_ARE_NOT_REACHED = """
limit(1)
results, failed = for_each(["h1", "h2"], str, print, "a step")
assert results == {} and set(failed) == {"h1", "h2"} and "ulimit -u" in failed["h1"], failed
"""
FEWER_DO_THE_SAME = """
limit(3)
results, failed = for_each([f"h{n}" for n in range(50)], str, print, "a step")
assert len(results) == 50 and not failed, failed
"""
A_LOOP_TRIES_AGAIN = """
limit(1)
done = []
with Loop() as loop:
    loop.work(lambda: 7, lambda future: done.append(future.result()))
    assert not loop.until(lambda: done, 0.5)
    limit(20)
    assert loop.until(lambda: done, 10)
assert done == [7]
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a user who has no other processes")
@pytest.mark.parametrize("script", [HOSTS_ARE_NOT_REACHED, FEWER_DO_THE_SAME, A_LOOP_TRIES_AGAIN])
def test_no_thread_is_left(script: str):
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED + script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


#: A connection waits, and no descriptor is left for it.
NO_DESCRIPTOR = """
import os, resource, socket, time
from launcher.loop import Loop
from launcher.unix_socket import accept_own
listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
listener.bind(f"\\0launch-test-{os.getpid()}")
listener.listen()
listener.setblocking(False)
client.connect(listener.getsockname())
with Loop() as loop:
    loop.watch(listener.fileno(), lambda: accept_own(listener))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    since = time.process_time()
    loop.until(lambda: False, 1.0)
    assert time.process_time() - since < 0.2
"""


def test_without_descriptors_a_loop_does_not_spin():
    ended = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTOR], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
