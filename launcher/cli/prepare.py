"""``launch prepare``: the same Python environment on every host."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile

from launcher.backends.fleet import this_machine
from launcher.backends.here import is_here
from launcher.cli.connecting import add_connecting, commands, reaching
from launcher.cli.tables import print_table
from launcher.common.errors import Fault, InputError
from launcher.common.text import join_names, plural
from launcher.config import values
from launcher.config.hostfile import read_hosts
from launcher.environments.requirements import Requirements, wanted
from launcher.launch.notices import print_notice

SUMMARY = "make the same Python environment on every host"

EXAMPLES = """\
launch prepare --hosts lab.yaml              packages of ./requirements.txt
launch prepare --hosts lab.yaml tensorflow   these packages
launch prepare --hosts 'node[01-40]' -r needs.txt --name tf
launch prepare --hosts lab.yaml --check      only compare the hosts
launch prepare --hosts lab.yaml --clean      remove unused ones

Without packages: requirements.txt, else the dependencies in pyproject.toml,
else the TensorFlow that is installed here. Exit code: 0 all hosts have the
environment; 1 some do not; 2 bad input."""

#: The environment of a user who names none.
DEFAULT_ENVIRONMENT = "default"
_COLUMNS = ("host", "Python", "TensorFlow", "driver", "size", "state")
_NAME = values.matching(
    r"(?![0-9a-f]{16}-py)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "expected letters, digits, dots, dashes"
)
#: Days without a run until --clean removes an environment.
_UNUSED_DAYS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch prepare``."""
    parser.add_argument("packages", metavar="PACKAGE", nargs="*", help="such as tensorflow or numpy==2.1")
    text = "a requirements file; may be repeated"
    values.option(parser, "-r --requirement FILE", text, values.not_empty, action="append", default=[])
    values.option(parser, "--hosts X", "a hostfile, or host,... (default: this machine)")
    values.option(
        parser, "--name NAME", "of the environment (default: default)", _NAME, default=DEFAULT_ENVIRONMENT
    )
    values.option(parser, "--upgrade", "find the newest versions again")
    values.option(parser, "--offline", "download wheels here and send them: hosts use no package index")
    do = parser.add_mutually_exclusive_group()
    values.option(do, "--check", "only compare the hosts; exit code 1 if any differs")
    values.option(do, "--clean", f"remove environments that no run has used for {_UNUSED_DAYS} days")
    add_connecting(parser)


def run(args: argparse.Namespace) -> int:
    """Prepare, compare or clean the hosts, and print a table.

    Raises:
        InputError: all faults of the hosts or of the packages.
    """
    hosts = (this_machine(os.environ, print_notice),) if args.hosts is None else read_hosts(args.hosts)
    if args.clean and (args.packages or args.requirement):
        raise InputError([Fault("--clean", "packages are named", "expected none: it removes environments")])
    packages = Requirements() if args.clean else wanted(args.requirement, args.packages, os.environ)

    from launcher.environments.prepare import Preparer  # imports threads
    from launcher.environments.resolving import Resolver

    for number in (signal.SIGTERM, signal.SIGINT):  # what was begun is removed
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    makes = not args.check and not args.clean
    asked = {"name": args.name, "makes": makes, "days": _UNUSED_DAYS if args.clean else 0}
    temporary = tempfile.TemporaryDirectory(prefix="tf-launcher-", ignore_cleanup_errors=True)
    with temporary as folder, commands(hosts, args) as reached:
        resolver = Resolver(packages, args.upgrade, args.offline, folder)
        looks = Preparer(hosts, asked, resolver).prepare(*reached, reaching(args).fanout, print_notice)
    print_table(_COLUMNS, [[host, *look[:5]] for host, look in looks.items()])
    for what, versions in (
        ("Pythons", {look.python for look in looks.values()}),
        ("versions of TensorFlow", {look.tensorflow for look in looks.values()}),
    ):
        if len(versions - {""}) > 1:
            print_notice(f"warning: the hosts have different {what}: {join_names(sorted(versions - {''}))}")
    bad = [host for host, look in looks.items() if look.state != ("clean" if args.clean else "ready")]
    if bad:
        what = "not cleaned" if args.clean else "without the environment"
        print_notice(f"{plural(len(bad), 'host')} of {len(looks)} {what}: {join_names(bad)}")
    elif makes:
        there = f" --hosts {shlex.quote(args.hosts)}" if args.hosts else ""
        send = "" if all(map(is_here, hosts)) else " --sync ."
        print_notice(f"ready: launch{there} --venv {args.name}{send} PROGRAM")
    return int(bool(bad))
