"""Programs that run a command on many hosts over SSH, and their command lines.

`bench.ssh` compares launch with them. A program that is not installed stays in the list with the reason.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import peers

_LOOP = str(Path(__file__).resolve().parent / "programs" / "paramiko_loop.py")
LAUNCH, BEFORE = "launch", "before"


class SshPeer(NamedTuple):
    """A program that runs a command on many hosts, with its command line."""

    name: str
    version: str
    #: Returns its command line for these hosts, and a program with its arguments.
    command: Callable[[Sequence[str], Sequence[str]], list[str]]
    #: Why it cannot be measured. It is empty if it can.
    missing: str = ""


def all_peers(launch: str, before: str | None, chosen: Collection[str] | None) -> list[SshPeer]:
    """Return all programs, including those that are missing.

    Args:
        launch: The path of the launch to measure.
        before: The path of another launch. None means no other.
        chosen: The names of the other programs. None means all.
    """
    found = [
        _found(LAUNCH, launch, ["--version"], _launch),
        *([] if before is None else [_found(BEFORE, before, ["--version"], _launch)]),
        _found("paramiko, one by one", sys.executable, ["--version"], _paramiko("loop")),
        _found("paramiko, threads", sys.executable, ["--version"], _paramiko("threads")),
        _found("parallel-ssh", "parallel-ssh", ["--version"], _parallel_ssh),
        _found("pdsh", "pdsh", ["-V"], _pdsh),
        _found("clush", "clush", ["--version"], _clush),
        _found("mpirun", "mpirun", ["--version"], _mpirun),
    ]
    return [peer for peer in found if chosen is None or peer.name in (LAUNCH, BEFORE, *chosen)]


#: The Debian packages of programs, if they have other names.
_PACKAGES = {"parallel-ssh": "pssh", "clush": "clustershell", "mpirun": "openmpi-bin"}

Words = Sequence[str]
#: Returns a command line from the path of the program, the hosts, and the command to run there.
Command = Callable[[str, Words, Words], list[str]]


def _found(name: str, program: str, version: Words, command: Command) -> SshPeer:
    """Look a program up, and ask it for its version.

    Args:
        name: Its name in tables.
        program: The program.
        version: The arguments with which it prints its version.
        command: Returns its command line.
    """
    path = shutil.which(program)
    if path is None:
        why = f"apt-get install {_PACKAGES.get(program, program)} would bring it"
        return SshPeer(name, "", lambda *_: [], why)
    shown, missing = peers.version_of([path, *version])
    return SshPeer(name, shown, lambda hosts, argv: command(path, hosts, argv), missing)


def _launch(path: str, hosts: Words, argv: Words) -> list[str]:
    """Return the command line of launch, which runs one worker on each host."""
    return [path, "--hosts", ",".join(hosts), "--workers", str(len(hosts)), "--", *argv]


def _paramiko(kind: str) -> Command:
    """Return the command of the bare program, with ``loop`` or ``threads``."""

    def command(path: str, hosts: Words, argv: Words) -> list[str]:
        return [path, _LOOP, kind, ",".join(hosts), shlex.join(argv)]

    return command


def _parallel_ssh(path: str, hosts: Words, argv: Words) -> list[str]:
    """Return the command line of parallel-ssh, which connects to all hosts at the same time."""
    often = ["-p", str(len(hosts)), "-t", "0"]
    return [path, *often, "-H", " ".join(hosts), "-P", shlex.join(argv)]


def _pdsh(path: str, hosts: Words, argv: Words) -> list[str]:
    """Return the command line of pdsh, which connects to all hosts at the same time."""
    return [path, "-R", "ssh", "-f", str(len(hosts)), "-w", ",".join(hosts), shlex.join(argv)]


def _clush(path: str, hosts: Words, argv: Words) -> list[str]:
    """Return the command line of ClusterShell's clush."""
    return [path, "-f", str(len(hosts)), "-w", ",".join(hosts), shlex.join(argv)]


def _mpirun(path: str, hosts: Words, argv: Words) -> list[str]:
    """Return the command line of mpirun, which runs one process on each host."""
    root = ["--allow-run-as-root", "--host", ",".join(hosts), "-np", str(len(hosts))]
    return [path, *root, *argv]
