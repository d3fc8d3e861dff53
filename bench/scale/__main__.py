"""Measures the real launcher with simulated hosts: ``python -m bench.scale``.

It measures from the command line of the launcher to its report.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.scale.cases import CASES
from bench.scale.simulation import Fault, Late, Size, Values, simulation
from bench.scale.table import show
from bench.surroundings import clean_environment, commit, machine, scratch

_SIZES = (Size(100, 4), Size(1000, 4), Size(2000, 1), Size(4000, 1), Size(1000, 8))


def main(argv: Sequence[str]) -> int:
    """Run the cases for each size that the command line names, and print the result.

    Args:
        argv: The arguments of the command line.

    Returns:
        1 if launch lost a line or exited with a wrong code, or a command about the run failed, otherwise 0.
        Being slow is no fault.
    """
    args = _arguments(argv)
    result: dict[str, Any] = {
        "commit": commit(),
        "machine": machine(),
        "limit_s": args.limit,
        "latency_ms": args.latency,
        "sizes": [],
    }
    faults: list[str] = []
    with scratch() as folder, clean_environment():
        for size in args.sizes:
            values, notes = _measure(size, args, folder, faults)
            size_of = {"hosts": size.hosts, "tasks": size.tasks}
            result["sizes"].append({**size_of, "values": values, "notes": notes})
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        show(result)
    for fault in faults:
        print(f"bench: FAULT: {fault}", file=sys.stderr)
    return int(bool(faults))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    all_sizes = " ".join(map(str, _SIZES))
    parser.add_argument(
        "sizes", metavar="HOSTSxTASKS", type=_size, nargs="*", help=f"tasks a host (default: {all_sizes})"
    )
    parser.add_argument("--only", metavar="CASE,...", type=_cases, default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--latency", metavar="MS", type=float, default=0.0, help="milliseconds to a host")
    parser.add_argument(
        "--limit", metavar="S", type=float, default=60.0, help="seconds of a step (default: 60)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    args.sizes = args.sizes or _SIZES
    return args


def _size(text: str) -> Size:
    """Read a size such as ``1000x4``."""
    if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}", text):
        raise argparse.ArgumentTypeError(f"expected HOSTSxTASKS, as in 1000x4, got {text!r}")
    hosts, _, tasks = text.partition("x")
    return Size(int(hosts), int(tasks))


def _cases(text: str) -> list[str]:
    """Return the names of cases in the value of ``--only``, all of which must exist."""
    names = text.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(CASES)}")
    return names


def _measure(
    size: Size, args: argparse.Namespace, folder: Path, faults: list[str]
) -> tuple[Values, list[str]]:
    """Run the cases for one size.

    Args:
        size: The size.
        args: The arguments of the command line.
        folder: A folder for temporary files.
        faults: Receives what launch did that it must never do.

    Returns:
        The measured values, and notes about steps without a value.
    """
    values: Values = {}
    notes: list[str] = []
    for name in args.only:
        print(f"bench: {size}: {name}", file=sys.stderr, flush=True)
        try:
            with simulation(size, folder, args.latency / 1000, args.limit) as run:
                try:
                    CASES[name](run, values)
                finally:
                    notes += [*run.notes, *run.faults]
                    faults += [f"{size}: {fault}" for fault in run.faults]
        except Late as late:
            notes.append(f"{name}: {late}")
            if str(late).startswith("start:"):  # The other cases would be late, too.
                break
        except Fault as fault:
            notes.append(f"{name}: {fault}")
            faults.append(f"{size}: {name}: {fault}")
    return values, notes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
