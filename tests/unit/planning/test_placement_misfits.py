"""What does not fit, and what is said of it."""

from __future__ import annotations

import time

import pytest

from launcher.errors import PlacementError
from launcher.job import Host, JobSpec
from launcher.planning import place
from tests.unit.planning.placing import GPU, LAB, UNSAID, faults, hosts, role

MANY = tuple(Host(f"n{number}", slots=1) for number in range(1, 10))


@pytest.mark.parametrize(
    ("roles", "inventory", "expected"),
    [
        ([role("worker", 1)], (), ["there is no host to run on; write at least one"]),
        (
            [role("ps", 1), role("worker", 4)],
            hosts("n1:2", "n2:1", "n3:1"),
            [
                "5 tasks do not fit: 3 hosts have room for 4 (n1 2, n2 1, n3 1);"
                " add hosts, raise slots, or set max_slots"
            ],
        ),
        # both roles lack places for the same reason: said once
        (
            [role("chief", 1), role("worker", 1)],
            hosts("n1:0"),
            [
                "2 tasks do not fit: 1 host has room for 0 (n1 0); add hosts, raise slots, or set max_slots",
            ],
        ),
        (
            [role("worker", 10)],
            MANY,
            [
                "10 tasks do not fit: 9 hosts have room for 9 (n1 1, n2 1, n3 1, n4 1 and 5 more);"
                " add hosts, raise slots, or set max_slots"
            ],
        ),
        (
            [role("worker", 3, hosts=("n2", "n3"), source="job.yaml:4")],
            MANY,
            [
                "job.yaml:4: worker: only 2 of 3 tasks fit on the 2 hosts it may use (n2 1, n3 1);"
                " allow it more hosts, raise slots, or set max_slots"
            ],
        ),
        (
            [role("worker", 3, gpus=2)],
            (GPU, Host("g2", gpus=("0",)), UNSAID),
            [
                "worker needs 2 GPUs a task, for 1 of 3 there are none: g1 has 0 left, g2 has 1 left,"
                " n1 does not say its GPUs; add hosts, ask for fewer, or say which there are;"
                " in a hostfile, as in n1 gpus=2"
            ],
        ),
        (
            [role("worker", 1, hosts=("node7",), source="job.yaml:9")],
            (Host("node1"), Host("node2")),
            ["job.yaml:9: worker: there is no host 'node7'; did you mean 'node2'?"],
        ),
        (
            [role("worker", 1, hosts=("gpubox",))],
            (Host("n1"), Host("n2")),
            ["worker: there is no host 'gpubox'; the hosts are n1, n2"],
        ),
        (
            [role("worker", 1, labels=("fsat", "slow"))],
            LAB,
            [
                "worker: no host has the label 'fsat'; did you mean 'fast'?",
                "worker: no host has the label 'slow'; the labels are zone=a, fast, zone=b",
            ],
        ),
        (
            [role("worker", 1, labels=("fast",))],
            (Host("n1"),),
            ["worker: no host has the label 'fast'; there are no labels"],
        ),
        (
            [role("worker", 1, hosts=("a2",), labels=("fast",))],
            LAB,
            ["worker: none of its hosts (a2) has all its labels (fast); drop some, or label a host"],
        ),
        (
            [role("worker", 1, labels=("fast", "slow"))],
            (Host("n1", labels=("fast",)), Host("n2", labels=("slow",))),
            ["worker: no host has all its labels (fast, slow); drop some, or label a host"],
        ),
        (
            [role("worker", 1)],
            (Host("n1", roles=("ps",)), Host("n2", roles=("chief",))),
            [
                "worker: no host takes it, n1, n2 being for other roles; write worker into roles: of a host",
            ],
        ),
    ],
)
def test_what_does_not_fit_is_said(roles, inventory, expected):
    assert faults(roles, inventory) == expected


def test_all_faults_come_at_once():
    inventory = (Host("localhost", slots=1), Host("n2", slots=1, roles=("worker",)))
    roles = [
        role("worker", 3),
        role("ps", 1, hosts=("n3",)),
        role("reader", 1, labels=("fast",)),
        role("chief", 1, hosts=("n2",)),
    ]
    assert faults(roles, inventory) == [
        "ps: there is no host 'n3'; the hosts are localhost, n2",
        "reader: no host has the label 'fast'; there are no labels",
        "chief: no host takes it, n2 being for other roles; write chief into roles: of a host",
        "6 tasks do not fit: 2 hosts have room for 2 (localhost 1, n2 1);"
        " add hosts, raise slots, or set max_slots",
        "localhost: tasks on other hosts can't reach it as 'localhost', that is themselves;"
        " set address: to what the others can connect to",
    ]


@pytest.mark.parametrize(
    ("inventory", "blind"),
    [
        ([Host("localhost")], []),
        ([Host("localhost"), Host("127.0.0.2")], []),
        ([Host("n1"), Host("n2")], []),
        ([Host("localhost", address="10.0.0.1"), Host("n2")], []),
        ([Host("localhost"), Host("n2")], ["localhost"]),
        ([Host("n1", address="127.0.0.1"), Host("n2"), Host("::1")], ["n1", "::1"]),
        # one that is not used harms nobody
        ([Host("n1"), Host("n2"), Host("n3"), Host("localhost")], []),
    ],
)
def test_localhost_never_gets_into_another_hosts_cluster(inventory, blind):
    job = JobSpec((role("worker", 3),))
    if not blind:
        place(job, tuple(inventory))
        return
    with pytest.raises(PlacementError) as caught:
        place(job, tuple(inventory))
    assert [fault.what.partition(": ")[0] for fault in caught.value.faults] == blind


def test_hundreds_of_tasks_on_thousands_of_hosts_take_no_time():
    inventory = tuple(Host(f"node{number:04}", slots=1, max_slots=2) for number in range(4096))
    job = JobSpec((role("ps", 50), role("worker", 449), role("chief", 1)))
    started = time.process_time()
    assert len(place(job, inventory).hosts()) == 500
    assert time.process_time() - started < 2
