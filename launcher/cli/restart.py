"""``launch restart``: stop tasks of a running job, and start them again.

The launcher of the run does it. The command asks the launcher by its control socket, and then waits.
"""

from __future__ import annotations

from launcher.backends.queued_runs import find, relay
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
from launcher.runs.run import Run, selected
from launcher.stop_requests import TIMED_OUT_EXIT_CODE

SUMMARY = "stop tasks of a running job, and start them again"
#: argparse would write that TASK is optional, because `run` refuses a command without one.
USAGE = "launch restart [-h] [--timeout S] RUN TASK [TASK ...]"

EXAMPLES = """\
launch restart latest worker/1     one task; it does not count for --restarts
launch restart k3f9m ps worker/0   all ps and one worker

Exit code: 0 they run again; 124 not within --timeout; 2 there is no such run
or task; 125 one cannot be started, the job ends, or the launcher cannot be
asked."""

#: Seconds between two checks whether the time limit is over.
_POLL_SECONDS = 0.1


RUN = run_argument(positional="1")
TASKS: Setting[tuple[str, ...]] = Setting(
    "tasks", str, "tasks such as worker/0, or roles", metavar="TASK", default=(), positional="*",
    repeatable=True, complete=newest_tasks,
)  # fmt: skip
TIMEOUT = Setting(
    "timeout", duration, "time limit until they run: 90s, 5m (default: 60)", metavar="S", default=60.0
)
GROUPS = (Group("positional arguments", (RUN, TASKS)), Group("options", (TIMEOUT,)))


def run(settings: Settings) -> int:
    """Restart the tasks that the user names, and wait until they run.

    Returns:
        0, or the exit code of a time limit if they do not run in time.

    Raises:
        InputError: There is no such run, no task is named, or a name matches no task of the run.
        LaunchError: The job ends, a task cannot be started, or the launcher cannot be asked.
    """
    target_run, names = find(settings[RUN]), settings[TASKS]
    # `find` comes first: to `launch restart worker/0` it answers that worker/0 is no run.
    if not names:
        raise InputError([Fault("", "the following arguments are required: TASK")])
    # If the launcher runs at a cluster, its machine runs this command, and returns the exit code.
    words = (target_run.paths.root, *names)
    if (code := relay(target_run, "restart", "--timeout", f"{settings[TIMEOUT]:g}", *words)) is not None:
        return code
    attempts = {task.task: task.attempt for task in snapshot(target_run).report.tasks}
    tasks = selected(attempts, names)
    try:
        # The stream is opened before the request, so that no event that the request causes is missed.
        with EventStream(target_run) as events:
            ask(target_run, {"request": "restart", "tasks": names})
            return _wait(target_run, events, {task: attempts[task] for task in tasks}, settings[TIMEOUT])
    except ConnectionError as error:
        raise LaunchError(f"{target_run.called} has ended") from error


def _wait(run: Run, events: EventStream, old_attempts: dict[TaskId, int], seconds: float) -> int:
    """Wait until a later attempt of each task runs, and print a line for each that does.

    Args:
        run: The run.
        events: The events of the run since the request to restart the tasks.
        old_attempts: The attempt of each task before the request, by its name. Tasks are removed when they
            run again.
        seconds: How long to wait at most.

    Returns:
        The exit code of the command.

    Raises:
        LaunchError: The job ended first, or a task could not be started.
    """
    waiting = Waiting()
    while old_attempts:
        # After some seconds, and then ever less often, the user is told that this still waits.
        if message := waiting.due():
            say(f"{message} {join_names([*old_attempts])} to start again")
        if waiting.seconds >= seconds:
            say(f"{join_names([*old_attempts])} did not start again within {seconds:g}s")
            return TIMED_OUT_EXIT_CODE
        for event in events.wait(_POLL_SECONDS):
            task = event.get("task", "")
            if event["event"] != "TaskMoved" or task not in old_attempts:
                continue
            # Until the new attempt there are events about the old one, which is being stopped.
            is_new = event["attempt"] > old_attempts[task]
            if is_new and event["pid"] is not None:
                del old_attempts[task]
                print(f"{task}: {described(event)}", flush=True)
            elif is_new and TaskState(event["state"]).is_over:
                raise LaunchError(f"{task} could not be started again: {event['detail']}")
        if old_attempts and events.has_ended:
            text = f"{run.called} ended with exit code {snapshot(run).report.exit_code}"
            raise LaunchError(f"{text} before {join_names([*old_attempts])} started again")
    return 0
