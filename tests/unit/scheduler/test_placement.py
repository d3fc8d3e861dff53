"""Which task runs on which host with which GPUs: tables of jobs and hosts, and what comes out."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.errors import PlacementError
from launcher.common.record import replace
from launcher.job import Host, JobSpec, Placement, Policy, Program, Role
from launcher.scheduler.placement import place, replace_hosts

PROGRAM = Program.of(["train.py"])
LAB = (
    Host("a1", labels=("zone=a", "fast"), slots=2),
    Host("a2", labels=("zone=a",), slots=2),
    Host("b1", labels=("zone=b", "fast"), slots=2),
)
GPU = Host("g1", gpus=("0", "1", "2", "3"), slots=8, source="f:1")
BARE = Host("c1", gpus=(), slots=8, source="f:2")
UNKNOWN = Host("n1", slots=8, source="f:3")


def role(name: str, count: int, **more) -> Role:
    return Role(name, count, PROGRAM, **more)


def hosts(text: str) -> tuple[Host, ...]:
    """``n1`` (no number), ``n1:2`` (slots), ``n1:2:4`` (max_slots too), ``n1::4`` (max_slots only)."""
    found = []
    for word in text.split():
        name, *numbers = word.split(":")
        slots = [int(number) if number else None for number in numbers] + [None, None]
        found.append(Host(name, slots=slots[0], max_slots=slots[1]))
    return tuple(found)


def placed(roles: list[Role], inventory: tuple[Host, ...]) -> Placement:
    return place(JobSpec(tuple(roles)), inventory)


def shown(placement: Placement) -> str:
    """``worker: n1 n2, ps: n1``: the hosts of each role's tasks by index."""
    seen: dict[str, list[str]] = {}
    for task in placement.tasks:
        seen.setdefault(task.task.role, []).append(task.host.name)
    return ", ".join(f"{name}: {' '.join(names)}" for name, names in seen.items())


def where(roles: list[Role], inventory: tuple[Host, ...]) -> str:
    return shown(placed(roles, inventory))


def faults(roles: list[Role], inventory: tuple[Host, ...]) -> list[str]:
    with pytest.raises(PlacementError) as caught:
        placed(roles, inventory)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("workers", "inventory", "expected"),
    [
        (3, "here", "here here here"),
        (5, "n1 n2", "n1 n2 n1 n2 n1"),
        (3, "n1:2 n2:2", "n1 n1 n2"),
        (4, "n1:2 n2:1 n3:1", "n1 n1 n2 n3"),
        (5, "n1:1:3 n2:1:3", "n1 n2 n1 n2 n1"),
        (6, "n1:1:2 n2:2:4", "n1 n2 n2 n1 n2 n2"),
        (4, "n1 n2::2", "n1 n2 n1 n2"),
        (5, "n1 n2::2", "n1 n2 n1 n2 n1"),
        (2, "n1:4:1 n2", "n1 n2"),
        (1, "n2 n1", "n2"),
    ],
)
def test_slots_are_filled_host_by_host_then_overflow_evenly(workers: int, inventory: str, expected: str):
    assert where([role("worker", workers)], hosts(inventory)) == f"worker: {expected}"


