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
    """One of them."""

    name: str
    version: str
    #: From the hosts, and the program with its arguments.
    command: Callable[[Sequence[str], Sequence[str]], list[str]]
    missing: str = ""


def all_peers(launch: str, before: str | None, chosen: Collection[str] | None) -> list[SshPeer]:
    """Every one, the missing ones too.

    Args:
        launch: path of the launch to measure.
        before: path of another launch.
        chosen: names of the other programs; ``None``: all.
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


_PACKAGES = {"parallel-ssh": "pssh", "clush": "clustershell", "mpirun": "openmpi-bin"}

Words = Sequence[str]
Command = Callable[[str, Words, Words], list[str]]


def _found(name: str, program: str, version: Words, command: Command) -> SshPeer:
    path = shutil.which(program)
    if path is None:
        why = f"apt-get install {_PACKAGES.get(program, program)} would bring it"
        return SshPeer(name, "", lambda *_: [], why)
    shown, missing = peers.version_of([path, *version])
    return SshPeer(name, shown, lambda hosts, argv: command(path, hosts, argv), missing)


def _launch(path: str, hosts: Words, argv: Words) -> list[str]:
    return [path, "--hosts", ",".join(hosts), "--workers", str(len(hosts)), "--", *argv]


def _paramiko(kind: str) -> Command:
    def command(path: str, hosts: Words, argv: Words) -> list[str]:
        return [path, _LOOP, kind, ",".join(hosts), shlex.join(argv)]

    return command


def _parallel_ssh(path: str, hosts: Words, argv: Words) -> list[str]:
    often = ["-p", str(len(hosts)), "-t", "0"]
    return [path, *often, "-H", " ".join(hosts), "-P", shlex.join(argv)]


def _pdsh(path: str, hosts: Words, argv: Words) -> list[str]:
    return [path, "-R", "ssh", "-f", str(len(hosts)), "-w", ",".join(hosts), shlex.join(argv)]


def _clush(path: str, hosts: Words, argv: Words) -> list[str]:
    return [path, "-f", str(len(hosts)), "-w", ",".join(hosts), shlex.join(argv)]


def _mpirun(path: str, hosts: Words, argv: Words) -> list[str]:
    root = ["--allow-run-as-root", "--host", ",".join(hosts), "-np", str(len(hosts))]
    return [path, *root, *argv]
