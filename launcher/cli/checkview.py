"""Shows what a check has found: a table of hosts, one of pairs, the findings; or all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.checking.pairs import milliseconds
from launcher.checking.records import Finding, Pair, Reach, Severity, Sight
from launcher.cli.examining import Examined
from launcher.cli.tables import print_table
from launcher.job import Host
from launcher.text import byte_size, counted, listed, printable

if TYPE_CHECKING:
    from typing import Any

_HOSTS = (
    "host", "address", "Python", "TensorFlow", "Keras", "CPUs", "load", "memory free", "disk free", "GPUs",
    "clock", "not checked",
)  # fmt: skip
#: Up to so many hosts there is a table of who reaches whom; above, one of those that do not.
_MATRIX = 8
#: Rows of that, at most.
_MOST_ROWS = 40


def as_text(hosts: Sequence[Host], examined: Examined, found: Sequence[Finding], seed: int) -> None:
    """Print it for people."""
    sights = {sight.name: sight for sight in examined.sights}
    rows = [_row(host, sights.get(host.name), examined.failed.get(host.name, "")) for host in hosts]
    print_table(_HOSTS, rows)
    if len({pair.source for pair in examined.pairs}) > 1:
        print()
        _print_pairs([host.name for host in hosts], examined.pairs, seed)
    print()
    for finding, following in zip(found, [*found[1:], None], strict=False):
        _print_finding(finding, hosts)
        if finding.advice and (following is None or following.advice != finding.advice):
            print(printable(f"    try: {finding.advice}"))
    print(_summary(found, len(examined.failed)))


def _row(host: Host, sight: Sight | None, failed: str) -> list[str]:
    """The cells of a host, empty where nobody knows."""
    address = "" if host.address is None else host.address
    if sight is None:
        return [host.name, address, *[""] * (len(_HOSTS) - 3), failed]
    facts = sight.facts
    unknown = "none" if facts["task_python"]["state"] == "ok" else "?"
    return [
        host.name,
        address,
        sight.version("version") or "?",
        sight.version("tensorflow") or unknown,
        sight.version("keras") or "",
        str(facts["cpus"]),
        f"{facts['load'][0]:.1f}",
        "" if facts["available"] is None else byte_size(facts["available"]),
        _least_free(facts["folders"]),
        _gpus(facts["gpus"]),
        _clock(sight),
        failed,
    ]


def _least_free(folders: Mapping[str, Mapping[str, Any]]) -> str:
    free = [folder["free"] for folder in folders.values() if folder["free"] is not None]
    return byte_size(min(free)) if free else ""


def _gpus(gpus: Mapping[str, Any]) -> str:
    """``2 NVIDIA A100``; nothing where there is none."""
    if gpus["state"] in ("failed", "slow"):
        return "?"
    names = [gpu["name"] for gpu in gpus["list"]]
    return listed([f"{names.count(name)} {name}" for name in dict.fromkeys(names)])


def _clock(sight: Sight) -> str:
    """``+0.3 ms``, or ``same`` where the difference is less than what the measurement may be wrong."""
    if sight.offset is None:
        return ""
    seconds, uncertainty = sight.offset
    if abs(seconds) <= uncertainty:
        return "same"
    sign = "+" if seconds > 0 else "-"
    return sign + (milliseconds(abs(seconds)) if abs(seconds) < 1 else f"{abs(seconds):.1f} s")


# ---------------------------------------------------------------------- pairs


def _print_pairs(hosts: Sequence[str], pairs: Sequence[Pair], seed: int) -> None:
    sources = [name for name in hosts if any(pair.source == name for pair in pairs)]
    if len(sources) <= _MATRIX:
        reached = {(pair.source, pair.target): _cell(pair) for pair in pairs}
        rows = [[source, *(reached.get((source, name), "") for name in sources)] for source in sources]
        print_table(("from \\ to", *sources), rows)
        return
    _print_summary(len(sources), pairs, seed)
    bad = [pair for pair in pairs if pair.reach is not Reach.OK]
    if bad:
        print_table(("from", "to", "connection"), [(p.source, p.target, _cell(p)) for p in bad[:_MOST_ROWS]])
    if len(bad) > _MOST_ROWS:
        print(f"and {len(bad) - _MOST_ROWS} more (--json has all)")


def _cell(pair: Pair) -> str:
    if pair.reach is Reach.OK and pair.rtt_s is not None:
        return milliseconds(pair.rtt_s)
    return pair.reach.value


def _print_summary(hosts: int, pairs: Sequence[Pair], seed: int) -> None:
    """``992 of 992 connections work; a round trip takes 0.21 ms (median), 1.4 ms at most``."""
    times = sorted(pair.rtt_s for pair in pairs if pair.reach is Reach.OK and pair.rtt_s is not None)
    line = f"{len(times)} of {len(pairs)} connections work"
    if times:
        median = milliseconds(times[len(times) // 2])
        line += f"; a round trip takes {median} (median), {milliseconds(times[-1])} at most"
    if len(pairs) < hosts * hosts:
        line += f"\ntried: a ring, and pairs drawn by chance (--seed {seed} draws them again)"
    print(line)


# ---------------------------------------------------------------------- findings


def _print_finding(finding: Finding, hosts: Sequence[Host]) -> None:
    everybody = len(finding.hosts) == len(hosts) > 1
    whose = "all hosts" if everybody else listed(finding.hosts, 5)
    print(printable(f"{finding.severity.value}: {f'{whose}: ' if whose else ''}{finding.seen}"))


def _summary(found: Sequence[Finding], failed: int) -> str:
    """``1 problem, 2 warnings; 1 host could not be checked``."""
    numbers = [(severity, sum(f.severity is severity for f in found)) for severity in Severity]
    parts = [counted(number, severity.value) for severity, number in numbers if number]
    lost = f"{counted(failed, 'host')} could not be checked" if failed else ""
    return "; ".join(filter(None, (", ".join(parts), lost))) or "nothing to remark"


def as_json(
    hosts: Sequence[Host], examined: Examined, found: Sequence[Finding], seed: int, code: int
) -> None:
    """Print it for programs."""
    sights = {sight.name: sight for sight in examined.sights}
    record = {
        "schema": 1,
        "hosts": [_record(host, sights.get(host.name), examined.failed.get(host.name)) for host in hosts],
        "seed": seed,
        "pairs": [_pair(pair) for pair in examined.pairs],
        "findings": [{**f._asdict(), "severity": f.severity.value} for f in found],
        "exit_code": code,
    }
    print(json.dumps(record, indent=2))


def _record(host: Host, sight: Sight | None, failed: str | None) -> dict[str, object]:
    return {
        "name": host.name,
        "address": host.shown_address,
        "error": failed,
        "clock": None if sight is None or sight.offset is None else sight.offset._asdict(),
        "facts": None if sight is None else sight.facts,
        "names": None if sight is None else sight.names,
    }


def _pair(pair: Pair) -> dict[str, object]:
    known = {**pair._asdict(), "reach": pair.reach.value}
    return {"from": known.pop("source"), "to": known.pop("target"), **known}