@pytest.mark.parametrize(
    ("roles", "inventory", "expected"),
    [
        ("ps 2, worker 2", "n1:2 n2:2", "worker: n1 n2, ps: n1 n2"),
        ("ps 1, worker 3", "n1 n2 n3", "worker: n2 n3 n1, ps: n1"),
        # fewest ps first, then most free slots, then as written
        ("ps 1", "n1:1 n2:3 n3:3", "ps: n2"),
        ("ps 3", "n1:1 n2:3", "ps: n2 n1 n2"),
        # keeping apart does not overfill a host while another has a slot
        ("ps 3", "n1 n2:4", "ps: n2 n1 n2"),
        # worker/0 stands behind the chief, and the user's roles at the end, whatever was written first
        ("worker 2, chief 1", "n1:2 n2:2", "chief: n1, worker: n1 n2"),
        ("z 1, evaluator 1, a 1, ps 1, chief 1", "n", "chief: n, ps: n, evaluator: n, z: n, a: n"),
    ],
)
def test_parameter_servers_keep_apart_and_the_others_fill_up(roles: str, inventory: str, expected: str):
    named = [word.split() for word in roles.split(", ")]
    assert where([role(name, int(count)) for name, count in named], hosts(inventory)) == expected


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ([role("worker", 3, hosts=("b1", "a2"))], "worker: a2 a2 b1"),
        ([role("worker", 3, labels=("fast",))], "worker: a1 a1 b1"),
        ([role("worker", 1, hosts=("a2", "b1"), labels=("fast",))], "worker: b1"),
        # the bound role chooses first; of two bound roles the one with fewer hosts; of equals the ps
        ([role("worker", 4), role("x", 2, hosts=("a1",))], "worker: a2 a2 b1 b1, x: a1 a1"),
        ([role("worker", 2, labels=("fast",)), role("x", 2, hosts=("a1",))], "worker: b1 b1, x: a1 a1"),
        ([role("worker", 2, labels=("fast",)), role("ps", 2, labels=("fast",))], "worker: a1 b1, ps: a1 b1"),
    ],
)
def test_a_role_goes_where_it_is_bound_to(roles: list[Role], expected: str):
    assert where(roles, LAB) == expected


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        ((Host("c1", roles=("ps",)), Host("n1", slots=4)), "worker: n1 n1 n1, ps: c1"),
        ((Host("n1", slots=4, roles=("ps", "worker")),), "worker: n1 n1 n1, ps: n1"),
        ((Host("n1"), Host("c1", roles=("worker",))), "worker: c1 c1 n1, ps: n1"),
    ],
)
def test_a_host_takes_only_the_roles_written_for_it(inventory: tuple[Host, ...], expected: str):
    assert where([role("ps", 1), role("worker", 3)], inventory) == expected


def test_tasks_move_along_a_chain_when_that_makes_all_fit():
    bounds = {"a": ("n1", "n2"), "b": ("n2", "n3"), "c": ("n3", "n4"), "d": ("n1", "n2")}
    roles = [role(name, 1, hosts=names) for name, names in bounds.items()]
    assert where(roles, hosts("n1:1 n2:1 n3:1 n4:1")) == "a: n1, b: n3, c: n4, d: n2"


@pytest.mark.parametrize(
    ("roles", "inventory", "expected"),
    [
        ([role("worker", 3)], (GPU,), {"worker/0": "0", "worker/1": "1", "worker/2": "2"}),
        ([role("ps", 1), role("worker", 2)], (GPU,), {"worker/0": "0 1", "worker/1": "2 3", "ps/0": ""}),
        ([role("ps", 1, gpus=1)], (GPU,), {"ps/0": "0"}),
        ([role("worker", 1), role("reader", 1, gpus=0)], (UNKNOWN,), {"worker/0": None, "reader/0": ""}),
        ([role("worker", 1)], (BARE,), {"worker/0": ""}),
        ([role("worker", 2), role("chief", 1, gpus=2)], (GPU,), {"chief/0": "0 1", "worker/0": "2", "worker/1": "3"}),
        ([role("worker", 2, gpus=2)], (BARE, UNKNOWN, GPU), {"worker/0": "0 1", "worker/1": "2 3"}),
        # the role that needs many comes first, or no host would have four left
        ([role("worker", 1, gpus=1), role("x", 1, gpus=4)], (GPU, Host("g2", gpus=("GPU-8f",))), {"worker/0": "GPU-8f", "x/0": "0 1 2 3"}),
    ],
)  # fmt: skip
def test_gpus_are_given_out_once(
    roles: list[Role], inventory: tuple[Host, ...], expected: dict[str, str | None]
):
    tasks = placed(roles, inventory).tasks
    assert {task.task: None if task.gpus is None else " ".join(task.gpus) for task in tasks} == expected


def test_notes():
    inventory = (Host("n1", gpus=("0",), slots=2), Host("n2", gpus=("0",), slots=2))
    first, second = placed([role("chief", 1, gpus=1), role("worker", 3)], inventory).notes
    assert ("n1" in first, "worker/0" in first, "n2" in second, "worker/2" in second) == (True,) * 4
    services = [role("ps", 2, service=True), role("data", 1, service=True)]
    services.append(role("board", 1, service=True, sidecar=True))
    (note,) = placed(services, (Host("n1"),)).notes
    assert "ps and data" in note and "--timeout" in note
    assert placed([*services, role("worker", 1)], (Host("n1"),)).notes == ()


