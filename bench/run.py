"""``python -m bench.run``: measure launch beside its peers in one run, and print tables."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import (
    docker,
    failure,
    feed,
    goodput,
    idle,
    output,
    peers,
    preload,
    processes,
    relay,
    shapes,
    ssh,
    startup,
    sync,
    tables,
)
from bench.contenders import FLOOR, HONCHO, MPIRUN, TORCHRUN, Contender, all_contenders
from bench.setting import Setting

MEASUREMENTS: dict[str, Callable[[Setting], None]] = {
    "startup": startup.measure,
    "output": output.measure,
    "shapes": shapes.measure,
    "failure": failure.measure,
    "idle": idle.measure,
    "ssh-start": ssh.measure_start,
    "ssh": ssh.measure,
    "sync": sync.measure,
    "relay": relay.measure,
    "feed": feed.measure,
    "docker": docker.measure,
    "preload": preload.measure,
    "goodput": goodput.measure,
}
#: Those that measure the contenders beside launch: others need no peer, or get their own.
_WITH_PEERS = {"startup", "output", "failure", "idle"}
_PEERS = (HONCHO, MPIRUN, TORCHRUN, FLOOR)
_ROUNDS, _QUICK_ROUNDS = 5, 2
#: A tmpfs, and the room that measuring needs there, in bytes.
_MEMORY, _ROOM = Path("/dev/shm"), 1 << 30


def main(argv: Sequence[str]) -> int:
    """Measure.

    Returns:
        1 if launch did what it must never do (a line lost or torn, a wrong exit code, a process left),
        else 0: being slow is no fault.
    """
    args = _arguments(argv)
    processes.become_subreaper()
    with _scratch() as scratch, _clean_environment():
        chosen = _PEERS if args.peers is None else args.peers
        chosen = [] if _WITH_PEERS.isdisjoint(args.only) else chosen
        contenders = all_contenders(args.launch, args.before, chosen)
        print(_machine(), *map(_introduction, contenders), sep="\n", flush=True)
        setting = Setting(
            contenders, args.rounds, args.quick, scratch, [], args.launch, args.before, args.peers
        )
        if contenders[0].missing:
            setting.faults.append(f"launch: {contenders[0].missing}")
            args.only = []
        for name in args.only:
            MEASUREMENTS[name](setting)
    if args.json is not None:
        tables.write(args.json, [_machine(), *map(_introduction, contenders)])
    for fault in setting.faults:
        print(f"bench: FAULT: {fault}", file=sys.stderr)
    return int(bool(setting.faults))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    beside = str(Path(sys.executable).parent / "launch")
    parser.add_argument("--only", type=_names, default=list(MEASUREMENTS), help=",".join(MEASUREMENTS))
    parser.add_argument("--rounds", type=int, help=f"runs of each contender (default: {_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="few rounds, few lines: does it work at all?")
    parser.add_argument("--launch", metavar="PATH", default=beside, help="the launch to measure")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--before", metavar="PATH", help="another launch to measure in the same rounds")
    other.add_argument("--against", metavar="COMMIT", help="the launch of a commit, in the same rounds")
    parser.add_argument("--peers", type=_words, metavar="NAME,...", help="only these other programs")
    parser.add_argument("--json", metavar="FILE", help="write the tables to a file too")
    args = parser.parse_args(argv)
    if args.against is not None:
        found = peers.commit(args.against)
        if found.missing:
            parser.error(f"--against {args.against}: {found.missing}")
        args.before = found.path
    args.rounds = max(1, args.rounds or (_QUICK_ROUNDS if args.quick else _ROUNDS))
    return args


def _words(text: str) -> list[str]:
    return text.split(",")


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(MEASUREMENTS)}")
    return names


def _machine() -> str:
    load = " ".join(f"{load:.2f}" for load in os.getloadavg())
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"machine: {os.cpu_count()} cores, Linux {platform.release()}, {python}, load {load}"


def _introduction(contender: Contender) -> str:
    if contender.missing:
        return f"  {contender.name}: MISSING: {contender.missing}"
    return f"  {contender.name}: {contender.version}"


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder in memory where there is one, so that no disk is measured; removed at the end."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="launch-bench-", dir=_MEMORY if roomy else None) as folder:
        yield Path(folder)


@contextmanager
def _clean_environment() -> Iterator[None]:
    """The same for all contenders: nothing of the user's settings; runs of launch are not kept among his."""
    for name in list(os.environ):
        if name.startswith(("PYTHON", "OMPI_", "TORCH", "VIRTUAL_ENV", "TASK_")) or name == "RANK":
            del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="launch-bench-state-") as state:
        os.environ["XDG_STATE_HOME"] = state
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
