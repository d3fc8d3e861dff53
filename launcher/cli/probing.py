"""Talks with the probes of all hosts at once: a question, and each host's answer or what became of it."""

from __future__ import annotations

import json
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import TransportError
from launcher.text import listed
from launcher.transport.base import Errand

if TYPE_CHECKING:
    from typing import Any

#: What is run on a host.
ENTRY = "launcher.agent.probe:main"
#: Seconds of silence before the user is told who is awaited, and between such remarks.
_UNTIL_SAID, _UNTIL_SAID_AGAIN = 2.0, 10.0
#: Seconds between two looks while something waits to be sent: not everything tells when it takes bytes again.
_LOOK = 0.05
_SIZE = 256 * 1024
#: Bytes an answer may have.
_LONGEST = 4 * 1024 * 1024
#: Bytes of what can't be understood that are quoted.
_MOST_QUOTED = 200


class Answer(NamedTuple):
    """What a host said, and when, by our clock, it was asked and heard."""

    asked: float
    said: Mapping[str, Any]
    heard: float


class Probes:
    """The probes of all hosts.

    Args:
        errands: host -> its probe. They are closed at the end of the context.
        tell: says something to a user who waits.
    """

    def __init__(self, errands: Mapping[str, Errand], tell: Callable[[str], None]) -> None:
        self._talks = {host: _Talk(errand) for host, errand in errands.items()}
        self._tell = tell
        #: Why hosts have dropped out, in words without their names.
        self.failed: dict[str, str] = {}

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *_: object) -> None:
        for talk in self._talks.values():
            talk.errand.close()

    def ask(self, questions: Mapping[str, Mapping[str, Any]], seconds: float, what: str) -> dict[str, Answer]:
        """Ask each host something of its own and wait for all answers.

        Args:
            questions: host -> request (see ``launcher.agent.probe``); hosts that dropped out are left out.
            seconds: they may take; who has not answered by then drops out.
            what: is awaited, for the user.
        """
        waiting = {host: self._talks[host] for host in questions if host not in self.failed}
        for host, talk in waiting.items():
            talk.ask(questions[host])
        patience = _Patience(self._tell, what, seconds)
        with selectors.DefaultSelector() as selector:
            for host, talk in waiting.items():
                selector.register(talk.errand.fileno(), selectors.EVENT_READ, host)
                self._advance(host)
            heard, late = dict(waiting), False
            while (left := self._unanswered(waiting)) and not late:
                for host in heard.keys() - set(left):  # at its end an errand would be readable for ever
                    selector.unregister(heard.pop(host).errand.fileno())
                late = patience.is_over(left)  # then for the last time: it may be us who stood still
                pending = any(self._talks[host].to_send for host in left)
                selector.select(_LOOK if pending and not late else patience.until_next())
                for host in left:
                    self._advance(host)
            self.failed.update(dict.fromkeys(left, f"no answer within {seconds:g} s ({what})"))
        return {
            host: talk.answer for host, talk in waiting.items() if talk.answer and host not in self.failed
        }

    def _unanswered(self, waiting: Mapping[str, _Talk]) -> list[str]:
        return [host for host, talk in waiting.items() if talk.answer is None and host not in self.failed]

    def _advance(self, host: str) -> None:
        try:
            self._talks[host].advance()
        except TransportError as error:
            self.failed[host] = str(error).removeprefix(f"{host}: ")


class _Talk:
    """With one probe."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.to_send = memoryview(b"")
        self.answer: Answer | None = None
        self._asked = 0.0
        self._kept = b""

    def ask(self, question: Mapping[str, Any]) -> None:
        self.to_send = memoryview(json.dumps(question).encode("ascii") + b"\n")
        self.answer = None

    def advance(self) -> None:
        """Send and receive what can be.

        Raises:
            TransportError: the probe is gone.
        """
        while self.to_send:
            self._asked = time.time()
            taken = self.errand.send(self.to_send)
            self.to_send = self.to_send[taken:]
            if not taken:
                break
        while (data := self.errand.recv(_SIZE)) is not None:
            if not data or len(self._kept) > _LONGEST:
                raise TransportError(f"the probe there ended: {_last_line(self.errand.said())}")
            self._kept += data
            if b"\n" in data:
                line, _, self._kept = self._kept.partition(b"\n")
                self.answer = Answer(self._asked, _understood(line), time.time())


def _understood(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TransportError(f"the probe there said what can't be understood: {line[:_MOST_QUOTED]!r}")
    return found


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it does not say why"])[-1]


class _Patience:
    """When to tell whom we wait for, and when to give up."""

    def __init__(self, tell: Callable[[str], None], what: str, seconds: float) -> None:
        now = time.monotonic()
        self._tell = tell
        self._what = what
        self._next = now + _UNTIL_SAID
        self._end = now + seconds

    def is_over(self, hosts: Sequence[str]) -> bool:
        """Whether the time is up; tells what is awaited, if it is time for that."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _UNTIL_SAID_AGAIN
            self._tell(f"waiting for {listed(hosts)}: {self._what}")
        return now >= self._end

    def until_next(self) -> float:
        """Seconds until one of the two."""
        return max(0.0, min(self._next, self._end) - time.monotonic())
