"""Small placements and reports for the tests of the renderers."""

from __future__ import annotations

from launcher.common.cluster import TaskId
from launcher.common.events import TaskMoved, TaskOutput
from launcher.common.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState
from launcher.job import Host, PlacedTask, Placement, Program, ProgramKind, Role, RunPaths
from launcher.output.renderers import RunInfo

PROGRAM = Program(ProgramKind.SCRIPT, "train.py")


def placement(**hosts: str) -> Placement:
    """``placement(node1="worker/0 ps/0", node2="worker/1")``."""
    placed = []
    for host, names in hosts.items():
        for name in names.split():
            task = TaskId(name)
            placed.append(PlacedTask(task, Role(task.role, 1, PROGRAM), Host(host)))
    return Placement(tuple(placed))


def run_info(paths: RunPaths, **hosts: str) -> RunInfo:
    """The beginning of a run, with the hosts of `placement`."""
    return RunInfo(run_name="mnist", placement=placement(**hosts), paths=paths, started_at=100.0)


def task_report(name: str, host: str = "node1", **fields: object) -> TaskReport:
    """A task that succeeded in 12 s, unless the fields differ."""
    start: dict[str, object] = {
        "task": TaskId(name), "host": host, "address": f"{host}:2222", "port": 2222,
        "state": TaskState.SUCCEEDED, "reason": Reason.EXIT, "status": ExitStatus(code=0),
        "started_at": 100.0, "ended_at": 112.0, "peak_rss": 12_000_000,
    }  # fmt: skip
    return TaskReport(**{**start, **fields})  # type: ignore[arg-type]


def moved(name: str, attempt: int, state: TaskState) -> TaskMoved:
    """A task on node1 with this state, and a process unless it starts."""
    pid = None if state is TaskState.STARTING else 7
    return TaskMoved(
        at=1.0, task=TaskId(name), attempt=attempt, state=state, host="node1", address="node1:2222", pid=pid,
        status=ExitStatus(), reason=None, detail="", peak_rss=None, cpu_s=None, node="", restarting=False,
    )  # fmt: skip


def printed(task: TaskId, data: bytes) -> TaskOutput:
    """What a task on node1 has printed in its first attempt."""
    return TaskOutput(host="node1", task=task, attempt=1, data=data)


def failed(name: str, code: int = 7, host: str = "node1", **fields: object) -> TaskReport:
    """A task that exited with a code."""
    status = ExitStatus(code=code)
    return task_report(
        name, host, state=TaskState.FAILED, status=status, detail=f"exit code {code}", **fields
    )


def report(
    *tasks: TaskReport, failure: Failure | None = None, exit_code: int = 0, run_dir: str = "/runs/1"
) -> Report:
    """A job that took 12 s."""
    return Report(
        job="mnist", exit_code=exit_code, started_at=100.0, ended_at=112.0, tasks=tasks, failure=failure,
        run_dir=run_dir,
    )  # fmt: skip