@pytest.mark.parametrize(
    ("bound", "more", "expected"),
    [
        ({}, (), "a"),
        ({"hosts": ("b",)}, (), "b"),
        ({"labels": ("fast",)}, (), "b"),
        ({"hosts": ("c",)}, (Host("c"),), "c"),
        ({"count": 3}, (Host("c", roles=("board",)), Host("d", roles=("board",))), "c d c"),
    ],
)
def test_sidecars_take_no_slot_and_no_gpu(bound: dict[str, object], more: tuple[Host, ...], expected: str):
    inventory = (Host("a", slots=1, gpus=("0",)), Host("b", slots=1, labels=("fast",), gpus=("0",)), *more)
    board = role("board", **{"count": 1, **bound, "sidecar": True, "service": True})  # type: ignore[arg-type]
    tasks = placed([board, role("worker", 2)], inventory).tasks
    assert [(task.task, task.host.name, task.gpus) for task in tasks[:2]] == [
        ("worker/0", "a", ("0",)),
        ("worker/1", "b", ("0",)),
    ]
    assert " ".join(task.host.name for task in tasks[2:]) == expected
    assert all(not task.gpus for task in tasks[2:])


MANY = tuple(Host(f"n{number}", slots=1) for number in range(1, 10))
MISFITS = [
    ([role("worker", 1)], ()),
    ([role("ps", 1), role("worker", 4)], hosts("n1:2 n2:1 n3:1")),
    ([role("chief", 1), role("worker", 1)], hosts("n1:1")),
    ([role("worker", 10)], MANY),
    ([role("worker", 3, hosts=("n2", "n3"), source="j:4")], MANY),
    ([role("worker", 3, gpus=2)], (GPU, UNKNOWN)),
    ([role("worker", 1, gpus=1)], (Host("localhost"),)),
    ([role("worker", 1, hosts=("node7",), source="j:9")], hosts("node1")),
    ([role("worker", 1, hosts=("gpubox",))], hosts("n1 n2")),
    ([role("worker", 1, labels=("fsat",))], LAB),
    ([role("worker", 1, labels=("slow",))], LAB),
    ([role("worker", 1, labels=("fast",))], hosts("n1")),
    ([role("worker", 1, hosts=("a2",), labels=("fast",))], LAB),
    ([role("worker", 1)], (Host("n1", roles=("ps",)),)),
    ([role("board", 1, hosts=("a2",), labels=("fast",), sidecar=True), role("worker", 1)], LAB),
]


def test_jobs_that_do_not_fit(snapshot: SnapshotAssertion):
    found = [faults(roles, inventory) for roles, inventory in MISFITS]
    assert all(len(each) == 1 for each in found)
    assert "\n".join(fault for each in found for fault in each) == snapshot


def test_all_faults_come_at_once():
    inventory = (Host("localhost", slots=1), Host("n2", slots=1, roles=("worker",)))
    roles = [
        role("worker", 3),
        role("ps", 1, hosts=("n3",)),
        role("x", 1, labels=("fast",)),
        role("chief", 1, hosts=("n2",)),
    ]
    assert [fault.partition(";")[0] for fault in faults(roles, inventory)] == [
        "ps: there is no host 'n3'",
        "x: no host has the label 'fast'",
        "chief: no host is for this role (n2: for other roles only)",
        "6 tasks do not fit: 2 hosts have room for 2 (localhost 1, n2 1)",
        "localhost: tasks on other hosts cannot reach it by 'localhost', their own machine",
    ]


@pytest.mark.promise("a localhost is in no other host's ClusterSpec")
@pytest.mark.parametrize(
    ("inventory", "unreachable"),
    [
        ([Host("localhost"), Host("127.0.0.2")], []),
        ([Host("localhost", address="10.0.0.1"), Host("n2")], []),
        ([Host("n1", address="127.0.0.1"), Host("n2"), Host("::1")], ["n1", "::1"]),
        # one that is not used harms no other
        ([Host("n1"), Host("n2"), Host("n3"), Host("localhost")], []),
    ],
)
def test_localhost_never_gets_into_another_hosts_cluster(inventory: list[Host], unreachable: list[str]):
    if unreachable:
        assert [
            fault.partition(": ")[0] for fault in faults([role("worker", 3)], tuple(inventory))
        ] == unreachable
    else:
        placed([role("worker", 3)], tuple(inventory))


# ---------------------------------------------------------------------- lost hosts


