"""``launch check``: check hosts and the network between them, before a long job.

A program of ours runs on each host and answers questions. `launcher.findings` judges the answers. The command
changes nothing on the hosts.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from launcher.backends.backend import Allocation
from launcher.backends.bootstrap import IMPORTER, packed
from launcher.backends.connections import ProgramRunner, for_each
from launcher.backends.fleet import HostPrograms
from launcher.backends.json_client import JsonClient
from launcher.cli.connecting import allocate, allocating_groups, check_current_folder, connecting_groups
from launcher.common.errors import TransportError
from launcher.common.record import Record, as_dict, replace
from launcher.common.text import byte_size, escape_controls, join_names, plural
from launcher.config.hostfile import read_hosts
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.config.table import CONNECT_TIMEOUT, FANOUT
from launcher.config.values import environment, positive_duration, program_path, url
from launcher.findings import (
    PROBLEM,
    WARNING,
    Finding,
    HostCheck,
    HostInspection,
    ReachResult,
    UrlResult,
    findings,
)
from launcher.job import Host
from launcher.messages import say
from launcher.output.renderers import record_as_dict
from launcher.output.table import print_table
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON
from launcher.storage.urls import shown

SUMMARY = "check hosts and the network between them for faults"

EXAMPLES = """\
launch check                         this machine, or those of an allocation
launch check hostfiles/lab.yaml      its hosts, and connections between them
launch check --slurm -N 2            two nodes that Slurm allocates meanwhile
launch check --kubernetes IMAGE      two pods, made meanwhile
launch check --url hdfs://nn/data lab.yaml   and who can reach this URL
launch check --json node1,node2      the same for programs
launch check lab.yaml && launch --hosts lab.yaml train.py

