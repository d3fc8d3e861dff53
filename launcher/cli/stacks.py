"""``launch stacks``: show where the tasks of a run are, by their Python stacks, while they go on.

The command asks the launcher of the run by its control socket. The launcher lets the hosts take the stacks.
"""

from __future__ import annotations

import json

from launcher.backends.queued_runs import relay
from launcher.cli.run_names import SELECTED, run_and_tasks
from launcher.common.errors import LaunchError
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.output.renderers import record_as_dict
from launcher.runs.run import RunState, selected, tasks
from launcher.runs.stacks import stack_lines, stacks_of

SUMMARY = "show where tasks are, by their Python stacks, while they go on"

EXAMPLES = """\
launch stacks                 all tasks of `latest`; equal stacks are folded
launch stacks worker/7        one task of it
launch stacks k3f9m ps        the ps of another run

The odd task comes first. Exit code: 0 there are stacks; 2 there is no such
run or task; 125 there are none, or the launcher cannot be asked."""

JSON = Setting("json", switch, "print JSON", default=False)
GROUPS = (Group("positional arguments", (SELECTED,)), Group("options", (JSON,)))


def run(settings: Settings) -> int:
    """Print the stacks of the tasks that the user names, or of all.

    Returns:
        0, or an exit code that says that there are no stacks.

    Raises:
        InputError: There is no such run, or a name matches no task of the run.
        LaunchError: No task runs, or the launcher cannot be asked.
    """
    target_run, names = run_and_tasks(settings[SELECTED])
    # If the launcher runs at a cluster, its machine runs this command, and returns the exit code.
    options = ["--json"] if settings[JSON] else []
    if (code := relay(target_run, "stacks", *options, target_run.paths.root, *names)) is not None:
        return code
    selected(tasks(target_run), names)  # It raises if a name matches no task.
    if target_run.state is RunState.ENDED:
        raise LaunchError(f"{target_run.called} has ended")
    groups = stacks_of(target_run, names)
    if settings[JSON]:
        print(json.dumps([record_as_dict(group) for group in groups], indent=2))
    else:
        for line in stack_lines(groups):
            print(line)
    return 0 if any(group.threads for group in groups) else LaunchError.exit_code
