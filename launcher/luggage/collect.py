"""``--collect``: fetch what tasks have made from their hosts, also after a job that failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from launcher.errors import TransportError
from launcher.luggage.base import Errands
from launcher.luggage.fetch import Fetch
from launcher.luggage.mending import persistently
from launcher.luggage.meter import Meter
from launcher.luggage.parallel import on_all
from launcher.luggage.progress import Progress, counted, human, shortened
from launcher.luggage.requests import Wanted
from launcher.luggage.talk import Conversation
from launcher.model.shrinking import can_squeeze
from launcher.text import listed

_COLLECT = "launcher.agent.store.give:collect"


class Collected(NamedTuple):
    """What a collect did."""

    files: int
    size: int
    #: What was not there or could not be read: no failure of the job.
    remarks: tuple[str, ...]
    #: What kept things that are there from being fetched, a line each, host first.
    failures: tuple[str, ...]
    #: The hosts whose failures these are.
    failed: tuple[str, ...] = ()


def collect(
    errands: Errands, wanted: Sequence[Wanted], job: str, progress: Progress, fanout: int
) -> Collected:
    """Fetch all that is wanted, from all hosts at once.

    What can be had is fetched, whatever fails. A file that is on its way when a connection breaks comes
    again from its beginning over the next one, what has arrived before does not.
    """
    hosts = list(dict.fromkeys(one.host for one in wanted))
    meter, since = Meter(hosts), time.monotonic()
    fetches = {host: Fetch(host, [one for one in wanted if one.host == host], meter) for host in hosts}

    def visit(host: str, still_wanted: Callable[[], bool]) -> None:
        fetch = fetches[host]

        def once() -> None:
            arguments = {"job": job, "squeeze": can_squeeze(), "wanted": fetch.order()}
            with Conversation(errands, host, _COLLECT, arguments, still_wanted) as talk, fetch:
                fetch.take_all(talk)

        try:
            persistently(errands, host, once, lambda: fetch.gained, still_wanted, meter.say)
        except TransportError as error:
            raise TransportError("; ".join(filter(None, (str(error), fetch.missing())))) from error
        finally:
            meter.done(host)

    summary = ""
    progress.begin("collecting", meter)
    try:
        outcome = on_all(hosts, visit, fanout, progress.tick)
        came = fetches.values()
        lacking = {host: text for host, text in outcome.failed.items() if fetches[host].lacks}
        failures = [text for one in came for text in one.failures]
        remarks = [text for one in came for text in one.remarks]
        result = Collected(
            sum(one.files for one in came),
            sum(one.size for one in came),
            (*remarks, *(text for host, text in outcome.failed.items() if host not in lacking)),
            (*failures, *lacking.values()),
            tuple(host for host, one in fetches.items() if host in lacking or one.failures),
        )
        into = {folder for one in came for folder in one.into}
        summary = _summary(result, len(hosts), into, time.monotonic() - since)
        return result
    finally:
        progress.end(summary)


def _summary(result: Collected, hosts: int, into: Iterable[str], seconds: float) -> str:
    what = f"{counted(result.files, 'file')} ({human(result.size)}) from {counted(hosts, 'host')}"
    where = listed([shortened(path) for path in _tops(into)])
    return f"collected {what}{where and f' into {where}'} in {seconds:.1f} s"


def _tops(folders: Iterable[str]) -> list[str]:
    """Where several tasks have a folder each, the folder that those are in."""
    found = sorted(set(folders))
    return found if len(found) == 1 else sorted({os.path.dirname(path) for path in found})
