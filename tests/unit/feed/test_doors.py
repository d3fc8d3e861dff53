"""The way from a task to the program that drives its job, where the machine lacks something."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.feed import ways
from launcher.feed.door import Door, Guest
from launcher.feed.knock import Doors

KEY = b"k" * 32
WHO = {"task": "worker/0", "attempt": 1, "python": [3, 11], "pid": 1}


def test_a_machine_without_ipv6_is_no_obstacle(monkeypatch: pytest.MonkeyPatch):
    real = socket.socket

    class Without(real):  # type: ignore[misc,valid-type]
        def __init__(self, family: int = socket.AF_INET, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **more)

    with real() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(10)
        monkeypatch.setattr(socket, "socket", Without)
        lines = ways.answering([("fd00::1", 5), server.getsockname()])

        def greet() -> None:
            with server.accept()[0] as guest:
                guest.sendall(b"hello")

        caller = threading.Thread(target=greet)
        caller.start()
        with next(lines) as line:
            assert line.recv(5) == b"hello"
        caller.join()
        with pytest.raises(ways.Closed, match="fd00::1 port 5: Address family not supported"):
            list(ways.answering([("fd00::1", 5)]))
        lines.close()  # type: ignore[attr-defined]


def test_a_door_does_not_spin_while_there_is_no_descriptor(tmp_path: Path):
    guests: list[Guest] = []
    door = Door(KEY, str(tmp_path))
    door.serve(guests.append)
    came = threading.Event()

    def come() -> None:
        Doors([f"unix:{door.path}"], "", KEY, WHO).knock("feed", feed="input").close()
        came.set()

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as waiting:
        try:
            full = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (full + 1, limits[1]))
            held = _all_descriptors()
            try:
                waiting.connect(door.path)
                before = time.thread_time(), time.process_time()
                time.sleep(0.6)  # what spins does so now
                used = time.process_time() - before[1] - (time.thread_time() - before[0])
            finally:
                for number in held:
                    os.close(number)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert used < 0.1
    thread = threading.Thread(target=come)
    thread.start()
    assert came.wait(20), "then it lets in again"
    thread.join()
    door.close()
    for guest in guests:
        guest.sock.close()


def _all_descriptors() -> list[int]:
    """All that are to be had."""
    found = []
    try:
        while True:
            found.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return found
