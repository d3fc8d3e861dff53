"""``launch check``: look at hosts before a long job, and find what usually goes wrong."""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.checking.findings import findings
from launcher.checking.records import Severity
from launcher.cli.completion import completes_files
from launcher.cli.examining import Examined, Wishes, examine
from launcher.cli.inventory import read_hosts
from launcher.cli.places import is_here
from launcher.cli.request import this_machine
from launcher.cli.sshoptions import add_ssh_options, seconds, ssh_settings
from launcher.cli.telling import tell
from launcher.errors import Fault, HostsError, JobError, TransportError
from launcher.job import Host
from launcher.transport.localerrand import LocalErrands

if TYPE_CHECKING:
    from launcher.transport.base import Errand
    from launcher.transport.ssh.fleet import Fleet

SUMMARY = "look at hosts, and at the network between them, for what breaks jobs"

EXAMPLES = """\
launch check                         this machine
launch check hostfiles/lab.yaml      all of its hosts, and each way between two of them
launch check --json node1,node2      the same for programs
launch check lab.yaml && launch --hosts lab.yaml train.py    (exit code: 0 no problem, 1 problems,
                                     125 a host could not be checked, 2 bad input)"""

#: What seeds are drawn from: short enough to be typed again.
_SEEDS = 10_000
_TIMEOUT = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch check``."""
    where = parser.add_argument(
        "where",
        metavar="FILE_OR_LIST",
        nargs="?",
        help="a hostfile, or host[:slots],... (default: this machine)",
    )
    completes_files(where)
    parser.add_argument("--hosts", metavar="X", help="the same")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--python",
        metavar="PATH",
        default="",
        help="the Python of .py programs where the hostfile names none",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_TIMEOUT,
        metavar="S",
        help="for each question to a host (default: 20)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of more than 32 hosts, try the pairs that this number draws"
    )
    add_ssh_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the hosts and print what was found.

    Raises:
        HostfileError: all that is wrong with the list of them.
        JobError: there are two lists.
    """
    hosts = _hosts(args)
    seed = random.randrange(_SEEDS) if args.seed is None else args.seed
    examined = _examined(hosts, args, Wishes(args.timeout, args.python, seed))
    found = findings(hosts, examined.sights, examined.pairs)
    problems = any(finding.severity is Severity.PROBLEM for finding in found)
    code = TransportError.exit_code if examined.failed else int(problems)
    from launcher.cli import checkview

    if args.json:
        checkview.as_json(hosts, examined, found, seed, code)
    else:
        checkview.as_text(hosts, examined, found, seed)
    return code


def _hosts(args: argparse.Namespace) -> tuple[Host, ...]:
    if args.where is not None and args.hosts is not None:
        raise JobError([Fault("--hosts", f"{args.where!r} is given too", "expected one of the two")])
    text = args.where if args.hosts is None else args.hosts
    return (this_machine(os.environ),) if text is None else read_hosts(text)


class _Unreached:
    """Stands for what runs programs on a host that can't be reached."""

    def __init__(self, why: Mapping[str, str]) -> None:
        self.why = why

    def errand(self, host: str, entry: str, arguments: object) -> Errand:
        """Say why not."""
        raise TransportError(f"{host}: {self.why[host]}")


def _examined(hosts: Sequence[Host], args: argparse.Namespace, wishes: Wishes) -> Examined:
    """Look at hosts here, and over SSH at the others; what needs no SSH does not import it."""
    local = LocalErrands()
    remote = [host for host in hosts if not is_here(host)]
    if not remote:
        return examine(hosts, lambda _: local, wishes, tell)
    from launcher.transport.ssh import lean

    lean.fetch()
    from launcher.transport.ssh.fleet import Fleet

    with Fleet(remote, ssh_settings(args), tell) as fleet:
        nobody = _Unreached(_unreached(fleet))
        return examine(
            hosts,
            lambda host: local if is_here(host) else nobody if host.name in nobody.why else fleet,
            wishes,
            tell,
        )


def _unreached(fleet: Fleet) -> dict[str, str]:
    """Connect to all; why some can't be. The others are checked all the same."""
    try:
        fleet.connect()
    except HostsError as error:
        return dict(_host_and_fault(fault) for fault in error.faults)
    return {}


def _host_and_fault(fault: str) -> tuple[str, str]:
    host, _, what = fault.partition(": ")
    return host, what
