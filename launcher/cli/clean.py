"""``launch clean``: remove what ended launches have left at Docker engines, at Slurm and in Kubernetes."""

from __future__ import annotations

import argparse

from launcher import backends
from launcher.backends.cleaning import Cleaning
from launcher.cli.connecting import add_connecting, commands
from launcher.common.errors import HostsError, LaunchError
from launcher.config.hostfile import read_hosts
from launcher.launch.notices import print_notice

SUMMARY = "remove containers, networks, jobs and pods that launches have left"

EXAMPLES = """\
launch clean                  remove them and list them
launch clean --dry-run        only list them
launch clean --hosts lab.yaml the same at the engines of these hosts
launch clean --kubernetes     Jobs in the namespace of kubectl's context
launch clean --foreign RUN    also what RUN left, whose launcher was elsewhere

Removes only objects with the label of a launch of yours that has provably
ended: its process is gone on this machine. What may belong to a launcher on
another machine or in a container is named, and stays. `launch stop` stops
launchers that -d has started in Kubernetes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch clean``."""
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, remove nothing")
    text = "also remove what this run left, although its launcher may run elsewhere (repeatable)"
    parser.add_argument("--foreign", metavar="RUN", action="append", default=[], help=text)
    parser.add_argument("--hosts", metavar="X", help="at the engines of these hosts (default: this machine)")
    add_connecting(parser)
    for backend in backends.backends().values():
        backend.add_cleaning(parser)


def run(args: argparse.Namespace) -> int:
    """Remove them and list them.

    Raises:
        LaunchError: a host or an engine can't be reached, or does not remove them; a run of
            ``--foreign`` has left nothing.
    """
    args.cleaning = cleaning = Cleaning(args.foreign)
    hosts = () if args.hosts is None else read_hosts(args.hosts)
    found, faults = False, list[str]()
    backends.find_installed()
    with commands(hosts, args) as (programs, unreached):
        if unreached:
            raise HostsError(f"{host}: {why}" for host, why in unreached.items())
        made = backends.backends()
        asked = [name for name in made if getattr(args, name, False)] or [*made]
        for backend in map(made.__getitem__, asked):
            try:
                for line in backend.cleanup(args, hosts, programs, print_notice, args.dry_run):
                    print(line)
                    found = True
            except LaunchError as error:  # others may have something to remove
                faults += error.faults if isinstance(error, HostsError) else [str(error)]
    for note in cleaning.notes():
        print_notice(note)
    faults += cleaning.faults()
    if faults:
        raise HostsError(faults)
    if not found:
        print("nothing to remove")
    return 0
