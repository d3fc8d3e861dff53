"""Messages and the plan of a launch."""

from __future__ import annotations

import json
import select
import threading

import pytest

from launcher.common.cluster import TaskId
from launcher.common.events import SignalSent, TaskOutput, Tell
from launcher.job import Host, JobSpec, Program, Role
from launcher.launch.host_connections import join_output
from launcher.launch.plan_output import plan_as_dict
from launcher.messages import MessageQueue, say
from launcher.scheduler.placement import place
from launcher.scheduler.plan import make_plan


def test_messages_wait_for_the_console_of_a_job(capsys: pytest.CaptureFixture[str]):
    say("before")
    with MessageQueue() as queue:
        say("first", urgent=False)
        assert queue.drain() == [Tell("first")]
        assert not select.select([queue.fd], [], [], 0)[0]
        thread = threading.Thread(target=say, args=("node2: connection lost",))
        thread.start()
        assert select.select([queue.fd], [], [], 10)[0]
        thread.join()
        assert queue.drain() == [Tell("node2: connection lost", urgent=True)]
        say("late\x1b[2J")
    say("two\nlines")
    assert capsys.readouterr().err == ("launch: before\nlaunch: late\\x1b[2J\nlaunch: two\nlaunch: lines\n")


def test_the_plan_of_many_tasks_lists_their_addresses_once():
    args = ["{worker_hosts}", "{cluster_spec}", "{tf_config}", "{rank} of {num_ps}"]
    program = Program.of(["train.py", *args])
    roles = (Role("worker", 3990, program, env=(("ALL", "{worker_hosts}"),)), Role("ps", 10, program))
    job = JobSpec(roles, flags=True)
    placement = place(job, tuple(Host(f"node{n:04}", slots=4) for n in range(1000)))
    ports = {placed.task: 40000 + n for n, placed in enumerate(placement.tasks)}
    text = json.dumps(plan_as_dict(make_plan(job, placement, ports), "job", (), job.policy))
    assert len(text) < 2_000_000
    last = json.loads(text)["tasks"][-1]
    assert text.count(f'"{last["address"]}"') == 3, "in the cluster, and twice in its own entry"
    assert last["argv"] == [
        "python3", "train.py", "{worker_hosts}", "{cluster_spec}",
        '{"cluster":{cluster},"task":{"type":"ps","index":9}}', "3999 of 10",
        "--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}", "--job_name=ps", "--task_index=9",
    ]  # fmt: skip


def test_what_a_task_prints_between_two_events_is_one_message():
    def output(index: int, data: bytes, attempt: int = 1) -> TaskOutput:
        return TaskOutput(host="node1", task=TaskId.of("worker", index), attempt=attempt, data=data)

    event = SignalSent(host="node1", at=1.0, task=TaskId("worker/0"), signal=15, states="S")
    before = [output(0, b"a"), output(1, b"b\n"), output(0, b"c"), output(0, b"d", attempt=2)]
    after = [output(0, b"e\n"), output(0, b"f")]
    assert [*join_output([*before, event, *after])] == [
        output(0, b"ac"), output(1, b"b\n"), output(0, b"d", attempt=2), event, output(0, b"e\nf")
    ]  # fmt: skip
