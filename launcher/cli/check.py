"""``launch check``: check hosts, and the network between them, before a long job."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from launcher.backends.connections import ProgramRunner, for_each
from launcher.backends.fleet import this_machine
from launcher.backends.here import is_here
from launcher.backends.json_client import JsonClient
from launcher.cli.connecting import allocating_groups, allocation, commands, connecting_groups
from launcher.common.errors import TransportError
from launcher.common.record import Record, as_dict, replace
from launcher.common.text import byte_size, escape_controls, join_names, plural
from launcher.config.hostfile import read_hosts
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.table import CONNECT_TIMEOUT, FANOUT
from launcher.config.values import environment, positive_duration, program_path
from launcher.findings import PROBLEM, WARNING, Finding, HostCheck, HostInspection, ReachResult, findings
from launcher.job import Host
from launcher.messages import say
from launcher.output.renderers import record_as_dict
from launcher.output.table import print_table
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON

SUMMARY = "check hosts and the network between them for faults"

EXAMPLES = """\
launch check                         this machine, or those of an allocation
launch check hostfiles/lab.yaml      its hosts, and connections between them
launch check --slurm -N 2            two nodes that Slurm allocates meanwhile
launch check --kubernetes IMAGE      two pods, made meanwhile
launch check --json node1,node2      the same for programs
launch check lab.yaml && launch --hosts lab.yaml train.py

