"""Asks all hosts at once: a thread a host, a time limit a question."""

from __future__ import annotations

import json
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.checking.findings import HostReport, Offset, Pair
from launcher.errors import TransportError
from launcher.job import Host
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON
from launcher.text import listed
from launcher.transports.base import Hosts as Errands
from launcher.transports.base import RemoteCommand as Errand

_ENTRY = "launcher.agent.checks:main"
#: How often a clock is asked; the quickest answer counts.
_CLOCKS = 5
#: Seconds for one connection between two hosts, and that an answer may take beyond its host's own limit.
_CONNECT, _MARGIN = 5.0, 5.0
#: Seconds without an answer before the user is told; between two looks at an errand that takes no bytes.
_NOTICE, _LOOK = 2.0, 0.05
#: Up to this number of hosts every pair is tried; of more hosts each tries the next ones in the list.
_ALL_PAIRS, _NEXT = 32, 16
#: Bytes of an answer.
_LONGEST = 4 * 1024 * 1024


class Asked(NamedTuple):
    """The answers of the hosts."""

    reports: tuple[HostReport, ...]
    pairs: tuple[Pair, ...]
    #: Host -> why it could not be asked.
    failed: Mapping[str, str]


def ask_hosts(
    hosts: Sequence[Host],
    errands: Callable[[Host], Errands],
    is_here: Callable[[Host], bool],
    timeout: float,
    python: str,
    notice: Callable[[str], None],
) -> Asked:
    """Ask the hosts about themselves, then let them connect to each other.

    Args:
        hosts: the inventory.
        errands: runs programs of ours on a host.
        is_here: whether a host is this machine.
        timeout: seconds a host may take for a question.
        python: the Python of ``.py`` programs where the host names none; empty: here ours, else ``python3``.
        notice: shows a line to the user.
    """
    connections = _Connections(hosts, errands, notice)
    try:
        addresses = [host.shown_address for host in hosts]
        default = {
            host.name: python or (sys.executable if is_here(host) else DEFAULT_PYTHON) for host in hosts
        }
        clocks = [
            connections.ask({name: {"do": "clock"} for name in default}, timeout) for _ in range(_CLOCKS)
        ]
        questions = {
            host.name: {
                "do": "host",
                "names": addresses,
                "python": host.python or (VENV_PYTHON if host.venv else default[host.name]),
                "workdir": host.workdir,
                "venv": host.venv,
                "env": dict(host.env),
                "seconds": timeout,
            }
            for host in hosts
        }
        answers = connections.ask(questions, 2 * timeout)
        pairs = _connect(connections, [host for host in hosts if host.name in answers], timeout)
    finally:
        connections.close()
    reports = [
        HostReport(host, answer.fields["facts"], _offset(clocks, host.name), answer.fields["names"])
        for host in hosts
        if (answer := answers.get(host.name)) is not None
    ]
    return Asked(tuple(reports), pairs, connections.failed)


class _Answer(NamedTuple):
    """An answer, and when (our clock, seconds since the epoch) it was asked for and came."""

    asked: float
    fields: Mapping[str, Any]
    came: float


class _Connections:
    """One errand a host."""

    def __init__(
        self, hosts: Sequence[Host], errands: Callable[[Host], Errands], notice: Callable[[str], None]
    ) -> None:
        self._notice = notice
        self._errands: dict[str, Errand] = {}
        self.failed: dict[str, str] = {}
        for host in hosts:
            try:
                self._errands[host.name] = errands(host).run(host.name, _ENTRY, {})
            except TransportError as error:
                self._fail(host.name, error)

    def ask(self, questions: Mapping[str, Mapping[str, Any]], seconds: float) -> dict[str, _Answer]:
        """Ask each host a question of its own; a host that does not answer in time is not asked again."""
        answers: dict[str, _Answer] = {}
        until = time.monotonic() + seconds + _MARGIN
        threads = {
            name: threading.Thread(target=self._ask, args=(name, question, until, answers), daemon=True)
            for name, question in questions.items()
            if name not in self.failed
        }
        for thread in threads.values():
            thread.start()
        notice_at = time.monotonic() + _NOTICE
        for thread in threads.values():
            thread.join(max(0.0, notice_at - time.monotonic()))
        late = [name for name, thread in threads.items() if thread.is_alive()]
        if late:
            self._notice(f"waiting for {listed(late)}")
        for name in late:
            threads[name].join(max(0.0, until + 1.0 - time.monotonic()))
        return {name: answers[name] for name in threads if name in answers and name not in self.failed}

    def close(self) -> None:
        """End the programs on the hosts."""
        for errand in self._errands.values():
            errand.close()

    def _ask(self, name: str, question: Mapping[str, Any], until: float, answers: dict[str, _Answer]) -> None:
        try:
            answers[name] = _exchange(self._errands[name], question, until)
        except TransportError as error:
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self.failed[name] = str(error).removeprefix(f"{name}: ")