Exit code: 0 no problem; 1 problems; 125 a host could not be checked;
2 bad input."""

_COLUMNS = (
    "host", "address", "Python", "TensorFlow", "Keras", "CPUs", "free memory", "free disk", "GPUs",
    "not checked",
)  # fmt: skip
#: The program that answers on each host.
_ENTRY = "launcher.agent.checks:main"
#: The time limit for one connection between two hosts.
_CONNECT_TIMEOUT_SECONDS = 5.0
#: How long an answer may take beyond the time limit of the host itself.
_ANSWER_MARGIN_SECONDS = 5.0
#: How long a Python may take to start, beyond the time limit of what it does.
_START_MARGIN_SECONDS = 5.0
#: The number of parts in an answer about a host. Each has a time limit of its own.
_ANSWER_PARTS = 3
#: The packages of launch that are sent to the Python of tasks so that it can reach URLs, and the program that
#: it runs. The code of `IMPORTER`, which imports these packages, stands before the program.
_URL_MODULES = ("launcher.common", "launcher.storage")
_URL_PROGRAM = """
import base64, sys
sys.path[:] = [path for path in sys.path if path]
sys.meta_path.insert(0, Importer(base64.b64decode("{modules}")))
from launcher.storage.reaching import main
main({urls}, {seconds})
"""
#: Each host connects to at most this number of hosts, to itself and to the next ones in the list, because the
#: pairs of all hosts of a large cluster would be too many.
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
    "timeout", positive_duration, "for each question to a host (default: 20)", metavar="S", default=20.0
)
URL: Setting[tuple[str, ...]] = Setting(
    "url", url, "a URL that the Python of tasks is to reach; repeatable", metavar="URL", default=(),
    repeatable=True,
)  # fmt: skip


def groups() -> tuple[Group, ...]:
    """Return the options of ``launch check``: its own, and those of backends that reach or provide hosts."""
    positional = Group("positional arguments", (LIST,))
    options = Group("options", (HOSTS, JSON, PYTHON, VENV, URL, TIMEOUT, CONNECT_TIMEOUT, FANOUT))
    return (positional, *connecting_groups(), *allocating_groups(), options)


def run(settings: Settings) -> int:
    """Check the hosts that the user names, and print what was found.

    Returns:
        0, 1 if there are problems, or the exit code of an error if a host could not be checked.

    Raises:
        HostfileError: The list of hosts has faults. The error lists all of them.
        TransportError: No hosts are available, for example because no allocation is active.
    """
    check_current_folder()
    # The hosts may be named by the argument of the command or by the option --hosts.
    text = settings[LIST] if settings[HOSTS] is None else settings[HOSTS]
    with (
        allocate(settings, read_hosts(text)) as allocation,
        HostPrograms(allocation, allocation.hosts) as programs,
        HostChecks(allocation, programs, settings) as checks,
    ):
        results = checks.run()
    for line in allocation.remarks:
        say(line)
    of_backend = allocation.findings({check.host.name: check.facts.agent for check in results.checks})
    all_findings = findings(results.hosts, results.checks, results.pairs, of_backend)
    has_problems = any(finding.severity == PROBLEM for finding in all_findings)
    code = TransportError.exit_code if results.failed else int(has_problems)
    if settings[JSON]:
        print(json.dumps(_as_json(results, all_findings, code), indent=2))
    else:
        _print(results, all_findings, settings[URL])
    return code


class _HostAnswer(Record):
    """The answer of a host about itself."""

    facts: HostInspection
    #: The port at which the program on the host listens. It is 0 if the program could not listen.
    port: int
    #: Why the program could not listen. It is empty if it does.
    why: str


class _UrlAnswer(Record):
    """The answer of a host about URLs."""

    urls: tuple[UrlResult, ...]


class _Clock(Record):
    """The answer of a host about its clock."""

    #: The time on the host, in seconds since the epoch.
    at: float


class _Reached(Record):
    """The fields of a `ReachResult` that a host knows: whether it has reached a peer."""

    result: str
    why: str
    address: str


class _ReachedPeers(Record):
    """The answer of a host about its connections to its peers, in the order in which they were asked for."""

    pairs: tuple[_Reached, ...]


class CheckResults(Record):
    """The results of the checks of all hosts."""

    #: The hosts, with the addresses at which the others reach them.
    hosts: Sequence[Host]
    checks: Sequence[HostCheck]
    pairs: Sequence[ReachResult]
    #: Why hosts could not be checked, by their names.
    failed: Mapping[str, str]


class HostChecks:
    """The check of many hosts side by side: first each by itself, then the connections between them.

    Leaving its context closes the programs on the hosts.

    Args:
        allocation: The hosts to check.
        programs: Runs a program on each host.
        settings: The settings of the command.
    """

    def __init__(self, allocation: Allocation, programs: ProgramRunner, settings: Settings) -> None:
        #: `_local` contains the names of the hosts that are this machine.
        self._local, self._programs, self._settings = allocation.local, programs, settings
        # An allocation knows some addresses only after the hosts were connected.
        hosts = [replace(host, address=allocation.address(host)) for host in allocation.hosts]
        #: The hosts with the addresses at which others reach them, by name.
        self._hosts = {host.name: host for host in hosts}
        #: The time limit of each question to a host, in seconds.
        self._timeout = settings[TIMEOUT]
        #: A random word for each host, which it sends to every peer that connects. By it a peer knows that it
        #: has reached this host, and not another program at its address.
        self._tokens = {name: secrets.token_hex(16) for name in self._hosts}
        #: The port at which each inspected host listens.
        self._ports: dict[str, int] = {}
        #: The program on each inspected host.
        self._clients: dict[str, JsonClient] = {}
        #: The names of the hosts that answered. They connect to each other.
        self._peers: list[str] = []
        #: Closes the programs on the hosts.
        self._stack = ExitStack()

    def __enter__(self) -> HostChecks:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the programs that were started on the hosts."""
        self._stack.close()

    def run(self) -> CheckResults:
        """Check all hosts side by side, and return the results, also those about hosts that failed."""
        # Each call returns the results, and the reasons of the hosts that failed.
        checks, unreached = for_each(self._hosts, self.inspect, "the check of the host")
        self._peers = list(checks)  # The hosts that answered.
        reached, silent = for_each(checks, self.reach_peers, "connections to others")
        pairs = [pair for results in reached.values() for pair in results]
        return CheckResults([*self._hosts.values()], [*checks.values()], pairs, {**unreached, **silent})

    def inspect(self, host_name: str) -> HostCheck:
        """Start the program on a host, and ask the host about itself and its clock.

        Raises:
            TransportError: The host cannot be reached, or does not answer.
        """
        host = self._hosts[host_name]
        program = self._programs.run(host_name, _ENTRY, {})
        self._stack.callback(program.close)
        client = self._clients[host_name] = JsonClient(program)
        venv = host.venv or self._settings[VENV]
        request = {
            "do": "look",
            "python": VENV_PYTHON if venv else host.python or self._default_python(host_name),
            "workdir": host.workdir,
            "venv": venv,
            "env": dict(host.env),
            "seconds": self._timeout,
            "token": self._tokens[host_name],
        }
        margin = _ANSWER_MARGIN_SECONDS
        # The time limit is for each part of the answer: its folders, its GPUs and its Python.
        answer = client.ask(request, _ANSWER_PARTS * self._timeout + margin, _HostAnswer)
        if not answer.port:
            raise TransportError(f"it has no port to listen on: {answer.why}")
        self._ports[host_name] = answer.port
        # The host has read its clock about in the middle of this question.
        asked_at = time.time()
        clock = client.ask({"do": "clock"}, self._timeout + margin, _Clock).at
        answered_at = time.time()
        # A Python that cannot be run has a finding of its own.
        can_reach = self._settings[URL] and answer.facts.task_python.state == "ok"
        urls = self._reach_urls(client, request) if can_reach else ()
        return HostCheck(host, answer.facts, clock=clock - (asked_at + answered_at) / 2, urls=urls)

    def _reach_urls(self, client: JsonClient, request: Mapping[str, Any]) -> tuple[UrlResult, ...]:
        """Let the Python of tasks on a host try to reach the URLs that the user has named.

        Args:
            client: The program on the host.
            request: The request by which the host was asked about itself, which names the Python.

        Raises:
            TransportError: The host does not answer.
        """
        urls, seconds = self._settings[URL], self._timeout
        modules = base64.b64encode(packed(_URL_MODULES)).decode("ascii")
        program = f"{IMPORTER}{_URL_PROGRAM.format(modules=modules, urls=ascii(urls), seconds=seconds)}"
        seconds += _START_MARGIN_SECONDS
        request = {**request, "do": "urls", "program": program, "seconds": seconds}
        request["urls"] = [*map(shown, urls)]  # Messages name the URLs in this form.
        return client.ask(request, seconds + _ANSWER_MARGIN_SECONDS, _UrlAnswer).urls

    def _default_python(self, host_name: str) -> str:
        """Return the Python that tasks use on a host for which the user names none."""
        return self._settings[PYTHON] or (sys.executable if host_name in self._local else DEFAULT_PYTHON)

    def reach_peers(self, host_name: str) -> list[ReachResult]:
        """Let a host that was inspected connect to itself and to the next hosts in the list.

        Args:
            host_name: The name of the host.

        Returns:
            A result for each of these connections.

        Raises:
            TransportError: The host does not answer.
        """
        # Each host begins with itself, so that in a large cluster each is reached equally often.
        own_index = self._peers.index(host_name)
        peers = [*self._peers[own_index:], *self._peers[:own_index]][:_MAX_PEERS]
        fields = []
        for peer in peers:
            address, port = self._hosts[peer].shown_address, self._ports[peer]
            fields.append({"address": address, "port": port, "token": self._tokens[peer]})
        seconds = min(_CONNECT_TIMEOUT_SECONDS, self._timeout)
        request = {"do": "connect", "seconds": seconds, "peers": fields}
        # The host makes 16 connections at a time, so those to all its peers take two rounds at most, and it
        # allows one second more to look up names. Everything else is a margin.
        timeout = 3 * seconds + 1.0 + _ANSWER_MARGIN_SECONDS
        results = self._clients[host_name].ask(request, timeout, _ReachedPeers).pairs
        if len(results) != len(peers):
            raise TransportError(f"the check there sent {len(results)} results for {len(peers)} connections")
        return [
            ReachResult(source=host_name, target=peer, **as_dict(result))
            for peer, result in zip(peers, results, strict=True)
        ]


