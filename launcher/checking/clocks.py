"""Clocks that disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.checking.records import Finding, Offset, Severity
from launcher.text import duration

#: Seconds from which files seem to come from the future and logs can't be put in order; and from which
#: certificates, tickets and locks fail.
_ODD = 1.0
_WRONG = 30.0


def of_clocks(offsets: Mapping[str, Offset]) -> Iterator[Finding]:
    """Clocks that are off from what most have, by more than the measurement may be wrong.

    Args:
        offsets: of each host, to the launcher's clock, which is compared too: it writes the times of the run.
    """
    times = sorted([offset.seconds for offset in offsets.values()] + [0.0])
    usual = times[len(times) // 2] if len(offsets) > 1 else 0.0
    others = "the others" if len(offsets) > 1 else "this machine's"
    for host, offset in offsets.items():
        yield from _of_clock((host,), "its clock", offset.seconds - usual, offset.uncertainty, others)
    doubt = max((offset.uncertainty for offset in offsets.values()), default=0.0)
    yield from _of_clock((), "the clock of this machine", -usual, doubt, others)


def _of_clock(
    hosts: tuple[str, ...], whose: str, off: float, uncertainty: float, others: str
) -> Iterator[Finding]:
    """One clock."""
    least = abs(off) - uncertainty
    if least > _ODD:
        severity = Severity.PROBLEM if least > _WRONG else Severity.WARNING
        seen = f"{whose} is {duration(abs(off))} {'ahead of' if off > 0 else 'behind'} {others}"
        yield Finding(
            severity, "clock", hosts, seen, "let it be set from the network: `timedatectl set-ntp true`"
        )