def _exchange(errand: Errand, question: Mapping[str, Any], until: float) -> _Answer:
    """Send a question and wait for its answer.

    Raises:
        TransportError: there is none, or it is not one.
    """
    to_send = memoryview(json.dumps(question).encode("ascii") + b"\n")
    answer = bytearray()
    asked = time.time()
    poll = select.poll()
    poll.register(errand.fileno(), select.POLLIN)
    while not answer.endswith(b"\n"):
        if to_send:
            asked = time.time()
            to_send = to_send[errand.send(to_send) :]
        data = errand.recv(1 << 16)
        if data:
            answer += data
        elif data == b"" or len(answer) > _LONGEST:
            lines = errand.stderr().strip().splitlines() or ["it does not say why"]
            raise TransportError(f"the check there ended: {lines[-1]}")
        elif time.monotonic() > until:
            raise TransportError("no answer in time")
        else:
            poll.poll(_LOOK * 1000 if to_send else max(0.0, until - time.monotonic()) * 1000 + 1)
    came = time.time()
    try:
        fields = json.loads(answer)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise TransportError(f"the check there sent something else: {bytes(answer[:200])!r}")
    return _Answer(asked, fields, came)


def _offset(rounds: Sequence[Mapping[str, _Answer]], name: str) -> Offset | None:
    """The offset of a clock, from the quickest answer: it leaves the least doubt."""
    answers = [answers[name] for answers in rounds if name in answers]
    if not answers:
        return None
    best = min(answers, key=lambda answer: answer.came - answer.asked)
    middle = (best.asked + best.came) / 2
    return Offset(float(best.fields["at"]) - middle, max(0.0, best.came - best.asked) / 2)


def _targets(names: Sequence[str]) -> dict[str, list[str]]:
    """The hosts that each host connects to, itself among them."""
    if len(names) <= _ALL_PAIRS:
        return {name: list(names) for name in names}
    twice = [*names, *names]
    return {name: twice[index : index + 1 + _NEXT] for index, name in enumerate(names)}


def _connect(connections: _Connections, hosts: Sequence[Host], timeout: float) -> tuple[Pair, ...]:
    """Let the hosts connect to each other's ports."""
    challenge = secrets.token_hex(16)
    tokens = {host.name: secrets.token_hex(16) for host in hosts}
    listening = connections.ask(
        {name: {"do": "listen", "challenge": challenge, "token": token} for name, token in tokens.items()},
        timeout,
    )
    for name, answer in listening.items():
        if not answer.fields["port"]:
            connections.failed[name] = f"it has no port to listen on: {answer.fields['why']}"
    addresses = {host.name: host.shown_address for host in hosts}
    ports = {name: answer.fields["port"] for name, answer in listening.items() if answer.fields["port"]}
    targets = _targets(list(ports))
    each = min(_CONNECT, timeout)
    questions = {
        source: {
            "do": "connect",
            "challenge": challenge,
            "seconds": each,
            "peers": [
                {"address": addresses[name], "port": ports[name], "token": tokens[name]} for name in names
            ],
        }
        for source, names in targets.items()
    }
    answers = connections.ask(questions, 3 * each + 1.0)
    return tuple(
        pair for source, names in targets.items() for pair in _pairs(source, names, answers.get(source))
    )


def _pairs(source: str, targets: Sequence[str], answer: _Answer | None) -> list[Pair]:
    if answer is None:
        return [Pair(source, target, "not tried") for target in targets]
    results = answer.fields["pairs"]
    return [
        Pair(source, target, str(result["result"]), str(result["why"]))
        for target, result in zip(targets, results, strict=True)
    ]
