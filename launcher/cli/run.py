"""``launch [run]``: run a job, in this process or by a launcher in the background.

It reads the options and then leaves the job to `launcher.launch`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from launcher import backends
from launcher.cli.arguments import parse_launch
from launcher.cli.connecting import check_current_folder
from launcher.config.settings import Group
from launcher.config.table import DETACH, DRY_RUN, SUBMITTED, UNTIL_EOF_FD
from launcher.launch.build_options import build_options
from launcher.launch.interrupts import stop_at_end_of_file
from launcher.launch.session import Session

SUMMARY = "run a distributed TensorFlow job, and report how each of its tasks ended"

EXAMPLES = """\
launch --ps 2 --workers 2 --flags train.py --epochs 3
launch --chief --workers 3 -m mypackage.train  run a module
launch --workers 2 train.py --role={job_name} --index={task_index}
launch --hosts node1:2,node2:2 --workers 4 train.py
launch --docker IMAGE --workers 2 train.py     each task in a container
launch --workers 4 --dry-run train.py          show the plan, start nothing
launch job.yaml                                a job file with all settings"""


def groups() -> Sequence[Group]:
    """Return the options of a launch, including those of all backends."""
    return backends.groups()


def run(words: Sequence[str], namespace: argparse.Namespace) -> int:
    """Run the job that a command line describes, or start a launcher in the background that does.

    Args:
        words: The words after ``launch`` or ``launch run``.
        namespace: Receives the texts of options as they are found, even if an error is raised.

    Returns:
        The exit code of the job. If a launcher in the background runs it, 0 once that was started.

    Raises:
        LaunchError: The job could not be started.
    """
    line = parse_launch(words, namespace)
    submitted_file = line.settings[SUBMITTED]
    # A cluster's queue starts a launcher with this option. The file contains the options of the launch.
    if submitted_file is not None:
        from launcher.launch.submit import run_submitted  # noqa: PLC0415 - for a launcher in the background

        return run_submitted(submitted_file)
    descriptor = line.settings[UNTIL_EOF_FD]
    # A program such as the Python API gives launch the reading end of a pipe. The pipe ends when that program
    # exits, and then the job is stopped.
    if descriptor is not None:
        stop_at_end_of_file(descriptor)
    check_current_folder()
    options = build_options(line)
    if not options.settings[DETACH] or options.settings[DRY_RUN]:
        return Session(options).run()
    from launcher.launch.detach import run_detached  # noqa: PLC0415 - for a launcher in the background

    return run_detached(options)
