"""``launch ps``: list the runs of this machine, or the tasks of a run.

The command asks the launchers of runs and reads their files. It changes nothing, except that it kills
processes whose launcher, agent and watchdog have all died.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.backends.batch_queue import BatchJobStatus, JobPhase
from launcher.backends.queued_runs import find, relay, states
from launcher.cli.follower import CONNECTED, RunFollower
from launcher.cli.run_names import run_argument
from launcher.clock_times import time_in_words
from launcher.common.errors import ProtocolError
from launcher.common.report import TaskState, report_from_json
from launcher.common.text import Waiting, byte_size, duration, escape_controls, plural_roles, shortened
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.messages import say
from launcher.output.logs import last_line_of
from launcher.output.renderers import record_as_dict
from launcher.output.table import ending, print_table, result_table, verdict_lines
from launcher.runs.client import RunSnapshot, snapshot
from launcher.runs.end_command import run_left_commands
from launcher.runs.folder import kill_leftovers
from launcher.runs.run import Run, RunState, all_runs, command_of, exit_code_of, program_of, tasks_of, time_in
from launcher.runs.samples import Sample, SampleReader, seconds_left, steps_per_second

SUMMARY = "list the runs of this machine, or the tasks of a run"

EXAMPLES = """\
launch ps           the runs that are running, with CPU and memory here
launch ps --all     also the runs that have ended
launch ps --json    the same for programs
launch ps k3f9m     the tasks of a run: state, steps, CPU, memory, last line
launch ps -w        the tasks of `latest`, and again at each change"""

#: The columns of the table of runs. CPU and memory are those of processes on this machine.
_HEADERS = (
    "run", "name", "program", "state", "began", "ended", "time", "note", "tasks", "hosts", "CPU", "memory",
    "TensorBoard",
)  # fmt: skip
_TASK_HEADERS = (
    "task", "host", "address", "state", "pid", "step", "steps/s", "left", "CPU", "memory", "GPU", "attempt",
    "last line",
)  # fmt: skip
#: The state that is shown for a run in a queue of a cluster, by the phase of its job there.
_STATES_BY_PHASE = {
    JobPhase.PENDING: "pending",
    JobPhase.RUNNING: RunState.RUNNING.value,
    JobPhase.OVER: RunState.DIED.value,
}
#: How many bytes are read at most at the end of ``samples.jsonl``, and how many more for each task, because a
#: line of it tells the steps and the CPU of all tasks at one moment. These bytes contain the last minutes,
#: which are enough to count steps per second.
_SAMPLE_BYTES = 200_000
_SAMPLE_BYTES_PER_TASK = 400
#: States in which a task may have processes.
_ALIVE_STATES = (TaskState.RUNNING, TaskState.STOPPING, TaskState.ENDED)
#: The time limit for the hosts to measure the memory of tasks.
_MEASURE_TIMEOUT_SECONDS = 2.0
#: Seconds between two questions whether the hosts have measured the memory.
_POLL_SECONDS = 0.05
#: The largest number of hosts that are named. If there are more, only their number is shown.
_MAX_NAMED_HOSTS = 2
#: The largest width of program, state and note on a terminal, so that times are shown at 120 columns, too.
_MAX_TEXT_WIDTH = 28


RUN = run_argument("; lists its tasks")
ALL = Setting("all", switch, "also runs that have ended", flags=("-a", "--all"), default=False)
WATCH = Setting(
    "watch", switch, "show its tasks (default: those of `latest`) until it has ended",
    flags=("-w", "--watch"), default=False,
)  # fmt: skip
JSON = Setting("json", switch, "print JSON instead of a table", default=False)
GROUPS = (Group("positional arguments", (RUN,)), Group("options", (ALL, WATCH, JSON)))


def run(settings: Settings) -> int:
    """Print the tasks of the run that the user names; without a name print all runs, the newest first.

    ``--watch`` without a name means the newest run. Without ``--all``, runs that have ended are not listed.
    Before the list, processes on this machine whose launchers have died are killed.

    Raises:
        InputError: The name matches no run, or several.
        LaunchError: The launcher of the run cannot be asked.
    """
    if settings[WATCH]:
        return watch(find(settings[RUN]), as_json=settings[JSON])
    if settings[RUN]:
        target_run = find(settings[RUN])
        # If the launcher runs at a cluster, its machine runs this command.
        # Then this process has nothing more to do. None means that the files of the run are here.
        options = [JSON.flag] if settings[JSON] else []
        if (code := relay(target_run, "ps", *options, target_run.paths.root)) is not None:
            return code
        _print_tasks(target_run, settings[JSON])
        return 0
    runs = all_runs()
    swept = kill_leftovers(runs)
    if swept.text:
        say(swept.text)
    runs.reverse()  # `all_runs` returns the oldest first.
    # Of runs whose launcher a queue of a cluster starts, only the queue knows the state.
    queued = states([run for run in runs if run.state is not RunState.ENDED])
    over = {name for name, status in queued.items() if status.phase is JobPhase.OVER}
    # A launcher that was killed could not run its command of --on-end, so this runs it.
    run_left_commands(run for run in runs if run.has_left_command or run.name in over)
    # The state is read once: a run that ends meanwhile would be listed with the state of another moment.
    listed = [(run, run.state, queued.get(run.name)) for run in runs]
    if not settings[ALL]:
        listed = [(run, state, status) for run, state, status in listed if _is_unfinished(state, status)]
    records = [_run_as_json(run, state, status) for run, state, status in listed]
    if settings[JSON]:
        print(json.dumps(records, indent=2))
    elif records:
        now = time.time()
        rows = [_run_row(record, now if settings[ALL] else None) for record in records]
        print_table(_HEADERS, rows, columns=_columns())
    else:
        hint = f"; `launch ps --all` lists {len(runs)} earlier" if runs else ""
        say(f"nothing is running{hint}")
    return 0


def _columns() -> int:
    """Return the width of the terminal on stdout. Lines for a file or a pipe are never cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _is_unfinished(state: RunState, queued: BatchJobStatus | None) -> bool:
    """Return whether a run is running, or waits in a queue of a cluster.

    Args:
        state: The state of the run.
        queued: The state of its job in the queue, or None if it is in no queue.
    """
    return state is RunState.RUNNING or (queued is not None and queued.phase is not JobPhase.OVER)


