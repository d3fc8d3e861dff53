"""The roles of a job file: ``worker: 4``, or a mapping with ``count`` and what is special about them."""

from __future__ import annotations

from launcher.hostfile.inline import split_entries
from launcher.hostfile.inventory import MOST_HOSTS
from launcher.hostfile.names import host_name, parse_address
from launcher.hostfile.settings import MOST_GPUS
from launcher.hostfile.yaml_form import read_words
from launcher.job import (
    MOST_TASKS,
    SERVICE_ROLES,
    SINGLE_ROLES,
    Program,
    ProgramKind,
    Role,
)
from launcher.jobfile.durations import parse_duration
from launcher.jobfile.lives import check_drains, check_life
from launcher.jobfile.programs import PROGRAM_KEYS, misspells, program_line, read_program, says_program
from launcher.marked.checks import flag, one_line, role_name, whole
from launcher.marked.faults import Faults, quoted
from launcher.marked.fields import Fields, wrong_kind
from launcher.marked.nodes import Node, Scalar, Table

MOST_ROLES = 256

#: What a role may have.
ROLE_KEYS = (
    "count",
    *PROGRAM_KEYS,
    "env",
    "gpus",
    "resources",
    "hosts",
    "labels",
    "service",
    "drain",
    "sidecar",
    "workdir",
)

_count = whole(0, MOST_TASKS)


def read_roles(top: Fields, misspelt: bool) -> tuple[Role, ...]:
    """The roles that have a task, in the order written. None at all is a fault.

    Args:
        top: the fields of the whole file: its program is that of roles without their own.
        misspelt: that program may be there, under a key that has a fault.
    """
    before = len(top.faults)
    program = read_program(top)
    excused = program is None and (misspelt or says_program(top))
    entries = _entries(top)
    line = program_line(top)
    found = [_role(word, node, program, line, excused, top.faults) for word, node in entries]
    roles = tuple(role for role in found if role is not None)
    if roles and all(role.sidecar for role in roles) and len(top.faults) == before:
        wanted = "expected another role, whose end is the job's"
        top.faults.add(top.line_of("roles"), "sidecars only", wanted)
    if not roles and len(top.faults) == before:
        top.faults.add(
            top.line_of("roles"), "no task in any role", "expected at least one below roles:, as in worker: 1"
        )
    if len(top.faults) == before:
        check_drains(roles, entries, top.faults)
    return roles


def names(top: Fields) -> tuple[str, ...]:
    """What is written below ``roles:``, with a task or without; nothing, where there is no such mapping."""
    node = top.node("roles")
    return tuple(word.text for word, _ in node.entries) if isinstance(node, Table) else ()


def _entries(top: Fields) -> tuple[tuple[Scalar, Node], ...]:
    table = top.table("roles", "expected a mapping, as in worker: 4")
    if table is None:
        return ()
    if len(table.entries) > MOST_ROLES:
        top.faults.add(table.line, f"{len(table.entries)} roles", f"expected at most {MOST_ROLES}")
    return table.entries[:MOST_ROLES]


def _role(
    word: Scalar, node: Node, default: Program | None, default_line: int, excused: bool, faults: Faults
) -> Role | None:
    """One role; ``None``: it has no task, or a fault keeps it from being one.

    Args:
        default: the program of the job, written at ``default_line``.
        excused: that one has a fault, so a role without a program is not blamed for it.
    """
    faults.check(word.line, "role", word.text, role_name)
    fields = _fields(word, node, faults)
    if fields is None:
        return None
    count = _read_count(word.text, fields)
    own = read_program(fields)
    line = default_line if own is None else program_line(fields)
    role = Role(word.text, count, own or default or _NOTHING, source=faults.where(word.line))
    role = role._replace(program_source=faults.where(line))
    role = _with_settings(role, fields)
    if role.program is _NOTHING and not excused and count:
        _check_has_program(word, node, fields)
    return role if count else None


def _check_has_program(word: Scalar, node: Node, fields: Fields) -> None:
    """Note that a role has no program, unless one is written there with a fault of its own."""
    if says_program(fields) or (isinstance(node, Table) and misspells(node, ROLE_KEYS, PROGRAM_KEYS)):
        return
    what = f"role {quoted(word.text)} has no program"
    fields.faults.add(word.line, what, "expected command: in the role, or once for all roles")


#: Stands in for a program that is missing; a fault is noted, so nobody ever sees it.
_NOTHING = Program(ProgramKind.EXECUTABLE, "")


def _fields(word: Scalar, node: Node, faults: Faults) -> Fields | None:
    """The fields of a role; ``worker: 4`` is short for a mapping with ``count: 4``."""
    if isinstance(node, Scalar) and not node.null:
        node = Table(((Scalar("count", node.line), node),), node.line)
    if isinstance(node, Table):
        return Fields(node, ROLE_KEYS, faults)
    wrong_kind(node, f"role {quoted(word.text)}", faults, "expected a count, or a mapping with count:")
    return None


def _read_count(name: str, fields: Fields) -> int:
    """How many tasks; 1 where nothing is said, or it has a fault."""
    count = fields.read("count", _count)
    if count is not None and count > 1 and name in SINGLE_ROLES:
        what, line = f'{name} is "{count}"', fields.line_of("count")
        fields.faults.add(line, what, "expected at most 1: TensorFlow takes no more")
    return 1 if count is None else count


def _with_settings(role: Role, fields: Fields) -> Role:
    sidecar = bool(fields.read("sidecar", flag))
    said = fields.read("service", flag)
    service = (role.name in SERVICE_ROLES if said is None else said) or sidecar
    gpus = _gpus(fields)
    check_life(role.name, fields, sidecar)
    if sidecar and gpus:
        what, wanted = '"gpus" and "sidecar" both', "expected one of them: a sidecar is given no GPU"
        fields.faults.add(fields.line_of("sidecar"), what, wanted)
    return role._replace(
        env=fields.pairs("env") or (),
        gpus=gpus,
        hosts=_hosts(fields),
        labels=read_words(fields, "labels") or (),
        service=service,
        drain=fields.read("drain", parse_duration),
        sidecar=sidecar,
        workdir=fields.read("workdir", one_line),
    )


def _gpus(fields: Fields) -> int | None:
    table = fields.table("resources", "expected gpus: and a count")
    resources = None if table is None else Fields(table, ("gpus",), fields.faults)
    own = fields.read("gpus", whole(0, MOST_GPUS))
    if resources is None:
        return own
    if fields.node("gpus") is not None and resources.node("gpus") is not None:
        line = resources.line_of("gpus")
        fields.faults.add(line, '"gpus" and "resources: gpus" both', "expected one of them")
    given = resources.read("gpus", whole(0, MOST_GPUS))
    return own if given is None else given


def _hosts(fields: Fields) -> tuple[str, ...]:
    """Names of hosts, ranges written out, each once."""
    patterns = fields.words("hosts", parse_address, split_entries) or ()
    line = fields.line_of("hosts")
    total = sum(pattern.size for pattern in patterns)
    if total > MOST_HOSTS:
        fields.faults.add(line, f"{total} hosts for a role", f"expected at most {MOST_HOSTS}")
        return ()
    names = dict.fromkeys(name for pattern in patterns for name in pattern.names())
    return tuple(name for name in names if fields.faults.check(line, "host", name, host_name))
