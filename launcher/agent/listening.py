"""Finds tasks that serve on ports of their own choice: the others look for them on those of ``TF_CONFIG``.

A child of the agent looks once, a minute after the first start. Ports that the kernel chose do not count:
many libraries listen on one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Dict, Iterable, Iterator, Sequence, Tuple

from launcher.agent import processes
from launcher.common.text import join_names

#: Seconds from the first start to the look; for the look, at most.
CHECK_AFTER_SECONDS = 60.0
CHECK_TIMEOUT_SECONDS = 8.0
#: The state of a socket that listens, in ``/proc/net/tcp``.
_LISTEN_STATE = b"0A"


def print_elsewhere(tasks: Sequence[Tuple[str, int, int]]) -> None:
    """Print as JSON on which ports tasks listen, for those that do not listen on their own ports.

    It is called in a child of the agent.

    Args:
        tasks: Name, port and main process of each.
    """
    listening = dict(_listening())
    chosen = set(listening.values()) - set(_kernels_ports())
    found: Dict[str, int] = {}
    for task, own, pid in tasks:
        if own not in listening.values():
            below = [process.pid for process in processes.descendants_of(pid)]
            ports = {listening.get(inode, 0) for each in (pid, *below) for inode in _sockets(each)} & chosen
            found.update({task: min(ports)} if ports else {})
    os.write(1, json.dumps(found).encode("ascii"))


def explain(answer: bytes) -> str:
    """Return what the child printed, for the user, or an empty text if it found nothing."""
    found: Dict[str, int] = {}
    with suppress(ValueError):  # it was killed: its time was up
        found = json.loads(answer)
    named = join_names([f"{task} on {port}" for task, port in found.items()])
    return named and (
        f"listening on a port that is not the one in TF_CONFIG: {named}; does the"
        " program have a list of addresses of its own? (docs/tasks.md)"
    )


def _listening() -> Iterator[Tuple[bytes, int]]:
    """Inode and port of each TCP socket that listens."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(name, "rb") as lines:  # no IPv6 here
            for fields in map(bytes.split, lines):
                if fields[3] == _LISTEN_STATE:
                    yield fields[9], int(fields[1].rpartition(b":")[2], 16)


def _kernels_ports() -> Iterable[int]:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first, last = map(int, file.read().split())
    return range(first, last + 1)


def _sockets(pid: int) -> Iterator[bytes]:
    """Yield the inodes of the sockets of a process, or nothing if it is gone or belongs to another user."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it was closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1].encode("ascii")