#: Roles; hosts and spares; lost hosts; where the tasks are then, and the hosts on standby.
REPLACED = [
    # a spare is first, then a host without a task, then free slots
    ([role("worker", 2)], "n1:1 n2:1 n3:1 +s1", "n2", "worker: n1 s1", "n3"),
    ([role("worker", 2)], "n1:1 n2:1 n3:1", "n2", "worker: n1 n3", ""),
    ([role("worker", 3)], "n1:2 n2:2", "n2", "worker: -", ""),
    ([role("worker", 3)], "n1:2:4 n2:2", "n2", "worker: n1 n1 n1", ""),
    ([role("worker", 4)], "n1 n2 n3 n4", "n3", "worker: n1 n2 n1 n4", ""),
    ([role("worker", 4)], "n1 n2 n3 n4", "n1 n2 n3", "worker: n4 n4 n4 n4", ""),
    ([role("worker", 2)], "n1:2", "n1", "worker: -", ""),
    ([role("worker", 2)], "n1:1 n2:1 +s1 +s2", "n2 s1", "worker: n1 s2", ""),
    # only those of the lost host move; ps keep apart from each other
    ([role("ps", 2), role("worker", 2)], "n1:2 n2:2 n3:4", "n1", "worker: n3 n2, ps: n3 n2", ""),
    # hosts and labels of roles are kept
    ([role("worker", 2, hosts=("n1", "n2"))], "n1:1 n2:1 +s1", "n2", "worker: -", "s1"),
    ([role("worker", 2, hosts=("n1", "n2", "s1"))], "n1:1 n2:1 +s1", "n2", "worker: n1 s1", ""),
    # a sidecar takes no slot
    ([role("worker", 1), role("board", 1, sidecar=True)], "n1:1 +s1", "n1", "worker: s1, board: s1", ""),
]  # fmt: skip


@pytest.mark.parametrize(("roles", "inventory", "lost", "expected", "standby"), REPLACED)
def test_tasks_of_lost_hosts(roles: list[Role], inventory: str, lost: str, expected: str, standby: str):
    spares = tuple(Host(word[1:], slots=1, spare=True) for word in inventory.split() if word[0] == "+")
    known = hosts(" ".join(word for word in inventory.split() if word[0] != "+"))
    first = place(JobSpec(tuple(roles), policy=Policy(restarts=3)), (*known, *spares))
    assert not {placed.host.name for placed in first.tasks} & {spare.name for spare in spares}
    found = replace_hosts(first, lost.split())
    if found is None:
        assert expected.endswith("-")
        return
    assert shown(found) == expected
    assert " ".join(host.name for host in found.standby) == standby
    assert [placed.task for placed in found.tasks] == [placed.task for placed in first.tasks]


def test_gpus_are_assigned_anew():
    two = Host("g2", gpus=("0", "1"), slots=2)
    policy = Policy(restarts=1)
    first = place(
        JobSpec((role("worker", 2, gpus=1),), policy=policy), (replace(two, name="g1", slots=1), two)
    )
    found = replace_hosts(first, ["g1"])
    assert found is not None
    assert [(placed.host.name, placed.gpus) for placed in found.tasks] == [("g2", ("0",)), ("g2", ("1",))]
    assert replace_hosts(replace(first, tasks=first.tasks[:1]), ["g1"]) is None


def test_hosts_on_standby():
    def standby(restarts: int, inventory: tuple[Host, ...]) -> str:
        spec = JobSpec((role("worker", 2),), policy=Policy(restarts=restarts))
        return " ".join(host.name for host in place(spec, inventory).standby)

    spare = Host("s1", spare=True)
    known = hosts("n1:2 n2 n3 n4 n5")
    assert standby(0, (*known, spare)) == ""
    assert standby(1, (*known, spare)) == "s1 n2 n3"  # one host is lost at most, which has two tasks
    assert standby(9, (*known, spare)) == "s1 n2 n3 n4 n5"
    assert standby(1, (Host("n1", slots=2), Host("localhost"), Host("n2"))) == "n2"
    here = Host("s2", spare=True, address="127.0.0.1")
    assert standby(1, (*known, here, spare)) == "s1 n2 n3"
    placed = place(JobSpec((role("worker", 1),), policy=Policy(restarts=1)), (*known, here, spare))
    (note,) = placed.notes
    assert note.startswith("s2 ") and "'127.0.0.1'" in note
    assert faults([role("worker", 1)], (spare,))
