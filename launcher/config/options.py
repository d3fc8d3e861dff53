"""Values of command line options: ``-x`` (environment variables) and ``--drain`` (time to end)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from launcher.config.values import duration, env_name
from launcher.errors import Fault
from launcher.job import CHIEF_ROLES, RESERVED_VARIABLES, Role


def carried(
    words: Sequence[str],
    environ: Mapping[str, str],
    taken: Collection[str],
    faults: list[Fault],
    notes: list[str],
) -> dict[str, str]:
    """The variables that ``-x`` options set, as Open MPI's ``-x`` does.

    Args:
        words: ``NAME``, ``NAME=VALUE`` and ``PRE*``.
        environ: the launcher's environment.
        taken: names that other options give a value to.
        faults, notes: new ones go there; they never hold a value, which may be secret.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name.endswith("*") and not equals:
            matching = {key: environ[key] for key in environ if key.startswith(name[:-1])}
            if not matching:
                notes.append(f"-x {name}: no variable that is set here begins so")
            # What is each task's own is not carried from a task that launches.
            found.update({key: value for key, value in matching.items() if key not in RESERVED_VARIABLES})
        elif fault := _variable_fault(name, equals, word, environ, taken):
            faults.append(fault)
        else:
            found[name] = value if equals else environ[name]
    return found


def _variable_fault(
    name: str, equals: str, word: str, environ: Mapping[str, str], taken: Collection[str]
) -> Fault | None:
    where = f"-x {name}"
    if not name or "\0" in word:
        return Fault(where, "no variable is named", "expected NAME, NAME=VALUE or PRE*")
    try:
        env_name(name)
    except ValueError as error:
        return Fault(where, f"{name!r} can't be set", str(error))
    if name in taken:
        return Fault(where, f"{name!r} can't be set", "expected another: an option of this launch sets it")
    if not equals and name not in environ:
        return Fault(where, f"{name} is not set here", "expected NAME=VALUE, or a variable that is set")
    return None


def drained(
    roles: Sequence[Role], words: Sequence[str], faults: list[Fault], notes: list[str]
) -> tuple[Role, ...]:
    """The roles with the time that ``--drain`` options give them.

    Args:
        roles: those of the job; none: they have faults of their own.
        words: ``60s``, ``evaluator=5m``: what follows ``--drain``.
        faults, notes: new ones go there.
    """
    times: dict[str, float] = {}  # by role; an empty name is all that may end by themselves
    for word in words:
        role, named, text = word.rpartition("=")
        option = f"--drain {role}=" if role else "--drain"
        if named and not role:
            faults.append(Fault("--drain", f"{word!r} names no role", "expected 60s, or ROLE=60s"))
            continue
        try:
            times[role] = duration(text)
        except ValueError as error:
            faults.append(Fault(option, f"{text!r} is not a duration", str(error)))
    if roles:
        faults += _drain_faults(roles, times)
        chief = any(role.name in CHIEF_ROLES for role in roles)
        meant = [role for role in roles if role.name in times or ("" in times and _may_end(role))]
        if times and not any(chief or role.service for role in meant):
            notes.append(
                "--drain changes nothing here: it is for workers beside a chief, and for an evaluator"
            )
    return tuple(role._replace(drain=_drain(role, times)) for role in roles)


def _drain(role: Role, times: Mapping[str, float]) -> float | None:
    """The time of a role: what the options say of it, else its file, else the options for all."""
    own = times.get(role.name, role.drain)
    return times.get("") if own is None and _may_end(role) else own


def _may_end(role: Role) -> bool:
    """Whether a role may end by itself without the job being done; a ps and most other services never end."""
    ends = role.name == "evaluator" or not role.service
    return ends and role.name not in CHIEF_ROLES and not role.sidecar


def _drain_faults(roles: Sequence[Role], times: Mapping[str, float]) -> Iterator[Fault]:
    ends = {role.name: "it is a sidecar, which is stopped with the job" for role in roles if role.sidecar}
    ends.update(dict.fromkeys(CHIEF_ROLES, "the job is done when the chief is"))
    names = {role.name for role in roles}
    fit = sorted(names - ends.keys())
    expected = f"expected one of {', '.join(fit)}" if fit else "expected workers, or an evaluator, beside it"
    for name in filter(None, times):
        if name not in names:
            yield Fault(f"--drain {name}=", f"there is no role {name!r}", expected)
        elif name in ends:
            yield Fault(f"--drain {name}=", ends[name], expected)
