"""How long tasks of a role live: services, those that drain, sidecars."""

from __future__ import annotations

import pytest

from launcher.errors import JobError
from launcher.jobfile import parse


def test_who_may_be_given_time():
    text = "chief: 1, worker: {drain: 0}, evaluator: {drain: 1m}, x: {service: yes, drain: 5}, y: {drain: 2}"
    roles = parse(f"program: a\nroles: {{{text}}}", "j").job.roles
    assert [(role.name, role.service, role.drain) for role in roles] == [
        ("chief", False, None),
        ("worker", False, 0.0),
        ("evaluator", True, 60.0),
        ("x", True, 5.0),
        ("y", False, 2.0),
    ]


def test_services_may_be_given_time_without_a_chief():
    """But not those on whose end the job's hangs; all of them are named."""
    services = parse("program: a\nroles: {worker: 1, ps: {drain: 5}, evaluator: {drain: 1m}}", "j").job.roles
    assert [role.drain for role in services] == [None, 5.0, 60.0]
    with pytest.raises(JobError) as caught:
        parse("program: a\nroles:\n worker:\n  drain: 5\n x: {drain: 1m}\n ps: {drain: 5}\n chief: 0", "j")
    wanted = "expected a chief, or a service: without a chief the job waits for this role anyway"
    assert [str(found) for found in caught.value.faults] == [
        f'j:4: "drain" for "worker"; {wanted}',
        f'j:5: "drain" for "x"; {wanted}',
    ]


def test_a_sidecar_is_a_service():
    roles = parse("program: a\nroles: {worker: 1, board: {sidecar: true}}", "j").job.roles
    assert [(role.name, role.service, role.sidecar) for role in roles] == [
        ("worker", False, False),
        ("board", True, True),
    ]


#: What is wrong, and what was expected.
FAULTS = {
    "chief: {drain: 5}": (
        '"drain" for "chief"', "expected it in another role: the job is done when the chief is",
    ),
    "x: {sidecar: yes, drain: 5}": (
        '"drain" and "sidecar" both', "expected one of them: a sidecar is stopped with the job",
    ),
    "ps: {sidecar: yes}": (
        "ps as a sidecar", "expected a role with a name of your own: the job needs this one",
    ),
    "x: {sidecar: yes, gpus: 1}": (
        '"gpus" and "sidecar" both', "expected one of them: a sidecar is given no GPU",
    ),
    "evaluator: {drain: soon}": (
        'drain is "soon"', "expected seconds, or a number and s, m, h or d, as in 90 or 5m",
    ),
    "x: {sidecar: 2}": ('sidecar is "2"', "expected true or false"),
}  # fmt: skip


@pytest.mark.parametrize("role", FAULTS)
def test_faults(role: str):
    with pytest.raises(JobError) as caught:
        parse(f"program: a\nroles:\n  {role}\n  reader: 1", "j")
    assert [str(found) for found in caught.value.faults] == ["j:3: " + "; ".join(FAULTS[role])]


def test_sidecars_alone_are_no_job():
    with pytest.raises(JobError, match="j:2: sidecars only; expected another role, whose end is the job's"):
        parse("program: a\nroles: {board: {sidecar: true}}", "j")