# ---------------------------------------------------------------------- output


def _print(results: CheckResults, all_findings: Sequence[Finding], urls: Sequence[str]) -> None:
    """Print a table of the hosts, how many connections work, then the findings, and last how many there are.

    Args:
        results: The results of the checks.
        all_findings: The findings about them. Neighbours with the same advice are printed with one advice.
        urls: The URLs that the hosts have tried to reach.
    """
    hosts, failed = results.hosts, results.failed
    checks = {check.host.name: check for check in results.checks}
    print_table(_COLUMNS, [_row(host, checks.get(host.name), failed.get(host.name, "")) for host in hosts])
    print()
    # Each pair is a connection from one host to another. With a single host there is none to count.
    if len({pair.source for pair in results.pairs}) > 1:
        working = sum(pair.result == "ok" for pair in results.pairs)
        print(f"{working} of {plural(len(results.pairs), 'connection')} between the hosts work")
    reached = [result.url for check in results.checks for result in check.urls if not result.error]
    for name in map(shown, urls):
        print(escape_controls(f"{name} is reached by {reached.count(name)} of {plural(len(hosts), 'host')}"))
    for finding, following in zip(all_findings, [*all_findings[1:], None], strict=False):
        names = "all hosts" if len(finding.hosts) == len(hosts) > 1 else join_names(finding.hosts)
        print(escape_controls(f"{finding.severity}: {names}: {finding.seen}"))
        # The advice for several findings in a row is printed once, after the last of them.
        if finding.advice and (following is None or following.advice != finding.advice):
            print(escape_controls(f"    try: {finding.advice}"))
    severities = [finding.severity for finding in all_findings]
    numbers = [plural(severities.count(kind), kind) for kind in (PROBLEM, WARNING) if kind in severities]
    parts = [", ".join(numbers)] if numbers else []
    parts += [f"{plural(len(failed), 'host')} could not be checked"] if failed else []
    print("; ".join(parts) or "no findings")


