"""``launch restart``: stop tasks of a running job, and start them again."""

from __future__ import annotations

from launcher.backends.queued_runs import relayed
from launcher.cli.ps import described
from launcher.cli.run_names import newest_tasks, run_argument
from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, InputError, LaunchError
from launcher.common.report import TaskState
from launcher.common.text import Waiting, join_names
from launcher.config.settings import Group, Setting, Settings
from launcher.config.values import duration
from launcher.messages import say
from launcher.runs.client import EventStream, ask, snapshot
from launcher.runs.run import Run, find, selected
from launcher.stop_requests import TIMED_OUT_EXIT_CODE

SUMMARY = "stop tasks of a running job, and start them again"
#: `run` demands a TASK, not argparse.
USAGE = "launch restart [-h] [--timeout S] RUN TASK [TASK ...]"

EXAMPLES = """\
launch restart latest worker/1     one task; it does not count for --restarts
launch restart k3f9m ps worker/0   all ps and one worker

Exit code: 0 they run again; 124 not within --timeout; 2 there is no such run
or task; 125 one can't be started, the job ends, or the launcher can't be
asked."""

#: Seconds between two looks at the time.
_POLL_SECONDS = 0.1


RUN = run_argument("its name, a part of it, `latest`, or its folder", positional="1")
TASKS: Setting[tuple[str, ...]] = Setting(
    "tasks", str, "tasks such as worker/0, or roles", metavar="TASK", default=(), positional="*",
    repeatable=True, complete=newest_tasks,
)  # fmt: skip
TIMEOUT = Setting(
    "timeout", duration, "time limit until they run: 90s, 5m (default: 60)", metavar="S", default=60.0
)
GROUPS = (Group("positional arguments", (RUN, TASKS)), Group("options", (TIMEOUT,)))


def run(settings: Settings) -> int:
    """Restart the tasks, and wait until they run.

    Raises:
        InputError: no task is named; or a name matches no task of the run.
        LaunchError: the job ends; its launcher can't be asked.
    """
    found, names = find(settings[RUN]), settings[TASKS]
    if not names:  # argparse would say so before `find` says that worker/0 is no run
        raise InputError([Fault("", "the following arguments are required: TASK")])
    words = (found.paths.root, *names)
    if (code := relayed(found, "restart", "--timeout", f"{settings[TIMEOUT]:g}", *words)) is not None:
        return code
    before = {task.task: task.attempt for task in snapshot(found).report.tasks}
    tasks = selected(before, names)
    try:
        with EventStream(found) as events:
            ask(found, {"request": "restart", "tasks": names})
            return _wait(found, events, {task: before[task] for task in tasks}, settings[TIMEOUT])
    except ConnectionError as error:
        raise LaunchError(f"{found.name} has ended") from error


def _wait(run: Run, events: EventStream, left: dict[TaskId, int], seconds: float) -> int:
    """Wait until later attempts of the tasks run.

    Args:
        run: which.
        events: of the run since the request.
        left: the tasks, and their attempts before.
        seconds: how long to wait.

    Returns:
        The exit code.

    Raises:
        LaunchError: the job ended before, or a task could not be started.
    """
    waiting = Waiting()
    while left:
        if begun := waiting.due():
            say(f"{begun} {join_names([*left])} to start again")
        if waiting.seconds >= seconds:
            say(f"{join_names([*left])} did not start again within {seconds:g}s")
            return TIMED_OUT_EXIT_CODE
        for moved in events.wait(_POLL_SECONDS):
            task = moved.get("task", "")
            if moved["event"] == "TaskMoved" and moved["attempt"] > left.get(task, moved["attempt"]):
                if moved["pid"] is not None:
                    del left[task]
                    print(f"{task}: {described(moved)}", flush=True)
                elif TaskState(moved["state"]).is_over:
                    raise LaunchError(f"{task} could not be started again: {moved['detail']}")
        if left and events.has_ended:
            text = f"{run.name} ended with exit code {snapshot(run).report.exit_code}"
            raise LaunchError(f"{text} before {join_names([*left])} started again")
    return 0
