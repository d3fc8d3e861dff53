"""Where sidecars run: beside the task that leads the job, without taking anything from anybody."""

from __future__ import annotations

import pytest

from launcher.errors import PlacementError
from launcher.job import Host, JobSpec, Placement, Program, Role
from launcher.planning import assemble, place

PROGRAM = Program.of(["train.py"])
HOSTS = (Host("a", slots=1, gpus=("0",)), Host("b", slots=1, labels=("fast",), gpus=("0",)))


def placed(board: Role, *hosts: Host) -> Placement:
    roles = (board._replace(sidecar=True, service=True), Role("worker", 2, PROGRAM))
    return place(JobSpec(roles), hosts or HOSTS)


def test_it_takes_no_slot_and_no_gpu():
    tasks = placed(Role("board", 1, PROGRAM)).tasks
    assert [(task.task, task.host.name, task.gpus) for task in tasks] == [
        ("worker/0", "a", ("0",)),
        ("worker/1", "b", ("0",)),
        ("board/0", "a", ()),
    ]


@pytest.mark.parametrize(
    "bound", [Role("board", 1, PROGRAM, hosts=("b",)), Role("board", 1, PROGRAM, labels=("fast",))]
)
def test_it_goes_where_it_is_told(bound: Role):
    assert placed(bound).tasks[-1].host.name == "b"


def test_hosts_that_were_written_for_it():
    hosts = (*HOSTS, Host("c", roles=("board",)), Host("d", roles=("board",)))
    tasks = placed(Role("board", 3, PROGRAM), *hosts).tasks
    assert [task.host.name for task in tasks if task.task.role == "board"] == ["c", "d", "c"]


def test_where_nobody_else_is():
    assert placed(Role("board", 1, PROGRAM, hosts=("c",)), *HOSTS, Host("c")).tasks[-1].host.name == "c"


@pytest.mark.parametrize(
    "bound",
    [Role("board", 1, PROGRAM, hosts=("a",), labels=("fast",)), Role("board", 1, PROGRAM, hosts=("x",))],
)
def test_hosts_that_there_are_not(bound: Role):
    with pytest.raises(PlacementError, match="board"):
        placed(bound)


def test_all_that_is_wrong_is_told_at_once():
    def board(name: str) -> Role:
        return Role(name, 1, PROGRAM, hosts=("a",), labels=("fast",), sidecar=True, service=True)

    hosts = (Host("a", slots=1, max_slots=1), Host("b", slots=1, max_slots=1, labels=("fast",)))
    with pytest.raises(PlacementError) as caught:
        place(JobSpec((board("one"), board("two"), Role("worker", 3, PROGRAM))), hosts)
    assert [fault.what for fault in caught.value.faults] == [
        "3 tasks do not fit: 2 hosts have room for 2 (a 1, b 1)",
        "one: none of its hosts (a) has all its labels (fast)",
        "two: none of its hosts (a) has all its labels (fast)",
    ]


def test_it_is_no_part_of_the_world():
    program = Program.of(["train.py", "{rank}/{world_size}"])
    job = JobSpec((Role("board", 1, program, sidecar=True, service=True), Role("worker", 2, program)))
    placement = place(job, HOSTS)
    plan = assemble(job, placement, {task.task: 20000 + n for n, task in enumerate(placement.tasks)})
    assert [task.argv[-1] for task in plan.tasks] == ["0/2", "1/2", "2/2"]
    assert plan.tasks[-1].task == "board/0"
