"""Whatever happens, in whatever order: a job ends, in a way that can be notices, and truthfully."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import from_attributes
from launcher.common.report import Attempt, Reason, Report, TaskState
from launcher.job import Host, JobSpec
from launcher.scheduler.placement import place
from launcher.supervisor.records import deciding_tasks
from tests.conftest import examples
from tests.histories.script import SimulatedJob, hosts, script
from tests.histories.world import World

OF_ATTEMPT = ("host", "state", "reason", "status", "detail", "pid")
TAPES = st.lists(st.integers(0, 1 << 16), max_size=120)


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    parts = [
        f"worker {draw(st.integers(1, 3))}{draw(st.sampled_from(['', '', ' drain 30', ' retryable 7']))}",
        *(f"{role} 1" for role in ("chief", "reader") if draw(st.integers(0, 3)) == 0),
        draw(st.sampled_from(["evaluator 0", "evaluator 1", "evaluator 1 drain 60"])),
        f"ps {draw(st.integers(0, 2))}{draw(st.sampled_from(['', ' drain 20', ' drain 60']))}",
        draw(st.sampled_from(["", "board 1 sidecar"])),
        draw(st.sampled_from(["", "continue"])),
        draw(st.sampled_from(["", "saves"])),
        draw(st.sampled_from(["grace 0", "grace 10"])),
        draw(st.sampled_from(["", "timeout 60"])),
        draw(st.sampled_from(["", "", "restarts 1", "restarts 5"])),
        draw(st.sampled_from(["", "", "restart task", "restart job"])),
        draw(st.sampled_from(["", "stall 20"])),
        draw(st.sampled_from(["", "", "done-when chief", "done-when workers", "done-when worker"])),
    ]
    return script(", ".join(filter(None, parts))).job


def run(
    simulated: SimulatedJob,
    tape: list[int],
    skews: list[float],
    surprising: int,
    calm: bool = False,
    lies: bool = False,
) -> World:
    """Let happen what the tape says, then let it settle.

    Args:
        simulated: the job.
        tape: which of the things that can happen does.
        skews: how wrong the clocks of the hosts are.
        surprising: how many of 16 are surprises.
        calm: all goes well until every task has started.
        lies: hosts send what they may not send.
    """
    world = World(simulated, skews, lies)
    if calm:
        world.start()
    for number in tape:
        ordinary, rare = world.actions(), world.surprises()
        choice, rest = divmod(number, 16)
        of = rare if rest < surprising or not ordinary else ordinary
        of[choice % len(of)]()
    world.settle()
    return world


@settings(max_examples=examples(400), deadline=None)
@given(
    jobs(),
    st.integers(1, 3),
    TAPES,
    st.lists(st.sampled_from([0.0, 0.05, -0.05, 3.0]), min_size=3, max_size=3),
    st.sampled_from([0, 1, 4]),
    st.booleans(),
    st.sampled_from([80.0, 80.0, 0.0, None]),
)
def test_every_history_ends(
    spec: JobSpec,
    count: int,
    tape: list[int],
    skews: list[float],
    surprising: int,
    calm: bool,
    tasks_end: float | None,
):
    spare = Host("spare", spare=True)
    simulated = SimulatedJob(spec, place(spec, (*hosts(count), spare)), tasks_end=tasks_end)
    world = run(simulated, tape, skews, surprising, calm)
    report = simulated.machine.report(100.0, 200.0)
    check_states(report)
    check_moves(world.moves, report)
    stopped = {task for task, record in simulated.machine.state.tasks.items() if record.is_dismissed}
    check_cause(report, simulated.machine.state.started_restarts > 0, stopped)
    decided = deciding_tasks(simulated.placement, spec.policy.done_when) - stopped
    assert report.exit_code != 143 or not decided
    if report.exit_code == 0:
        assert decided
        assert all(task.state is TaskState.SUCCEEDED for task in report.tasks if task.task in decided)
    assert simulated.exit_code == report.exit_code


def check_states(report: Report) -> None:
    """Every task is over, with a reason."""
    for task in report.tasks:
        assert task.state.is_over, task
        assert task.reason is not None, task
        if task.state is TaskState.SUCCEEDED:
            assert task.status.ok, task
        if task.state is TaskState.FAILED:
            assert task.status.known and (not task.status.ok or task.reason is Reason.STALLED), task
            assert task.detail, task


def check_moves(moves: Mapping[tuple[TaskId, int], events.TaskMoved], report: Report) -> None:
    """Those who see only what programs are told know of each attempt what the report says."""
    told = {key: [getattr(move, field) for field in OF_ATTEMPT] for key, move in moves.items()}
    reported = {
        (task.task, attempt.attempt): [getattr(attempt, field) for field in OF_ATTEMPT]
        for task in report.tasks
        for attempt in (from_attributes(Attempt, task), *task.earlier)
    }
    assert told == reported
    assert not any(moves[task.task, task.attempt].restarting for task in report.tasks)


def check_cause(report: Report, restarts: bool, stopped: Collection[TaskId]) -> None:
    """0 if and only if nothing failed; else the code of the first failure by time.

    With restarts a task may have failed before, and the job ended before the task could start again. What
    becomes of tasks that the user has stopped is no failure.
    """
    assert (report.exit_code == 0) == (report.failure is None)
    assert report.failure is None or report.failure.task not in stopped
    own = [task for task in report.tasks if task.task.role != "board" and task.task not in stopped]
    failed = [task for task in own if task.state is TaskState.FAILED]
    if report.failure is None:
        assert restarts or not failed
        assert not any(task.state is TaskState.LOST for task in own)
        return
    ends = [task.ended_at for task in failed if task.reason is not Reason.STALLED]
    assert restarts or all(ended_at is not None and ended_at >= report.failure.at for ended_at in ends)
    if report.failure.reason is Reason.STALLED:
        assert report.exit_code == 124
    elif report.failure.task is not None:
        (cause,) = (task for task in own if task.task == report.failure.task)
        assert cause.attempt > 1 or cause in failed  # the user may have started it again
        assert cause.attempt > 1 or cause.status.shell == report.exit_code
    else:
        assert report.exit_code in (124, 125, 130, 143)


@settings(max_examples=examples(300), deadline=None)
@given(jobs(), st.integers(1, 3), TAPES, st.booleans(), st.sampled_from([80.0, 0.0]))
@example(script("worker 1, chief 1, restarts 1, grace 0").job, 1, [0, 6, 0, 0, 0, 65536], True, 0.0)
def test_whatever_hosts_say_a_job_ends(
    spec: JobSpec, count: int, tape: list[int], calm: bool, tasks_end: float
):
    """A host that contradicts itself is lost; no event of it is a fault of the launcher."""
    simulated = SimulatedJob(spec, place(spec, hosts(count)), tasks_end=tasks_end)
    run(simulated, tape, [], surprising=6, calm=calm, lies=True)
    assert simulated.machine.report(100.0, 200.0).exit_code == simulated.exit_code


@settings(max_examples=examples(100), deadline=None)
@given(jobs(), st.integers(1, 3), TAPES)
def test_without_surprises_and_failures_it_is_a_success(spec: JobSpec, count: int, tape: list[int]):
    """Only the order in which things happen is left to chance."""
    simulated = SimulatedJob(spec, place(spec, hosts(count)))
    world = World(simulated)
    for number in tape:
        ready = [action for agent in world.agents.values() for action in world._sound(agent)]
        if ready:
            ready[number % len(ready)]()
    world.settle()
    assert simulated.exit_code == 0
    states = {task.state for task in simulated.machine.report(0.0, 1.0).tasks}
    assert states <= {TaskState.SUCCEEDED, TaskState.STOPPED}
