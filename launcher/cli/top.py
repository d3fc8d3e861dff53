"""``launch top``: watch a run: how far its tasks are, how fast, and what they use.

On a terminal `launcher.cli.screen` draws it. Elsewhere a table is printed, and then a line for each change.
"""

from __future__ import annotations

import sys

from launcher.backends.queued_runs import find
from launcher.cli.ps import watch
from launcher.cli.run_names import run_argument
from launcher.config.settings import Group, Setting, Settings, switch
from launcher.runs.mirror import send_files

SUMMARY = "watch the tasks of a run: step, speed, CPU, memory, last line"

EXAMPLES = """\
launch top                the run that runs, else the newest
launch top k3f9m          a run by the last letters of its id
launch top | tee FILE     one table, then a line for each change

Keys: s sorts, / filters, l shows the log of a task, p stacks, k stops the run,
q leaves it.
Exit code: 0; 130 Ctrl-C has left the view; 2 there is no such run; 125 its launcher
has died, and `launch report` tells how far it came."""

RUN = run_argument(" (default: `latest`)")
#: It is not in the help. When a user watches a run that a queue has started elsewhere, the user's launch
#: starts ``launch top --files`` there, and reads the files of the run from it, see `launcher.runs.mirror`.
FILES = Setting("files", switch, default=False)
GROUPS = (Group("positional arguments", (RUN, FILES)),)


def run(settings: Settings) -> int:
    """Show a run until it has ended or the user leaves it, and return the exit code.

    Raises:
        InputError: There is no such run.
        LaunchError: The run cannot be watched.
    """
    target_run = find(settings[RUN])
    if settings[FILES]:  # The launch of a user elsewhere has called this, and shows the files itself.
        send_files(target_run, sys.stdout.buffer)
        return 0
    return watch(target_run)
