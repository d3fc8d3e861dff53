"""``launch restart``: stop tasks of a running job, and start them again."""

from __future__ import annotations

import argparse
import sys
import time

from launcher.cli.completion import completes, newest_tasks, unfinished_runs
from launcher.config.values import argument, duration
from launcher.errors import LaunchError
from launcher.job_run.control import ask, snapshot
from launcher.report import TaskState
from launcher.runs.run import Run, find, selected
from launcher.task_id import TaskId
from launcher.text import Waiting, listed

SUMMARY = "stop tasks of a running job, and start them again"

EXAMPLES = """\
launch restart latest worker/1     one task; it does not count for --restarts
launch restart k3f9m ps worker/0   all ps and one worker

Exit code: 0 they run again; 124 not within --timeout; 2 there is no such run
or task; 125 one can't be started, the job ends, or the launcher can't be
asked."""

#: Seconds between two looks at the tasks; the looks take at most this part of the launcher's time.
_LOOK, _PART = 0.1, 0.1
_TIMED_OUT = 124
_NOT_STARTED = (TaskState.PENDING, TaskState.STARTING)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch restart``."""
    which = "its name, a part of it, `latest`, or its folder"
    completes(parser.add_argument("run", metavar="RUN", type=find, help=which), unfinished_runs)
    names = "tasks such as worker/0, or roles"
    completes(parser.add_argument("tasks", metavar="TASK", nargs="+", help=names), newest_tasks)
    parser.add_argument(
        "--timeout", metavar="S", type=argument(duration), default=60.0,
        help="time limit until they run: 90s, 5m (default: 60)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Restart the tasks, and wait until they run.

    Raises:
        InputError: a name matches no task of the run.
        LaunchError: the job ends; its launcher can't be asked.
    """
    found: Run = args.run
    before = {task.task: task.attempt for task in snapshot(found).report.tasks}
    tasks = selected(before, args.tasks)
    try:
        ask(found, {"request": "restart", "tasks": args.tasks})
    except ConnectionError as error:
        raise LaunchError(f"{found.job} has ended") from error
    return _wait(found, {task: before[task] for task in tasks}, args.timeout)


def _wait(run: Run, left: dict[TaskId, int], seconds: float) -> int:
    """Wait until later attempts of the tasks run.

    Args:
        run: which.
        left: the tasks, and their attempts before.
        seconds: how long to wait.

    Returns:
        The exit code.

    Raises:
        LaunchError: the job ended before, or a task could not be started.
    """
    waiting = Waiting()
    while left:
        notice = waiting.due()
        if notice:
            print(f"launch: {notice} {listed([*left])} to start again", file=sys.stderr, flush=True)
        if waiting.seconds >= seconds:
            print(f"launch: {listed([*left])} did not start again within {seconds:g}s", file=sys.stderr)
            return _TIMED_OUT
        asked_at = time.monotonic()
        now = snapshot(run)
        for task in now.report.tasks:
            if task.attempt > left.get(task.task, task.attempt) and task.state not in _NOT_STARTED:
                if task.pid is None:
                    raise LaunchError(f"{task.task} could not be started again: {task.detail}")
                del left[task.task]
                text = f"attempt {task.attempt}, {task.state.value} on {task.host}, pid {task.pid}"
                print(f"{task.task}: {text}", flush=True)
        if left and now.ended:
            text = f"{run.job} ended with exit code {now.report.exit_code}"
            raise LaunchError(f"{text} before {listed([*left])} started again")
        time.sleep(max(_LOOK, (time.monotonic() - asked_at) / _PART) if left else 0.0)
    return 0