def watch(run: Run, *, as_json: bool = False) -> int:
    """Show the tasks of a run until it has ended, on a terminal as a living view.

    Elsewhere a table is printed, and then a line for each change of the state of a task; as JSON only these.

    Args:
        run: The run.
        as_json: Whether to print JSON.

    Returns:
        The exit code.

    Raises:
        LaunchError: The launcher of the run cannot be asked.
    """
    if os.isatty(0) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not as_json:
        from launcher.cli.screen import watch_on_terminal  # noqa: PLC0415 - takes 60 ms, for this alone

        if (code := watch_on_terminal(run)) is not None:
            return code
        _print_tasks(run, as_json)
        return 0
    # If the launcher runs at a cluster, its machine runs this command.
    options = [WATCH.flag, *([JSON.flag] if as_json else [])]
    if (code := relay(run, "ps", *options, run.paths.root)) is not None:
        return code
    run.check_trusted()  # It raises if another user may have written the record of the run.
    follower = RunFollower(run)
    # The run may have ended although events of it are still to be read. And without a connection to the
    # launcher, the run may still go on.
    while follower.is_live or run.state is RunState.RUNNING:
        events = follower.wait()
        if {"event": CONNECTED} in events and not as_json:
            _print_tasks(run, as_json)
            sys.stdout.flush()
        _print_moves([event for event in events if event["event"] == "TaskMoved"], as_json)
    if not as_json:
        _print_tasks(run, as_json)
    return 0


