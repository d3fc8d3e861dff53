"""How long tasks of a role live: services, those that drain, sidecars."""

from __future__ import annotations

import pytest

from launcher.errors import JobError
from launcher.jobfile import parse


def test_a_service_may_be_given_time():
    roles = parse(
        "program: a\nroles: {worker: 1, evaluator: {drain: 1m}, x: {service: yes, drain: 5}}", "j"
    ).job.roles
    assert [(role.name, role.service, role.drain) for role in roles] == [
        ("worker", False, 0.0),
        ("evaluator", True, 60.0),
        ("x", True, 5.0),
    ]


def test_a_sidecar_is_a_service():
    roles = parse("program: a\nroles: {worker: 1, board: {sidecar: true}}", "j").job.roles
    assert [(role.name, role.service, role.sidecar) for role in roles] == [
        ("worker", False, False),
        ("board", True, True),
    ]


#: What is wrong, and what was expected.
FAULTS = {
    "worker: {drain: 5}": (
        '"drain" for "worker"', "expected it in a service: the end of others is waited for",
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
        parse(f"program: a\nroles:\n  {role}\n  chief: 1", "j")
    assert [str(found) for found in caught.value.faults] == ["j:3: " + "; ".join(FAULTS[role])]


def test_sidecars_alone_are_no_job():
    with pytest.raises(JobError, match="j:2: sidecars only; expected another role, whose end is the job's"):
        parse("program: a\nroles: {board: {sidecar: true}}", "j")
