"""``--drain``: who is given time to end by itself when the job is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcher.errors import Fault
from launcher.job import Role
from launcher.jobfile.durations import parse_duration

_CHIEF = "chief"
#: A service all the same, but one that ends: after its last evaluation.
_EVALUATOR = "evaluator"


def drained(
    roles: Sequence[Role], words: Sequence[str], faults: list[Fault], notes: list[str]
) -> tuple[Role, ...]:
    """The roles with the time that the options give them.

    Args:
        roles: those of the job; none: they have faults of their own.
        words: ``60s``, ``evaluator=5m``: what follows ``--drain``.
        faults, notes: what is wrong with them, and remarks, go there.
    """
    times = _times(words, faults)
    if roles:
        faults += _unfit(roles, times)
        notes += _unneeded(roles, times)
    return tuple(role._replace(drain=_time(role, times)) for role in roles)


def _times(words: Sequence[str], faults: list[Fault]) -> dict[str, float]:
    """Seconds by role; no name: those of all that may end."""
    times: dict[str, float] = {}
    for word in words:
        role, named, text = word.rpartition("=")
        if named and not role:
            faults.append(Fault("--drain", f"{word!r} names no role", "expected 60s, or ROLE=60s"))
            continue
        try:
            times[role] = parse_duration(text)
        except ValueError as error:
            faults.append(Fault(_option(role), f"{text!r} is no duration", str(error)))
    return times


def _option(role: str) -> str:
    return f"--drain {role}=" if role else "--drain"


def _time(role: Role, times: Mapping[str, float]) -> float | None:
    """What the options say of this role, else its file, else the options of all."""
    said = times.get(role.name, role.drain)
    return times.get("") if said is None and _may_end(role) else said


def _may_end(role: Role) -> bool:
    """Whether it has an end of its own that is not the job's.

    A ps, and every other service, has none: its time would only be waited for.
    """
    ends = role.name == _EVALUATOR or not role.service
    return ends and role.name != _CHIEF and not role.sidecar


def _unfit(roles: Sequence[Role], times: Mapping[str, float]) -> Iterator[Fault]:
    """Names of roles that are not there, or have no use for time."""
    ends = {role.name: "it is a sidecar, which is stopped with the job" for role in roles if role.sidecar}
    ends[_CHIEF] = "the job is done when the chief is"
    names = {role.name for role in roles}
    fit = sorted(names - ends.keys())
    wanted = f"expected one of {', '.join(fit)}" if fit else "expected workers, or an evaluator, beside it"
    for name in filter(None, times):
        if name not in names:
            yield Fault(_option(name), f"there is no role {name!r}", wanted)
        elif name in ends:
            yield Fault(_option(name), ends[name], wanted)


def _unneeded(roles: Sequence[Role], times: Mapping[str, float]) -> Iterator[str]:
    """A remark where the time is nobody's: without a chief the end of all workers is waited for."""
    chief = any(role.name == _CHIEF for role in roles)
    meant = [role for role in roles if role.name in times or ("" in times and _may_end(role))]
    if times and not any(chief or role.service for role in meant):
        yield "--drain changes nothing here: it is for workers beside a chief, and for an evaluator"