Exit code: 0 no problem; 1 problems; 125 a host could not be checked;
2 bad input."""

_COLUMNS = (
    "host", "address", "Python", "TensorFlow", "Keras", "CPUs", "memory free", "disk free", "GPUs",
    "not checked",
)  # fmt: skip
#: The names of the fields of a `ReachResult` in JSON.
_DEFAULT_TIMEOUT_SECONDS = 20.0
_ENTRY = "launcher.agent.checks:main"
#: Seconds for one connection between two hosts, and that an answer may take beyond its host's own limit.
_CONNECT_TIMEOUT_SECONDS = 5.0
_ANSWER_MARGIN_SECONDS = 5.0
#: Parts of an answer about a host, each with its own time limit.
_ANSWER_PARTS = 3
#: To this number of hosts each host connects: itself and the next ones in the list.
_MAX_PEERS = 32


HOSTS: Setting[str | None] = Setting(
    "hosts", str, "the hosts, in place of FILE_OR_LIST", metavar="X", default=None
)
LIST: Setting[str | None] = Setting(
    "list", str, "a hostfile, or host[:slots],... (default: this machine)", metavar="FILE_OR_LIST",
    default=None, positional="?", excludes=("hosts",),
)  # fmt: skip
JSON = Setting("json", switch, "print JSON instead of tables", default=False)
PYTHON: Setting[str | None] = Setting(
    "python", program_path, "the Python of .py files (default: the hostfile's)", metavar="PATH", default=None
)
VENV: Setting[str | None] = Setting(
    "venv", environment, "the environment of the tasks, or its folder", metavar="NAME", default=None
)
TIMEOUT = Setting(
    "timeout",
    positive_duration,
    "for each question to a host (default: 20)",
    metavar="S",
    default=_DEFAULT_TIMEOUT_SECONDS,
)


def groups() -> tuple[Group, ...]:
    """The options of ``launch check``."""
    options = (HOSTS, JSON, PYTHON, VENV, TIMEOUT, CONNECT_TIMEOUT, FANOUT)
    return (
        Group("positional arguments", (LIST,)),
        *connecting_groups(),
        *allocating_groups(),
        Group("options", options),
    )


def run(settings: Settings) -> int:
    """Check the hosts and print the findings.

    Raises:
        HostfileError: all faults of the list of hosts.
        TransportError: no allocation is active, or its list of hosts is empty.
    """
    text = settings[LIST] if settings[HOSTS] is None else settings[HOSTS]
    with allocation(settings, text is not None) as within, ExitStack() as stack:
        hosts = (this_machine(os.environ),) if text is None else read_hosts(text)
        hosts = within[1].hosts if within else hosts
        programs, unreached = stack.enter_context(commands(hosts, settings, within))
        if within:  # some addresses are known only now
            backend, found_options = within[0], within[1].settings
            at = {host.name: backend.address(host, found_options) or host.address for host in hosts}
            hosts = tuple(replace(host, address=at[host.name]) for host in hosts)
        asked = _ask(hosts, programs, unreached, settings, stack)
    more: Iterable[Finding] = ()
    if within is not None:
        more = within[0].findings(within[1], {each.host.name: each.facts.agent for each in asked.reports})
        for line in within[1].remarks:
            say(line)
    found = findings(hosts, asked.reports, asked.pairs, more)
    problems = any(finding.severity == PROBLEM for finding in found)
    code = TransportError.exit_code if asked.failed else int(problems)
    if settings[JSON]:
        print(json.dumps(_as_json(hosts, asked, found, code), indent=2))
    else:
        _print(hosts, asked, found)
    return code


class _HostAnswer(Record):
    """The answer about the host itself."""

    facts: HostInspection
    #: Where it listens; 0: nowhere, and why.
    port: int
    why: str


class _Clock(Record):
    """The clock of the host."""

    at: float


class _Reached(Record):
    """The fields of a `ReachResult`."""

    result: str
    why: str
    address: str


class _ReachedPeers(Record):
    """The results of the connections to others."""

    pairs: tuple[_Reached, ...]


class CheckAnswers(Record):
    """The answers of the hosts."""

    reports: Sequence[HostCheck]
    pairs: Sequence[ReachResult]
    #: Host -> why it could not be checked.
    failed: Mapping[str, str]


def _ask(
    hosts: Sequence[Host],
    programs: ProgramRunner,
    unreached: Mapping[str, str],
    settings: Settings,
    stack: ExitStack,
) -> CheckAnswers:
    """Ask the hosts about themselves, then let them connect to each other.

    Args:
        hosts: the inventory.
        programs: runs a remote command on each host.
        unreached: hosts that can't be reached, and why.
        settings: of the command: seconds a host may take for a question; the environment and the Python where
            a host names none; default: here our Python, else ``python3``.
        stack: its end closes the remote commands.
    """
    by_name, seconds = {host.name: host for host in hosts}, settings[TIMEOUT]
    #: A host sends its token to each peer that connects.
    tokens = {host.name: secrets.token_hex(16) for host in hosts}
    ports: dict[str, int] = {}
    running: dict[str, JsonClient] = {}

    def look(name: str) -> HostCheck:
        if name in unreached:
            raise TransportError(unreached[name])
        host = by_name[name]
        command = programs.run(name, _ENTRY, {})
        stack.callback(command.close)
        client = running[name] = JsonClient(command)
        venv = host.venv or settings[VENV]
        usual = settings[PYTHON] or (sys.executable if is_here(host) else DEFAULT_PYTHON)
        request = {
            "do": "look",
            "python": VENV_PYTHON if venv else host.python or usual,
            "workdir": host.workdir,
            "venv": venv,
            "env": dict(host.env),
            "seconds": seconds,
            "token": tokens[name],
        }
        answer = client.ask(request, _ANSWER_PARTS * seconds + _ANSWER_MARGIN_SECONDS, _HostAnswer)
        if not answer.port:
            raise TransportError(f"it has no port to listen on: {answer.why}")
        ports[name] = answer.port
        asked = time.time()
        clock = client.ask({"do": "clock"}, seconds + _ANSWER_MARGIN_SECONDS, _Clock).at
        came = time.time()
        return HostCheck(host, answer.facts, clock=clock - (asked + came) / 2)

    def connect(name: str) -> list[ReachResult]:
        names = list(reports)
        first = names.index(name)
        peers = [*names[first:], *names[:first]][:_MAX_PEERS]
        each = min(_CONNECT_TIMEOUT_SECONDS, seconds)
        fields = [
            {"address": by_name[peer].shown_address, "port": ports[peer], "token": tokens[peer]}
            for peer in peers
        ]
        request = {"do": "connect", "seconds": each, "peers": fields}
        results = running[name].ask(request, 3 * each + 1.0 + _ANSWER_MARGIN_SECONDS, _ReachedPeers).pairs
        if len(results) != len(peers):
            raise TransportError(f"the check there sent {len(results)} results for {len(peers)} connections")
        return [
            ReachResult(source=name, target=peer, **as_dict(result))
            for peer, result in zip(peers, results, strict=True)
        ]

    reports, failed = for_each(by_name, look, "the check of the host")
    connected, late = for_each(reports, connect, "connections to others")
    pairs = [pair for found in connected.values() for pair in found]
    return CheckAnswers(tuple(reports.values()), pairs, {**failed, **late})


# ---------------------------------------------------------------------- output


def _print(hosts: Sequence[Host], asked: CheckAnswers, found: Sequence[Finding]) -> None:
    """A table of the hosts, how many connections work, then the findings."""
    reports = {report.host.name: report for report in asked.reports}
    print_table(
        _COLUMNS, [_row(host, reports.get(host.name), asked.failed.get(host.name, "")) for host in hosts]
    )
    print()
    if len({pair.source for pair in asked.pairs}) > 1:
        good = sum(pair.result == "ok" for pair in asked.pairs)
        print(f"{good} of {plural(len(asked.pairs), 'connection')} between the hosts work")
    for finding, following in zip(found, [*found[1:], None], strict=False):
        names = "all hosts" if len(finding.hosts) == len(hosts) > 1 else join_names(finding.hosts)
        print(escape_controls(f"{finding.severity}: {names}: {finding.seen}"))
        if finding.advice and (following is None or following.advice != finding.advice):
            print(escape_controls(f"    try: {finding.advice}"))
    numbers = [
        (severity, sum(each.severity == severity for each in found)) for severity in (PROBLEM, WARNING)
    ]
    parts = [", ".join(plural(number, severity) for severity, number in numbers if number)]
    parts += [f"{plural(len(asked.failed), 'host')} could not be checked"] if asked.failed else []
    print("; ".join(filter(None, parts)) or "no findings")


def _row(host: Host, report: HostCheck | None, failed: str) -> list[str]:
    address = host.address or ""
    if report is None:
        return [host.name, address, *[""] * (len(_COLUMNS) - 3), failed]
    facts = report.facts
    unknown = "none" if facts.task_python.state == "ok" else "?"
    free = [folder.free for folder in facts.folders.values() if folder.free is not None]
    names = [gpu.name for gpu in facts.gpus.list]
    gpus = join_names([f"{names.count(name)} {name}" for name in dict.fromkeys(names)])
    return [
        host.name,
        address,
        report.version("version") or "?",
        report.version("tensorflow") or unknown,
        report.version("keras"),
        str(facts.agent.cpus),
        byte_size(facts.available),
        byte_size(min(free, default=None)),
        "?" if facts.gpus.state in ("failed", "slow") else gpus,
        failed,
    ]


def _facts(facts: HostInspection) -> dict[str, Any]:
    fields = record_as_dict(facts)
    return {**fields.pop("agent"), **fields}


def _as_json(
    hosts: Sequence[Host], asked: CheckAnswers, found: Sequence[Finding], code: int
) -> dict[str, Any]:
    reports = {report.host.name: report for report in asked.reports}
    rows = [(host, reports.get(host.name)) for host in hosts]
    return {
        "schema": 3,
        "hosts": [
            {
                "name": host.name,
                "address": host.shown_address,
                "error": asked.failed.get(host.name),
                "clock": report and report.clock,
                "facts": report and _facts(report.facts),
            }
            for host, report in rows
        ],
        "pairs": [
            {
                "from": pair.source,
                "to": pair.target,
                "reach": pair.result,
                "why": pair.why,
                "address": pair.address,
            }
            for pair in asked.pairs
        ],
        "findings": [as_dict(finding) for finding in found],
        "exit_code": code,
    }
