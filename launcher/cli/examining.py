"""A check as it goes: what each probe is asked, in which order, and what is made of the answers."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.checking.pairs import choose_pairs
from launcher.checking.records import Pair, Reach, Sight, offset_of
from launcher.cli.places import is_here
from launcher.cli.probing import ENTRY, Answer, Probes
from launcher.errors import TransportError
from launcher.job import Host
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON
from launcher.transport.base import Errand, Errands

if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

#: How often a clock is asked; the quickest answer counts.
_CLOCKS = 5
#: Seconds for looking up names, and for one connection; so many are made at a time.
_NAMES, _CONNECT, _AT_ONCE = 10.0, 5.0, 16
#: Seconds that an answer may take beyond what the host itself waits.
_MARGIN = 5.0


class Wishes(NamedTuple):
    """What a user wants of a check."""

    #: Seconds that each question may take on a host.
    timeout: float
    #: The Python of ``.py`` programs on hosts that do not say; empty: here our own, elsewhere ``python3``.
    python: str
    #: Chooses the pairs, where there are too many.
    seed: int


class Examined(NamedTuple):
    """All that a check has seen."""

    sights: tuple[Sight, ...]
    pairs: tuple[Pair, ...]
    #: Host -> why it could not be looked at.
    failed: Mapping[str, str]


def examine(
    hosts: Sequence[Host],
    errands: Callable[[Host], Errands],
    wishes: Wishes,
    tell: Callable[[str], None],
) -> Examined:
    """Look at these hosts and at the ways between them.

    Args:
        hosts: the inventory.
        errands: of each host, what runs programs there.
        wishes: of the user.
        tell: says something to a user who waits.
    """
    begun, failed = _begin(hosts, errands)
    with Probes(begun, tell) as probes:
        check = _Check([host for host in hosts if host.name in begun], probes, wishes)
        clocks, facts, names = check.clocks(), check.facts(), check.names()
        pairs = check.pairs()
        failed.update(probes.failed)
        seen = [host for host in hosts if host.name in facts]
        return Examined(tuple(_sight(host, clocks, facts, names) for host in seen), pairs, failed)


def _begin(
    hosts: Sequence[Host], errands: Callable[[Host], Errands]
) -> tuple[dict[str, Errand], dict[str, str]]:
    """Probes that are on their way, and why others are not."""
    begun: dict[str, Errand] = {}
    failed: dict[str, str] = {}
    for host in hosts:
        try:
            begun[host.name] = errands(host).errand(host.name, ENTRY, {})
        except TransportError as error:
            failed[host.name] = str(error).removeprefix(f"{host.name}: ")
    return begun, failed


def _sight(
    host: Host,
    clocks: Mapping[str, list[tuple[float, float, float]]],
    facts: Mapping[str, Answer],
    names: Mapping[str, Answer],
) -> Sight:
    resolved = names[host.name].said["names"] if host.name in names else {}
    return Sight(host, facts[host.name].said["facts"], offset_of(clocks.get(host.name, ())), resolved)


class _Check:
    """The questions."""

    def __init__(self, hosts: Sequence[Host], probes: Probes, wishes: Wishes) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._probes = probes
        self._wishes = wishes

    def _ask_all(self, question: Json, seconds: float, what: str) -> dict[str, Answer]:
        return self._probes.ask(dict.fromkeys(self._hosts, question), seconds, what)

    def clocks(self) -> dict[str, list[tuple[float, float, float]]]:
        """Of each host: when it was asked, what its clock said, when that was heard."""
        found: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(_CLOCKS):
            answers = self._ask_all({"do": "clock"}, self._wishes.timeout + _MARGIN, "their clocks")
            for name, answer in answers.items():
                found.setdefault(name, []).append((answer.asked, answer.said["at"], answer.heard))
        return found

    def facts(self) -> dict[str, Answer]:
        """What the hosts are and have."""
        questions = {name: self._facts_of(host) for name, host in self._hosts.items()}
        return self._probes.ask(questions, self._wishes.timeout + _MARGIN, "versions, disks and GPUs")

    def _facts_of(self, host: Host) -> Json:
        default = sys.executable if is_here(host) else DEFAULT_PYTHON
        python = host.python or (VENV_PYTHON if host.venv else self._wishes.python or default)
        return {
            "do": "facts",
            "python": python,
            "workdir": host.workdir,
            "venv": host.venv,
            "env": dict(host.env),
            "seconds": self._wishes.timeout,
        }

    def names(self) -> dict[str, Answer]:
        """What the address of each host means on each host."""
        addresses = [host.shown_address for host in self._hosts.values()]
        seconds = min(_NAMES, self._wishes.timeout)
        question = {"do": "names", "names": addresses, "seconds": seconds}
        return self._ask_all(question, seconds + _MARGIN, "what the names of the hosts mean to each other")

    def pairs(self) -> tuple[Pair, ...]:
        """What becomes of connections between them."""
        challenge = secrets.token_hex(16)
        tokens = {name: secrets.token_hex(16) for name in self._hosts}
        listening = self._probes.ask(
            {name: {"do": "listen", "challenge": challenge, "token": tokens[name]} for name in self._hosts},
            self._wishes.timeout,
            "a port on each",
        )
        ports = {name: answer.said["port"] for name, answer in listening.items()}
        self._probes.failed.update(
            (name, f"no port to be had: {answer.said['why']}")
            for name, answer in listening.items()
            if not answer.said["port"]
        )
        chosen = choose_pairs([name for name in self._hosts if ports.get(name)], self._wishes.seed)
        targets: dict[str, list[str]] = {}
        for source, target in chosen:
            targets.setdefault(source, []).append(target)
        return self._connect(targets, ports, tokens, challenge)

    def _connect(
        self,
        targets: Mapping[str, list[str]],
        ports: Mapping[str, int],
        tokens: Mapping[str, str],
        challenge: str,
    ) -> tuple[Pair, ...]:
        """Let each host connect to its targets."""
        each = min(_CONNECT, self._wishes.timeout)
        most = max((len(names) for names in targets.values()), default=0)
        all_of_them = each * (-(-most // _AT_ONCE)) + 1.0
        shared = {"do": "connect", "challenge": challenge, "seconds": each, "all_seconds": all_of_them}
        questions: dict[str, Json] = {}
        for source, names in targets.items():
            peers = [
                {"address": self._hosts[name].shown_address, "port": ports[name], "token": tokens[name]}
                for name in names
            ]
            questions[source] = {**shared, "peers": peers}
        answers = self._probes.ask(questions, all_of_them + _MARGIN, "connections between them")
        return tuple(
            pair for source, names in targets.items() for pair in _pairs(source, names, answers.get(source))
        )


def _pairs(source: str, targets: Sequence[str], answer: Answer | None) -> list[Pair]:
    if answer is None:
        return [Pair(source, target, Reach.UNTRIED) for target in targets]
    return [
        Pair(
            source, target, Reach(said["result"]), said.get("rtt_s"), said.get("retransmits", 0), said["why"]
        )
        for target, said in zip(targets, answer.said["pairs"], strict=True)
    ]
