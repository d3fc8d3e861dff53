"""Who runs where: tables of jobs, hosts and what comes out."""

from __future__ import annotations

import pytest

from launcher.job import Host, JobSpec
from launcher.planning import place
from tests.unit.planning.placing import BARE, GPU, LAB, UNSAID, faults, gpus, hosts, role, where


@pytest.mark.parametrize(
    ("workers", "inventory", "expected"),
    [
        (3, ["here"], "here here here"),
        (2, ["n1", "n2"], "n1 n2"),
        (5, ["n1", "n2"], "n1 n2 n1 n2 n1"),
        (3, ["n1:2", "n2:2"], "n1 n1 n2"),
        (4, ["n1:2", "n2:2"], "n1 n1 n2 n2"),
        (4, ["n1:2", "n2:1", "n3:1"], "n1 n1 n2 n3"),
        (5, ["n1:1:3", "n2:1:3"], "n1 n2 n1 n2 n1"),
        (6, ["n1:1:2", "n2:2:4"], "n1 n2 n2 n1 n2 n2"),
        (4, ["n1::2", "n2::2"], "n1 n2 n1 n2"),
        (4, ["n1", "n2::2"], "n1 n2 n1 n2"),
        (5, ["n1", "n2::2"], "n1 n2 n1 n2 n1"),
        (3, ["n1:0", "n2"], "n2 n2 n2"),
        (2, ["n1:4:1", "n2"], "n1 n2"),
        (1, ["n2", "n1"], "n2"),
    ],
)
def test_slots_are_filled_host_by_host_then_overflow_evenly(workers, inventory, expected):
    assert where([role("worker", workers)], hosts(*inventory)) == {"worker": expected}


@pytest.mark.parametrize(
    ("roles", "inventory", "expected"),
    [
        ([("ps", 1), ("worker", 2)], ["here"], {"worker": "here here", "ps": "here"}),
        ([("ps", 2), ("worker", 2)], ["n1:2", "n2:2"], {"worker": "n1 n2", "ps": "n1 n2"}),
        ([("worker", 2), ("ps", 2)], ["n1:2", "n2:2"], {"worker": "n1 n2", "ps": "n1 n2"}),
        ([("ps", 1), ("worker", 3)], ["n1", "n2", "n3"], {"worker": "n2 n3 n1", "ps": "n1"}),
        # fewest ps first, then most free slots, then as written
        ([("ps", 1)], ["n1:1", "n2:3", "n3:3"], {"ps": "n2"}),
        ([("ps", 3)], ["n1:1", "n2:3"], {"ps": "n2 n1 n2"}),
        ([("ps", 4)], ["n1:2", "n2:2"], {"ps": "n1 n2 n1 n2"}),
        # keeping apart does not overfill a host while another has a slot
        ([("ps", 3)], ["n1", "n2:4"], {"ps": "n2 n1 n2"}),
        # worker/0 stands behind the chief, whatever was written first
        ([("worker", 2), ("chief", 1)], ["n1:2", "n2:2"], {"chief": "n1", "worker": "n1 n2"}),
        (
            [("evaluator", 1), ("worker", 1), ("ps", 1), ("chief", 1)],
            ["n1", "n2", "n3", "n4"],
            {"chief": "n2", "worker": "n3", "ps": "n1", "evaluator": "n4"},
        ),
        ([("reader", 1), ("ps", 0), ("worker", 0)], ["n1"], {"reader": "n1"}),
    ],
)
def test_parameter_servers_keep_apart_and_the_others_fill_up(roles, inventory, expected):
    assert where([role(*named) for named in roles], hosts(*inventory)) == expected


