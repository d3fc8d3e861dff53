"""``launch clean``: remove what launches that are over have left at the Docker engine."""

from __future__ import annotations

import argparse

from launcher.cli.removed import show
from launcher.cli.sshoptions import add_ssh_options
from launcher.cli.telling import tell
from launcher.errors import LaunchError
from launcher.transports.docker import engine
from launcher.transports.docker.here import reminder

SUMMARY = "remove containers and networks that killed launches, or --keep, have left"

EXAMPLES = """\
launch clean                  remove them, and say which
launch clean --dry-run        only say which
launch clean --hosts lab.yaml the same at the engines of these hosts

Only what carries the labels of a launch of yours, on this machine, whose process is over."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch clean``."""
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, remove nothing")
    parser.add_argument(
        "--hosts", metavar="X", help="at the engines of these hosts: a hostfile, or host,... (default: here)"
    )
    add_ssh_options(parser)


def run(args: argparse.Namespace) -> int:
    """Remove them.

    Raises:
        LaunchError: the engine can't be reached, or does not remove them.
    """
    if args.hosts is not None:
        from launcher.cli import dockerclean

        return dockerclean.run(args)
    with reminder(tell, "waiting for the Docker engine to respond"):
        engine.inspect(engine.run_here)
        found = engine.dead(engine.run_here, kept=True)
        left = [] if args.dry_run else engine.remove(engine.run_here, found)
    show(args.dry_run, [(f"{thing.kind} {thing.name}",) * 2 for thing in found], left)
    if left:
        raise LaunchError("; ".join(left))
    return 0