def _print_moves(moves: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print a line for each event of a task whose state has changed: with a time, or as JSON."""
    for event in moves:
        time_of_day = time.strftime("%H:%M:%S", time.localtime(event["at"]))
        line = escape_controls(f"{time_of_day} {event['task']}: {described(event)}")
        print(json.dumps(event) if as_json else line, flush=True)


def described(moved: Mapping[str, Any]) -> str:
    """Describe the state of a task in words, such as ``attempt 2, running on node1, pid 4711``.

    Args:
        moved: The fields of an event `launcher.common.events.TaskMoved`.
    """
    pid = "" if moved["pid"] is None else f", pid {moved['pid']}"
    detail = f" ({moved['detail']})" if moved["detail"] else ""
    restart_note = ", starts again" if moved["restarting"] else ""
    return f"attempt {moved['attempt']}, {moved['state']} on {moved['host']}{pid}{detail}{restart_note}"


def _print_tasks(run: Run, as_json: bool) -> None:
    """Print the tasks of a run, with how far they are and what they use now.

    For a run that has ended, the table of its report is printed, or as JSON the tasks as they were last.

    Args:
        run: The run.
        as_json: Whether to print JSON instead of a table.

    Raises:
        LaunchError: The launcher of the run cannot be asked.
    """
    # With `measure` the launcher lets the agents of all hosts measure the memory of their tasks. It answers
    # before the agents do. So it is asked again until all agents have answered or the time is over.
    state = snapshot(run, measure=True)
    waiting = Waiting()
    while state.measuring and waiting.seconds < _MEASURE_TIMEOUT_SECONDS:
        # Each answer contains all tasks, which takes time in a large job. So it is asked less and less often.
        time.sleep(max(_POLL_SECONDS, waiting.seconds / 2))
        state = snapshot(run)
    if state.ended and not as_json:
        print(result_table(state.report) + verdict_lines(state.report), end="")
        return
    # The samples, which the launcher writes while tasks run, tell steps, CPU and GPUs. While the run goes on,
    # its report contains the present states of the tasks.
    reader = SampleReader(run.paths, _SAMPLE_BYTES + _SAMPLE_BYTES_PER_TASK * len(state.report.tasks))
    reader.read()
    records = [
        _task_as_json(run, state, task, reader.series.get(task["task"], ()))
        for task in record_as_dict(state.report)["tasks"]
    ]
    if as_json:
        print(json.dumps(records, indent=2))
    else:
        print_table(_TASK_HEADERS, map(_task_row, records), columns=_columns())
        if state.report.tensorboard:
            print(f"TensorBoard: {escape_controls(state.report.tensorboard)}")


def _task_as_json(
    run: Run, state: RunSnapshot, task: Mapping[str, Any], samples: Sequence[Sample]
) -> dict[str, Any]:
    """Return a task as ``--json`` prints it: its fields in the report, what it uses, and its last line.

    Args:
        run: The run.
        state: The state of the run.
        task: The fields of the task in the report.
        samples: What the task used and how far it was at earlier moments, the oldest first.
    """
    name = task["task"]
    is_restarting = name in state.restarting
    # Samples of an earlier attempt say nothing about this one. `Sample(0.0, 1)` has no values.
    last = samples[-1] if samples and samples[-1].attempt == task["attempt"] else Sample(0.0, 1)
    # Of a host that does not answer, nobody knows what its tasks use now.
    memory = state.memory.get(name)
    is_known = memory is not None and TaskState(task["state"]) in _ALIVE_STATES
    in_use = last if is_known else Sample(0.0, 1)
    return {
        **task,
        "restarting": is_restarting,
        # None as long as the host has not measured it.
        "memory": memory,
        **{field: getattr(in_use, field) for field in ("cpu", "gpu", "gpu_memory", "printed_at")},
        **{field: getattr(last, field) for field in ("step", "total", "metrics")},
        "steps_per_s": None if last.step is None else steps_per_second(samples),
        "seconds_left": None if in_use.step is None else seconds_left(samples),
        "last_line": last_line_of(run.paths.root, name),
    }


def _task_row(task: Mapping[str, Any]) -> list[str]:
    """Return the cells of a task in the table, from what ``--json`` would print for it.

    Only a task that may have processes has a pid and uses memory.
    """
    alive = TaskState(task["state"]) in _ALIVE_STATES
    step, total, rate, left = (task[name] for name in ("step", "total", "steps_per_s", "seconds_left"))
    cpu, gpu = task["cpu"], task["gpu"]
    return [
        task["task"],
        f"{task['host']} on {task['node']}" if task.get("node") else task["host"],
        task["address"],
        task["state"] + (", starts again" if task["restarting"] else ""),
        str(task["pid"]) if alive else "",
        "" if step is None else f"{step:g}" if total is None else f"{step:g}/{total:g}",
        "" if rate is None else f"{rate:.3g}",
        "" if left is None else duration(left),
        "" if cpu is None else f"{cpu:.2f}",
        byte_size(task["memory"]) if alive else "",
        "" if gpu is None else f"{gpu:.0f}%",
        str(task["attempt"]),
        task["last_line"],
    ]


def _run_as_json(run: Run, state: RunState, queued: BatchJobStatus | None) -> dict[str, Any]:
    """Return a run as ``--json`` prints it.

    Args:
        run: The run.
        state: Its state.
        queued: The state of its job in a queue of a cluster, or None if it is in no queue.
    """
    plan, report, owner = run.plan(), run.report(), run.owner
    tasks, origin = tasks_of(plan), run.origin
    pid = owner.pid if owner and state is RunState.RUNNING else None
    # Nobody knows when a launcher in a queue has started, so its seconds count from its submission.
    return {
        "run": run.name,
        "name": origin.name or None,
        "note": origin.note or None,
        "state": state.value if queued is None else _STATES_BY_PHASE[queued.phase],
        "queued": None if queued is None else queued.text,
        "exit_code": exit_code_of(report),
        "verdict": _verdict(report) if state is RunState.ENDED else None,
        "started_at": run.started_at,
        "ended_at": ended_at(run, state, report),
        "seconds": _seconds(run, state, report) if queued is None else time.time() - run.started_at,
        "tasks": dict(Counter(task.role for task in tasks)),
        "hosts": list(dict.fromkeys(filter(None, tasks.values()))),
        "pid": pid,
        **_usage(pid),
        "machine": owner.machine if owner else None,
        "tensorboard": plan.get("tensorboard"),
        "command": command_of(plan),
        "program": program_of(run),
        "run_dir": run.paths.root,
    }


def _run_row(record: Mapping[str, Any], now: float | None) -> list[str]:
    """Return the cells of a run in the table, from what ``--json`` would print for it.

    Args:
        record: The run as ``--json`` prints it.
        now: The present time, to show when the run began and ended. None: it is not shown.
    """
    seconds, hosts = record["seconds"], record["hosts"]
    state = record["verdict"] or record["state"]
    if record["queued"]:
        state = escape_controls(record["queued"])
    elif record["state"] == RunState.ELSEWHERE.value:
        # A machine that shares the folder of runs may have the name of this one.
        another = "another " if record["machine"] == os.uname().nodename else ""
        state = f"on {another}{record['machine']}"
    if hosts == ["localhost"]:  # This is so usual that the column stays empty.
        hosts = []
    max_width = _MAX_TEXT_WIDTH if sys.stdout.isatty() else sys.maxsize
    # CPU and memory are sums over processes on this machine. Without any process here, 0 would mislead.
    runs_here = record["processes"] > 0
    return [
        record["run"],
        record["name"] or "",
        shortened(record["program"], max_width),
        shortened(state, max_width),
        *(_times_in_words(record, now) if now is not None else ("", "")),
        "" if seconds is None else duration(seconds),
        shortened(record["note"] or "", max_width),
        plural_roles(record["tasks"]),
        f"{len(hosts)} hosts" if len(hosts) > _MAX_NAMED_HOSTS else ", ".join(hosts),
        duration(record["cpu_s"]) if runs_here else "",
        byte_size(record["rss"]) if runs_here else "",
        str(record["tensorboard"] or "") if record["state"] == RunState.RUNNING.value else "",
    ]


def _times_in_words(record: Mapping[str, Any], now: float) -> tuple[str, str]:
    """Return when a run began and ended. The end is only a time of day if it was on the same day."""
    began, ended = (
        "" if not at else time_in_words(at, now) for at in (record["started_at"], record["ended_at"])
    )
    return began, ended.removeprefix(f"{began.partition(' ')[0]} ")  # The first word is the day.


def _verdict(report: Mapping[str, Any]) -> str:
    """Return in words how a run ended, from the content of its report."""
    try:
        return ending(report_from_json({**report, "tasks": []}))  # Reading many tasks would take long.
    except (ProtocolError, ValueError):  # The report is damaged, or of another version.
        return "ended, with a report that cannot be read"


def ended_at(run: Run, state: RunState, report: Mapping[str, Any]) -> float | None:
    """Return when a run ended, in seconds since the epoch.

    If its launcher died, that is its last sign of life. None: the run goes on, or nobody knows.
    """
    if state not in (RunState.ENDED, RunState.DIED):
        return None
    return time_in(report, "ended_at") or run.last_sign or None


def _seconds(run: Run, state: RunState, report: Mapping[str, Any]) -> float | None:
    """Return how many seconds a run has taken.

    Args:
        run: The run.
        state: Its state.
        report: The content of its report. It is empty if there is none.

    Returns:
        The seconds until now while it runs, otherwise until its end. If its launcher died, they count until
        its last sign of life. None means that nobody knows.
    """
    if state is RunState.RUNNING and run.owner is not None:
        # Seconds since boot do not jump when the clock is set.
        since_boot = run.owner.start_ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    # The report may be damaged, or written by an earlier version.
    started, ended = time_in(report, "started_at"), time_in(report, "ended_at")
    if started is None or ended is None:
        started, ended = run.started_at, run.last_sign
    return max(0.0, ended - started) if started and ended else None


def _usage(pid: int | None) -> dict[str, float]:
    """Return what a process and its descendants use, under the keys that ``--json`` has for it.

    The keys are ``processes`` (their number), ``cpu_s`` (seconds of user and system time) and ``rss``
    (resident bytes; memory that processes share is counted for each of them).

    Args:
        pid: The process. None, or one that has exited, uses nothing.
    """
    import psutil  # noqa: PLC0415 - other commands do not need psutil

    usage: dict[str, float] = dict.fromkeys(("processes", "cpu_s", "rss"), 0)
    if pid is None:
        return usage
    # Processes may exit meanwhile.
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error), process.oneshot():
                cpu, rss = process.cpu_times(), process.memory_info().rss
                usage["processes"] += 1
                usage["cpu_s"] += cpu.user + cpu.system
                usage["rss"] += rss
    return usage