def test_the_table_lists_tensorflows_roles_first_then_the_users_as_written():
    names = ["reader", "evaluator", "ps", "audit", "worker", "chief"]
    job = JobSpec(tuple(role(name, 2 if name in ("ps", "audit") else 1) for name in names))
    assert [placed.task for placed in place(job, hosts("here")).tasks] == [
        "chief/0",
        "worker/0",
        "ps/0",
        "ps/1",
        "evaluator/0",
        "reader/0",
        "audit/0",
        "audit/1",
    ]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ([role("worker", 2, hosts=("b1",))], {"worker": "b1 b1"}),
        ([role("worker", 3, hosts=("b1", "a2"))], {"worker": "a2 a2 b1"}),
        ([role("worker", 3, labels=("fast",))], {"worker": "a1 a1 b1"}),
        ([role("worker", 1, labels=("fast", "zone=b"))], {"worker": "b1"}),
        ([role("worker", 1, hosts=("a2", "b1"), labels=("fast",))], {"worker": "b1"}),
        # the bound role chooses first, though it was written last
        ([role("worker", 4), role("reader", 2, hosts=("a1",))], {"worker": "a2 a2 b1 b1", "reader": "a1 a1"}),
        # of two bound roles the one with fewer hosts
        (
            [role("worker", 2, labels=("fast",)), role("reader", 2, hosts=("a1",))],
            {"worker": "b1 b1", "reader": "a1 a1"},
        ),
        # of two with equally many, the ps: it wants to keep apart
        (
            [role("worker", 2, labels=("fast",)), role("ps", 2, labels=("fast",))],
            {"worker": "a1 b1", "ps": "a1 b1"},
        ),
    ],
)
def test_a_role_goes_where_it_is_bound_to(roles, expected):
    assert where(roles, LAB) == expected


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        # other roles keep out, and the role written there prefers it over a free host
        ((Host("n1", slots=4), Host("c1", roles=("ps",))), {"worker": "n1 n1 n1", "ps": "c1"}),
        ((Host("c1", roles=("ps",)), Host("n1", slots=4)), {"worker": "n1 n1 n1", "ps": "c1"}),
        # nobody keeps anybody out
        ((Host("n1", slots=4, roles=("ps", "worker")),), {"worker": "n1 n1 n1", "ps": "n1"}),
        # beyond the slots it is preferred again
        ((Host("n1"), Host("c1", roles=("worker",))), {"worker": "c1 c1 n1", "ps": "n1"}),
    ],
)
def test_a_host_takes_only_the_roles_written_for_it(inventory, expected):
    assert where([role("ps", 1), role("worker", 3)], inventory) == expected


def test_tasks_move_over_when_that_makes_all_fit():
    inventory = hosts("n1:1", "n2:1", "n3:1")
    roles = [
        role("a", 1, hosts=("n1", "n2")),
        role("b", 1, hosts=("n2", "n3")),
        role("c", 1, hosts=("n1", "n2")),
    ]
    assert where(roles, inventory) == {"a": "n1", "b": "n3", "c": "n2"}


def test_moving_goes_along_a_chain():
    inventory = hosts("n1:1", "n2:1", "n3:1", "n4:1")
    roles = [
        role("a", 1, hosts=("n1", "n2")),
        role("b", 1, hosts=("n2", "n3")),
        role("c", 1, hosts=("n3", "n4")),
        role("d", 1, hosts=("n1", "n2")),
    ]
    assert sorted(where(roles, inventory).items()) == [("a", "n1"), ("b", "n3"), ("c", "n4"), ("d", "n2")]


#: With ``d`` and ``e``, which choose first, nothing but n2 is left for ``c``.
TIGHT = [role("d", 1, hosts=("n4",)), role("e", 1, hosts=("n5",))]


def test_the_task_that_moves_is_the_one_in_the_way():
    roles = [role("a", 2, hosts=("n1", "n2", "n3")), role("c", 1, hosts=("n2", "n4", "n5")), *TIGHT]
    found = where(roles, hosts("n1:1", "n2:1", "n3:1", "n4:1", "n5:1"))
    assert found == {"a": "n1 n3", "c": "n2", "d": "n4", "e": "n5"}


def test_a_task_moves_only_once():
    roles = [role("a", 2, hosts=("n2", "n3", "n4")), role("c", 3, hosts=("n2", "n4", "n5")), *TIGHT]
    assert faults(roles, hosts("n2:2", "n3:3", "n4:1", "n5:1")) == [
        "c: only 2 of 3 tasks fit on the 3 hosts it may use (n2 2, n4 0, n5 0);"
        " allow it more hosts, raise slots, or set max_slots"
    ]


