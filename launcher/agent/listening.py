"""Finds tasks that listen on another port than the one that ``TF_CONFIG`` tells the other tasks.

Such a program usually contains its own list of addresses, and the job hangs because its tasks never find each
other. `launcher.agent.questions` runs `print_elsewhere` once, in a child of the agent, a minute after the
first task has started. Ports that the kernel chose do not count, because many libraries listen on one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Dict, Iterable, Iterator, Sequence, Tuple

from launcher.agent import processes
from launcher.common.text import join_names

#: The check follows the start of the first task after this time.
CHECK_AFTER_SECONDS = 60.0
CHECK_TIMEOUT_SECONDS = 8.0
#: The state of a listening socket in ``/proc/net/tcp``.
_LISTEN_STATE = "0A"


def print_elsewhere(tasks: Sequence[Tuple[str, int, int]]) -> None:
    """Print which tasks listen on another port than their own, as a JSON object of ports by task.

    This runs in a child of the agent, which passes what it prints to `explain`.

    Args:
        tasks: The name of each task, the port that it should listen on, and the pid of its main process.
    """
    # The kernel lists listening sockets by inode, and the inodes of each process as its open files.
    port_of_inode = dict(_listening_sockets())
    listening_ports = set(port_of_inode.values())
    # A program or its user has chosen these ports. Those that the kernel chose do not count.
    chosen_ports = listening_ports - set(_ephemeral_ports())
    elsewhere: Dict[str, int] = {}
    for task, expected_port, main_pid in tasks:
        # Some process of the host listens on the right port. That is enough for the other tasks, so the
        # processes of this task need not be searched.
        if expected_port in listening_ports:
            continue
        inodes = set(_socket_inodes(main_pid))
        for process in processes.descendants_of(main_pid):
            inodes.update(_socket_inodes(process.pid))
        # 0, which is never among the ports, stands for a socket that does not listen.
        ports = chosen_ports & {port_of_inode.get(inode, 0) for inode in inodes}
        if ports:
            elsewhere[task] = min(ports)
    os.write(1, json.dumps(elsewhere).encode("ascii"))


def explain(answer: bytes) -> str:
    """Return a message for the user about tasks that listen on other ports than their own.

    Args:
        answer: What `print_elsewhere` has printed.

    Returns:
        An empty text if there are no such tasks.
    """
    elsewhere: Dict[str, int] = {}
    # A child that was killed after its timeout has printed nothing.
    with suppress(ValueError):
        elsewhere = json.loads(answer)
    if not elsewhere:
        return ""
    tasks = join_names([f"{task} on {port}" for task, port in elsewhere.items()])
    return (
        f"listening on a port that is not the one in TF_CONFIG: {tasks}; does the"
        " program have a list of addresses of its own? (docs/tasks.md)"
    )


def _listening_sockets() -> Iterator[Tuple[str, int]]:
    """Yield the inode and the port of each listening TCP socket on this machine."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        # A kernel without IPv6 has no second file, which then has no lines.
        for line in processes.lines_of(name):
            # The fields are number, local address (``0100007F:1F90``), remote address, state, and others. The
            # tenth one is the inode.
            fields = line.split()
            if fields[3] == _LISTEN_STATE:
                yield fields[9], int(fields[1].rpartition(":")[2], 16)


def _ephemeral_ports() -> Iterable[int]:
    """Return the ports from which the kernel chooses when a program does not name one."""
    first, last = map(int, processes.lines_of("/proc/sys/net/ipv4/ip_local_port_range")[0].split())
    return range(first, last + 1)


def _socket_inodes(pid: int) -> Iterator[str]:
    """Yield the inodes of the sockets of a process, or nothing if it is gone or belongs to another user."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            # The process may have closed it meanwhile.
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]
