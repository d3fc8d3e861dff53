"""``launch check``: look at hosts, and at the network between them, before a long job."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.checking.ask import Asked, ask_hosts
from launcher.checking.findings import Finding, HostReport, Offset, Severity, findings
from launcher.cli.options import add_ssh_options, ssh_settings
from launcher.cli.parser import seconds
from launcher.cli.tables import print_table
from launcher.config.hostfile import read_hosts, this_machine
from launcher.errors import Fault, HostsError, JobError, TransportError
from launcher.job import Host
from launcher.job_run.hosts import is_here
from launcher.job_run.notices import print_notice
from launcher.text import byte_size, counted, duration, listed, printable
from launcher.transports.base import RemoteCommand as Errand
from launcher.transports.local import LocalHosts

SUMMARY = "look at hosts, and at the network between them, for what breaks jobs"

EXAMPLES = """\
launch check                         this machine
launch check hostfiles/lab.yaml      all of its hosts, and each connection between two of them
launch check --json node1,node2      the same for programs
launch check lab.yaml && launch --hosts lab.yaml train.py    (exit code: 0 no problem, 1 problems,
                                     125 a host could not be checked, 2 bad input)"""

_COLUMNS = (
    "host", "address", "Python", "TensorFlow", "Keras", "CPUs", "memory free", "disk free", "GPUs", "clock",
    "not checked",
)  # fmt: skip
_TIMEOUT = 20.0
#: Up to this number of hosts a table shows all connections; of more only those that fail, up to a limit.
_MATRIX, _MOST_ROWS = 8, 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch check``."""
    parser.add_argument(
        "where",
        metavar="FILE_OR_LIST",
        nargs="?",
        help="a hostfile, or host[:slots],... (default: this machine)",
    )
    parser.add_argument("--hosts", metavar="X", help="the same")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--python", metavar="PATH", default="", help="the Python of .py programs if the hostfile names none"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_TIMEOUT,
        metavar="S",
        help="for each question to a host (default: 20)",
    )
    add_ssh_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the hosts and print what was found.

    Raises:
        HostfileError: all faults of the list of hosts.
        JobError: there are two lists.
    """
    if args.where is not None and args.hosts is not None:
        raise JobError([Fault("--hosts", f"{args.where!r} is given too", "expected one of the two")])
    text = args.where if args.hosts is None else args.hosts
    hosts = (this_machine(os.environ),) if text is None else read_hosts(text)
    asked = _ask(hosts, args)
    found = findings(hosts, asked.reports, asked.pairs)
    problems = any(finding.severity is Severity.PROBLEM for finding in found)
    code = TransportError.exit_code if asked.failed else int(problems)
    if args.json:
        print(json.dumps(_as_json(hosts, asked, found, code), indent=2))
    else:
        _print(hosts, asked, found)
    return code


class _Unreached:
    """Stands for the errands of hosts that can't be reached."""

    def __init__(self, why: Mapping[str, str]) -> None:
        self.why = why

    def run(self, host: str, entry: str, arguments: object) -> Errand:
        """Raise the reason."""
        raise TransportError(f"{host}: {self.why[host]}")


def _ask(hosts: Sequence[Host], args: argparse.Namespace) -> Asked:
    """Ask the hosts: this machine directly, others over SSH."""
    local = LocalHosts()
    remote = [host for host in hosts if not is_here(host)]
    if not remote:
        return ask_hosts(hosts, lambda _: local, is_here, args.timeout, args.python, print_notice)
    from launcher.transports.ssh.hosts import SshHosts

    with SshHosts(remote, ssh_settings(args), print_notice) as fleet:
        unreached = _Unreached({})
        try:
            fleet.connect()
        except HostsError as error:  # the others are checked all the same
            faults = [fault.partition(": ") for fault in error.faults]
            unreached = _Unreached({host: reason for host, _, reason in faults})
        return ask_hosts(
            hosts,
            lambda host: local if is_here(host) else unreached if host.name in unreached.why else fleet,
            is_here,
            args.timeout,
            args.python,
            print_notice,
        )


# ---------------------------------------------------------------------- output


