"""Signals and messages of a launch."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Iterator

import pytest

from launcher.events import SignalSent, TaskOutput, Tell
from launcher.job import Host, JobSpec, Program, Role
from launcher.job_run import interrupts
from launcher.job_run.interrupts import Interrupts
from launcher.job_run.notices import Notices
from launcher.job_run.orchestrator import joined
from launcher.job_run.plan import plan_as_dict
from launcher.scheduler.placement import place
from launcher.scheduler.plan import make_plan
from launcher.task_id import TaskId


@pytest.fixture
def handling() -> Iterator[Interrupts]:
    before = {number: signal.getsignal(number) for number in interrupts.STOP_SIGNALS}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    with Interrupts() as handler:
        yield handler
    assert all(signal.getsignal(number) is signal.SIG_DFL for number in before)
    for number, old in before.items():
        signal.signal(number, old)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_the_first_signal_raises(handling: Interrupts):
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)
    with pytest.raises(SystemExit) as end:
        send(signal.SIGTERM)
    assert end.value.code == 143


def test_each_press_is_queued_while_the_job_runs(handling: Interrupts):
    with handling.queued():
        send(signal.SIGINT, signal.SIGINT, signal.SIGTERM)
        assert select.select([handling.fd], [], [], 0)[0]
        assert handling.read() == [signal.SIGINT, signal.SIGINT, signal.SIGTERM]
        assert handling.read() == []


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_signal_limits_the_time_of_work_after_the_job(
    handling: Interrupts, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], before: int
):
    monkeypatch.setattr(interrupts, "TIME_LEFT", 0.05)
    with handling.queued():
        send(*[signal.SIGTERM] * before)
    with handling.limited("collecting"), pytest.raises(SystemExit, match="143"):
        send(*[signal.SIGTERM] * (1 - before))
        assert ("SIGTERM: 0.05s for collecting" in capfd.readouterr().err) is (before < 2)
        signal.pause()


def test_the_second_signal_ends_work_after_the_job(handling: Interrupts):
    with handling.limited("collecting"), pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT, signal.SIGTERM)


def test_nothing_interrupts_a_removal(handling: Interrupts):
    handling.ignore()
    send(signal.SIGINT, signal.SIGTERM)


def test_what_the_caller_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as handler, handler.queued():
            send(signal.SIGHUP)
            assert handler.read() == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_messages_wait_for_the_console_of_a_job(capsys: pytest.CaptureFixture[str]):
    with Notices() as notices:
        notices("before")
        notices.add("first")
        with notices.queued():
            thread = threading.Thread(target=notices, args=("node2: connection lost",))
            thread.start()
            assert select.select([notices.fd], [], [], 10)[0]
            thread.join()
            assert notices.take() == [Tell("first"), Tell("node2: connection lost", urgent=True)]
            notices("late\x1b[2J")
        assert not select.select([notices.fd], [], [], 0)[0]
    assert capsys.readouterr().err == "launch: before\nlaunch: late\\x1b[2J\n"


def test_the_plan_of_many_tasks_lists_their_addresses_once():
    args = ["{worker_hosts}", "{cluster_spec}", "{tf_config}", "{rank} of {num_ps}"]
    program = Program.of(["train.py", *args])
    roles = (Role("worker", 3990, program, env=(("ALL", "{worker_hosts}"),)), Role("ps", 10, program))
    job = JobSpec(roles, flags=True)
    placement = place(job, tuple(Host(f"node{n:04}", slots=4) for n in range(1000)))
    ports = {placed.task: 40000 + n for n, placed in enumerate(placement.tasks)}
    text = json.dumps(plan_as_dict(make_plan(job, placement, ports), "job", 0))
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
        return TaskOutput("node1", TaskId.of("worker", index), attempt, data)

    event = SignalSent("node1", 1.0, TaskId("worker/0"), 15, "S")
    before = [output(0, b"a"), output(1, b"b\n"), output(0, b"c"), output(0, b"d", attempt=2)]
    after = [output(0, b"e\n"), output(0, b"f")]
    assert [*joined([*before, event, *after])] == [
        output(0, b"ac"), output(1, b"b\n"), output(0, b"d", attempt=2), event, output(0, b"e\nf")
    ]  # fmt: skip
