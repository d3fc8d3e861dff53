"""The least that paramiko can do: ``paramiko_loop.py (loop|threads) HOST,HOST... COMMAND``.

`bench.ssh_peers` starts it. It connects to one host after the other, or to each in a thread of its own, runs
the command and waits for its exit status.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import paramiko


def run(host: str, command: str) -> int:
    """Run a command on a host, and return its exit status."""
    client = paramiko.SSHClient()
    client.load_system_host_keys()
    client.connect(host, allow_agent=False, timeout=20)
    try:
        _, stdout, _ = client.exec_command(command)
        return stdout.channel.recv_exit_status()
    finally:
        client.close()


def main(kind: str, hosts: str, command: str) -> int:
    """Run a command on all hosts, and return the highest exit status.

    Args:
        kind: ``loop`` for one host after the other, or ``threads`` for a thread for each host.
        hosts: The names of the hosts, with commas between them.
        command: The command, for a shell.
    """
    names = hosts.split(",")
    if kind == "loop":
        return max(run(name, command) for name in names)
    with ThreadPoolExecutor(len(names)) as pool:
        return max(pool.map(lambda name: run(name, command), names))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
