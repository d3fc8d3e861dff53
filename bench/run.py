"""Measures launch beside its peers in one run, and prints tables: ``python -m bench.run``.

The exit code is 1 if launch did what it must never do, such as losing a line. Being slow is no fault.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import (
    docker,
    failure,
    feed,
    goodput,
    idle,
    kubernetes,
    output,
    peers,
    preload,
    prepare,
    processes,
    relay,
    shapes,
    slurm,
    ssh,
    startup,
    storage,
    sync,
    tables,
)
from bench.contenders import BEFORE, FLOOR, HONCHO, LAUNCH, MPIRUN, TORCHRUN, Contender, all_contenders
from bench.setting import Setting
from bench.surroundings import clean_environment, commit, machine, scratch

MEASUREMENTS: dict[str, Callable[[Setting], None]] = {
    "startup": startup.measure,
    "output": output.measure,
    "shapes": shapes.measure,
    "failure": failure.measure,
    "idle": idle.measure,
    "ssh-start": ssh.measure_start,
    "ssh": ssh.measure,
    "slurm": slurm.measure,
    "kubernetes": kubernetes.measure,
    "sync": sync.measure,
    "prepare": prepare.measure,
    "relay": relay.measure,
    "feed": feed.measure,
    "storage": storage.measure,
    "docker": docker.measure,
    "preload": preload.measure,
    "goodput": goodput.measure,
}
#: The measurements of the contenders beside launch. All others need no peer, or find their own.
_WITH_PEERS = {"startup", "output", "failure", "idle"}
_PEERS = (HONCHO, MPIRUN, TORCHRUN, FLOOR)
_ROUNDS, _QUICK_ROUNDS = 5, 2


def main(argv: Sequence[str]) -> int:
    """Run the measurements that the command line names, and print their tables.

    Args:
        argv: The arguments of the command line.

    Returns:
        1 if launch did what it must never do (a line lost or torn, a wrong exit code, a process left), or
        if a floor was beaten, otherwise 0. Being slow is no fault.
    """
    args = _arguments(argv)
    processes.become_subreaper()
    with scratch() as folder, clean_environment():
        chosen = _PEERS if args.peers is None else args.peers
        chosen = [] if _WITH_PEERS.isdisjoint(args.only) else chosen
        contenders = all_contenders(args.launch, args.before, chosen)
        introduction = [machine(), *(_introduction(one, args.commits) for one in contenders)]
        print(*introduction, sep="\n", flush=True)
        setting = Setting(
            contenders, args.rounds, args.quick, folder, [], args.launch, args.before, args.peers
        )
        if contenders[0].missing:
            setting.faults.append(f"launch: {contenders[0].missing}")
            args.only = []
        for name in args.only:
            MEASUREMENTS[name](setting)
    if args.json is not None:
        tables.write(args.json, introduction)
    for fault in setting.faults:
        print(f"bench: FAULT: {fault}", file=sys.stderr)
    return int(bool(setting.faults))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, and install the launch of the commit in ``--against``."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    beside = str(Path(sys.executable).parent / "launch")
    parser.add_argument("--only", type=_names, default=list(MEASUREMENTS), help=",".join(MEASUREMENTS))
    parser.add_argument("--rounds", type=int, help=f"runs of each contender (default: {_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="few rounds, few lines: does it work at all?")
    parser.add_argument(
        "--launch", metavar="PATH", default=beside, type=os.path.abspath, help="the launch to measure"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--before", metavar="PATH", type=os.path.abspath, help="another launch to measure in the same rounds"
    )
    other.add_argument("--against", metavar="COMMIT", help="the launch of a commit, in the same rounds")
    parser.add_argument("--peers", type=_words, metavar="NAME,...", help="only these other programs")
    parser.add_argument("--json", metavar="FILE", help="write the tables to a file too")
    args = parser.parse_args(argv)
    args.commits = {} if args.launch != beside else {LAUNCH: commit()}
    if args.against is not None:
        found = peers.commit(args.against)
        if found.missing:
            parser.error(f"--against {args.against}: {found.missing}")
        args.before, args.commits[BEFORE] = found.path, found.version
    args.rounds = max(1, args.rounds or (_QUICK_ROUNDS if args.quick else _ROUNDS))
    return args


def _words(text: str) -> list[str]:
    """Return the words of an option's value, which are separated by commas."""
    return text.split(",")


def _names(text: str) -> list[str]:
    """Return the names of measurements in the value of ``--only``, all of which must exist."""
    names = text.split(",")
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(MEASUREMENTS)}")
    return names


def _introduction(contender: Contender, commits: Mapping[str, str]) -> str:
    """Return the line about a contender: its version and its commit, or why it is missing."""
    if contender.missing:
        return f"  {contender.name}: MISSING: {contender.missing}"
    of = f", commit {commits[contender.name]}" if contender.name in commits else ""
    return f"  {contender.name}: {contender.version}{of}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
