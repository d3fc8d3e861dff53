"""The parts of ``launch --sync`` before and after a job: list the folder, connect, start the agents, copy.

    sync.py bring JOB FOLDER[:REMOTE] HOST...    the part before the job
    sync.py finish JOB HOST...                   the part after the job

`bench.sync` starts it, because a whole launch would also measure the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from launcher.backends.connections import AgentArguments
from launcher.backends.link import ReconnectingLink
from launcher.backends.programs import RemoteProgram
from launcher.backends.ssh.connections import SshConnections
from launcher.config.settings import Settings
from launcher.event_loop import EventLoop
from launcher.files.requests import parse_syncs
from launcher.files.transfer import FileTransfer, finish, sync
from launcher.files.walk import read_trees
from launcher.job import Host


class Agents:
    """A runner of programs in the agents of hosts, as a launch has it.

    Args:
        links: The link to the agent of each host, by its name.
    """

    def __init__(self, links: Mapping[str, ReconnectingLink]) -> None:
        self._links = links

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program in the agent of a host, and return it."""
        return self._links[host].run(entry, arguments)


@contextmanager
def agents(hosts: Sequence[str]) -> Iterator[tuple[Agents, EventLoop]]:
    """Return a context with agents on hosts, and the event loop of the links to them."""
    with (
        EventLoop() as loop,
        SshConnections([Host(name) for name in hosts], Settings()) as connections,
    ):
        connections.connect()
        links = {name: ReconnectingLink(loop, connections, AgentArguments.new(name)) for name in hosts}
        yield Agents(links), loop
        for link in links.values():
            link.shut_down()
        for link in links.values():
            link.wait(10.0)
            link.close()


def bring(job: str, text: str, *hosts: str) -> None:
    """Copy a folder to hosts.

    Args:
        job: The name of the run.
        text: The value of ``--sync``.
        hosts: The names of the hosts.
    """
    trees, _ = read_trees(parse_syncs([text]), os.getcwd())
    with agents(hosts) as (commands, loop):
        sync(FileTransfer(commands, 32, loop=loop), hosts, trees, job)


def end(job: str, *hosts: str) -> None:
    """Remove the folders of a run from hosts."""
    with agents(hosts) as (commands, loop):
        finish(FileTransfer(commands, 32, loop=loop), hosts, job)


if __name__ == "__main__":
    if sys.argv[1] == "bring":
        bring(*sys.argv[2:])
    else:
        end(*sys.argv[2:])
