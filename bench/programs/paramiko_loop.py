"""The least that paramiko can do: ``paramiko_loop.py (loop|threads) CONFIG HOST,HOST... COMMAND``.

One host after the other, or a thread for each; a connection, a command, its exit status.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import paramiko


def run(config: paramiko.SSHConfig, host: str, command: str) -> int:
    """Run a command on a host: its exit status."""
    found = config.lookup(host)
    client = paramiko.SSHClient()
    client.load_host_keys(found["userknownhostsfile"])
    client.connect(
        found["hostname"], username=found["user"], key_filename=found["identityfile"], allow_agent=False,
        look_for_keys=False, timeout=20,
    )  # fmt: skip
    try:
        _, stdout, _ = client.exec_command(command)
        return stdout.channel.recv_exit_status()
    finally:
        client.close()


def main(kind: str, path: str, hosts: str, command: str) -> int:
    """Run a command on all hosts; the worst exit status."""
    config = paramiko.SSHConfig.from_path(path)
    names = hosts.split(",")
    if kind == "loop":
        return max(run(config, name, command) for name in names)
    with ThreadPoolExecutor(len(names)) as pool:
        return max(pool.map(lambda name: run(config, name, command), names))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