def _row(host: Host, check: HostCheck | None, failed: str) -> list[str]:
    """Return the cells of a host in the table.

    Args:
        host: The host.
        check: What is known about the host, or None if it could not be checked.
        failed: Why the host could not be checked. It is empty if it could.
    """
    address = host.address or ""
    if check is None:
        # The last column says why, and those between stay empty.
        return [host.name, address, *[""] * (len(_COLUMNS) - 3), failed]
    facts = check.facts
    no_tensorflow = "none" if facts.task_python.state == "ok" else "?"  # Without an answer nobody knows.
    free_bytes = [folder.free for folder in facts.folders.values() if folder.free is not None]
    names = [gpu.name for gpu in facts.gpus.list]
    gpus = join_names([f"{names.count(name)} {name}" for name in dict.fromkeys(names)])
    return [
        host.name,
        address,
        check.version("version") or "?",
        check.version("tensorflow") or no_tensorflow,
        check.version("keras"),
        str(facts.agent.cpus),
        byte_size(facts.available),
        byte_size(min(free_bytes, default=None)),
        "?" if facts.gpus.state in ("failed", "slow") else gpus,
        failed,
    ]


def _facts(facts: HostInspection) -> dict[str, Any]:
    """Return what is known about a host as an object of JSON, where the facts of its agent are not nested."""
    fields = record_as_dict(facts)
    return {**fields.pop("agent"), **fields}


def _as_json(results: CheckResults, all_findings: Sequence[Finding], code: int) -> dict[str, Any]:
    """Return what ``launch check --json`` prints.

    Args:
        results: The results of the checks.
        all_findings: The findings about them.
        code: The exit code of the command.
    """
    checks = {check.host.name: check for check in results.checks}
    # A host that could not be checked has no check: its facts are null, and its error says why.
    rows = [(host, checks.get(host.name)) for host in results.hosts]
    return {
        "schema": 3,
        "hosts": [
            {
                "name": host.name,
                "address": host.shown_address,
                "error": results.failed.get(host.name),
                "clock": check and check.clock,
                "facts": check and _facts(check.facts),
                "urls": [as_dict(result) for result in check.urls] if check else [],
            }
            for host, check in rows
        ],
        "pairs": [
            {
                "from": pair.source,
                "to": pair.target,
                "reach": pair.result,
                "why": pair.why,
                "address": pair.address,
            }
            for pair in results.pairs
        ],
        "findings": [as_dict(finding) for finding in all_findings],
        "exit_code": code,
    }
