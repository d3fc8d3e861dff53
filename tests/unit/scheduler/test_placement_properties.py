"""Whatever the job and the hosts: tasks are placed by the rules, or a fault says why not."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.common.errors import PlacementError
from launcher.job import Host, JobSpec, Placement, Program, ProgramKind, Role
from launcher.scheduler.assignment import slots_of
from launcher.scheduler.placement import place
from tests.conftest import examples

PROGRAM = Program(ProgramKind.SCRIPT, "train.py")
NAMES = ("ps", "worker", "chief", "evaluator", "reader")
LABELS = ("fast", "zone=a", "zone=b")
MAYBE_SLOTS = st.none() | st.integers(0, 4)
EXAMPLES = settings(max_examples=examples(200), deadline=None)


def some(words: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """Usually none, for most bounds at once leave no task a place."""
    return st.just(()) | st.lists(st.sampled_from(words), max_size=2, unique=True).map(tuple)


@st.composite
def inventories(draw, *, gpus: bool = True, bounds: bool = True) -> tuple[Host, ...]:
    ids = st.none() | st.integers(0, 4).map(lambda n: tuple(map(str, range(n)))) if gpus else st.none()
    return tuple(
        Host(
            f"n{number}",
            slots=draw(MAYBE_SLOTS),
            max_slots=draw(MAYBE_SLOTS),
            gpus=draw(ids),
            roles=draw(some(NAMES)) if bounds else (),
            labels=draw(some(LABELS)),
        )
        for number in range(draw(st.integers(1, 5)))
    )


@st.composite
def jobs(draw, *, gpus: bool = True, bounds: bool = True) -> JobSpec:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    return JobSpec(
        tuple(
            Role(
                name,
                draw(st.integers(0, 5)),
                PROGRAM,
                gpus=draw(st.none() | st.integers(0, 3)) if gpus else None,
                hosts=draw(some(("n0", "n1", "n2"))) if bounds else (),
                labels=draw(some(LABELS)) if bounds else (),
            )
            for name in names
        )
    )


def attempt(spec: JobSpec, hosts: tuple[Host, ...]) -> Placement | str:
    try:
        return place(spec, hosts)
    except PlacementError as error:
        assert error.faults
        return str(error)


def allowed(role: Role, host: Host) -> bool:
    return (
        (not role.hosts or host.name in role.hosts)
        and all(label in host.labels for label in role.labels)
        and (not host.roles or role.name in host.roles)
    )


@EXAMPLES
@given(jobs(), inventories())
def test_every_placement_keeps_every_rule(job, hosts):
    placement = attempt(job, hosts)
    assert placement == attempt(job, hosts)
    if isinstance(placement, str):
        return
    wanted = sorted(f"{role.name}/{index}" for role in job.roles for index in range(role.count))
    assert sorted(placed.task for placed in placement.tasks) == wanted
    crowd = Counter(placed.host for placed in placement.tasks)
    assert all(allowed(placed.role, placed.host) for placed in placement.tasks)
    assert all((limit := slots_of(host)[1]) is None or taken <= limit for host, taken in crowd.items())
    for host in crowd:
        given_out = list(chain(*(placed.gpus or () for placed in placement.tasks if placed.host == host)))
        assert len(set(given_out)) == len(given_out)
        assert set(given_out) <= set(host.gpus or ())
    for placed in placement.tasks:
        if placed.role.gpus is not None:
            assert placed.gpus is not None
            assert len(placed.gpus) == placed.role.gpus
        elif placed.role.name == "ps":
            assert placed.gpus == ()
        else:
            assert (placed.gpus is None) == (placed.host.gpus is None)


@EXAMPLES
@given(jobs(gpus=False, bounds=False), inventories(bounds=False))
def test_unbound_parameter_servers_keep_as_far_apart_as_slots_allow(job, hosts):
    placement = attempt(job, hosts)
    if isinstance(placement, str):
        return
    servers = Counter(placed.host.name for placed in placement.tasks if placed.task.role == "ps")
    slots = {host.name: slots_of(host)[0] for host in hosts}
    if sum(servers.values()) > sum(slots.values()):
        return
    for crowded in servers:
        for other in slots:
            assert servers[crowded] <= servers[other] + 1 or servers[other] == slots[other]