def gpu_hosts(**has: int) -> tuple[Host, ...]:
    """Hosts with so many GPUs; two tasks fit on n1, one on the others."""
    return tuple(
        Host(name, slots=2 if name == "n1" else 1, gpus=tuple(map(str, range(number))))
        for name, number in has.items()
    )


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        # b can't move, and what c gives up is not enough
        (1, 1, 0),
        # nor is it enough when c makes place for b, and b for a, on the same host
        (3, 2, 1),
    ],
)
def test_nobody_moves_for_a_task_that_lacks_gpus(a, b, c):
    roles = [
        role("a", 1, hosts=("n1", "n4", "n5"), gpus=a),
        role("b", 1, hosts=("n1",), gpus=b),
        role("c", 1, hosts=("n1", "n2"), gpus=c),
        *TIGHT,
    ]
    assert faults(roles, gpu_hosts(n1=b + c + b // 2, n2=1, n4=3, n5=3)) == [
        "a: only 0 of 1 task fit on the 3 hosts it may use (n1 0, n4 0, n5 0);"
        " allow it more hosts, raise slots, or set max_slots"
    ]


@pytest.mark.parametrize(
    ("roles", "inventory", "expected"),
    [
        # a share each
        ([role("worker", 2)], (GPU,), {"worker/0": "0 1", "worker/1": "2 3"}),
        ([role("worker", 3)], (GPU,), {"worker/0": "0", "worker/1": "1", "worker/2": "2"}),
        # a ps sees none, and takes no part in the sharing
        ([role("ps", 1), role("worker", 1)], (GPU,), {"worker/0": "0 1 2 3", "ps/0": ""}),
        ([role("ps", 1), role("worker", 1)], (UNSAID,), {"worker/0": None, "ps/0": ""}),
        ([role("ps", 1, gpus=1)], (GPU,), {"ps/0": "0"}),
        # nothing said about the host: not touched
        ([role("worker", 1), role("reader", 1, gpus=0)], (UNSAID,), {"worker/0": None, "reader/0": ""}),
        ([role("worker", 1)], (BARE,), {"worker/0": ""}),
        # a number is its own; the rest is shared
        (
            [role("worker", 2), role("chief", 1, gpus=2), role("reader", 1, gpus=0)],
            (GPU,),
            {"chief/0": "0 1", "worker/0": "2", "worker/1": "3", "reader/0": ""},
        ),
        # hosts without enough are passed over
        ([role("worker", 2, gpus=2)], (BARE, UNSAID, GPU), {"worker/0": "0 1", "worker/1": "2 3"}),
        ([role("worker", 1, gpus=1)], (Host("n1", gpus=("GPU-8f6c",)),), {"worker/0": "GPU-8f6c"}),
        # who needs many comes first, or there would be none with four
        (
            [role("worker", 2, gpus=1), role("reader", 1, gpus=4)],
            (GPU, Host("g2", gpus=("4", "5", "6", "7"))),
            {"reader/0": "0 1 2 3", "worker/0": "4", "worker/1": "5"},
        ),
    ],
)
def test_gpus_are_given_out_once(roles, inventory, expected):
    assert gpus(roles, inventory) == expected


@pytest.mark.parametrize(
    ("workers", "ids", "notes"),
    [
        (1, ("0",), ()),
        (2, ("0",), ("n1 has 1 GPU for 2 tasks: worker/1 runs without",)),
        (4, ("0", "1"), ("n1 has 2 GPUs for 4 tasks: worker/2, worker/3 run without",)),
        (
            9,
            ("0",),
            ("n1 has 1 GPU for 9 tasks: worker/1, worker/2, worker/3, worker/4 and 4 more run without",),
        ),
        (3, (), ()),
    ],
)
def test_who_gets_no_gpu_is_told(workers, ids, notes):
    job = JobSpec((role("worker", workers),))
    assert place(job, (Host("n1", gpus=ids),)).notes == notes


def test_a_note_for_each_host():
    inventory = (Host("n1", gpus=("0",), slots=2), Host("n2", gpus=("0",), slots=2))
    job = JobSpec((role("chief", 1, gpus=1), role("worker", 3)))
    assert place(job, inventory).notes == (
        "n1 has 0 GPUs for 1 task: worker/0 runs without",
        "n2 has 1 GPU for 2 tasks: worker/2 runs without",
    )


def test_a_job_of_services_alone_is_told_that_it_has_no_end():
    ps, worker = role("ps", 2, service=True), role("worker", 1)
    board = role("board", 1, service=True, sidecar=True)
    (note,) = place(JobSpec((ps, role("data", 1, service=True), board)), (Host("n1"),)).notes
    assert note.startswith("there is nobody but ps and data, and a service does not end by itself")
    assert place(JobSpec((ps, worker, board)), (Host("n1"),)).notes == ()