def _print(hosts: Sequence[Host], asked: Asked, found: Sequence[Finding]) -> None:
    """Tables of hosts and connections, then the findings."""
    reports = {report.host.name: report for report in asked.reports}
    print_table(
        _COLUMNS, [_row(host, reports.get(host.name), asked.failed.get(host.name, "")) for host in hosts]
    )
    sources = list(dict.fromkeys(pair.source for pair in asked.pairs))
    if len(sources) > 1:
        print()
        _print_connections(sources, asked)
    print()
    for finding, following in zip(found, [*found[1:], None], strict=False):
        all_hosts = len(finding.hosts) == len(hosts) > 1
        names = "all hosts" if all_hosts else listed(finding.hosts)
        print(printable(f"{finding.severity.value}: {f'{names}: ' if names else ''}{finding.seen}"))
        if finding.advice and (following is None or following.advice != finding.advice):
            print(printable(f"    try: {finding.advice}"))
    numbers = [(severity, sum(each.severity is severity for each in found)) for severity in Severity]
    parts = [", ".join(counted(number, severity.value) for severity, number in numbers if number)]
    parts += [f"{counted(len(asked.failed), 'host')} could not be checked"] if asked.failed else []
    print("; ".join(filter(None, parts)) or "no findings")


def _row(host: Host, report: HostReport | None, failed: str) -> list[str]:
    address = host.address or ""
    if report is None:
        return [host.name, address, *[""] * (len(_COLUMNS) - 3), failed]
    facts = report.facts
    unknown = "none" if facts["task_python"]["state"] == "ok" else "?"
    free = [folder["free"] for folder in facts["folders"].values() if folder["free"] is not None]
    names = [gpu["name"] for gpu in facts["gpus"]["list"]]
    gpus = listed([f"{names.count(name)} {name}" for name in dict.fromkeys(names)])
    return [
        host.name,
        address,
        report.version("version") or "?",
        report.version("tensorflow") or unknown,
        report.version("keras") or "",
        str(facts["cpus"]),
        byte_size(facts["available"]),
        byte_size(min(free, default=None)),
        "?" if facts["gpus"]["state"] in ("failed", "slow") else gpus,
        _clock(report.offset),
        failed,
    ]


def _clock(offset: Offset | None) -> str:
    """``+3 ms``; ``same`` where the difference is less than the doubt of the measurement."""
    if offset is None:
        return ""
    if abs(offset.seconds) <= offset.uncertainty:
        return "same"
    size = abs(offset.seconds)
    return ("+" if offset.seconds > 0 else "-") + (f"{size * 1000:.0f} ms" if size < 1 else duration(size))


def _print_connections(sources: Sequence[str], asked: Asked) -> None:
    if len(sources) <= _MATRIX:
        results = {(pair.source, pair.target): pair.result for pair in asked.pairs}
        rows = [[source, *(results.get((source, name), "") for name in sources)] for source in sources]
        print_table(("from \\ to", *sources), rows)
        return
    bad = [pair for pair in asked.pairs if pair.result != "ok"]
    print(f"{len(asked.pairs) - len(bad)} of {len(asked.pairs)} connections work")
    if bad:
        rows = [[pair.source, pair.target, pair.result] for pair in bad[:_MOST_ROWS]]
        print_table(("from", "to", "connection"), rows)
    if len(bad) > _MOST_ROWS:
        print(f"and {len(bad) - _MOST_ROWS} more (--json has all)")


def _as_json(hosts: Sequence[Host], asked: Asked, found: Sequence[Finding], code: int) -> dict[str, Any]:
    reports = {report.host.name: report for report in asked.reports}
    return {
        "schema": 2,
        "hosts": [_host_as_json(host, reports.get(host.name), asked.failed.get(host.name)) for host in hosts],
        "pairs": [
            {"from": pair.source, "to": pair.target, "reach": pair.result, "why": pair.why}
            for pair in asked.pairs
        ],
        "findings": [{**each._asdict(), "severity": each.severity.value} for each in found],
        "exit_code": code,
    }


def _host_as_json(host: Host, report: HostReport | None, failed: str | None) -> dict[str, Any]:
    return {
        "name": host.name,
        "address": host.shown_address,
        "error": failed,
        "clock": report.offset._asdict() if report is not None and report.offset is not None else None,
        "facts": None if report is None else report.facts,
        "names": None if report is None else report.names,
    }
