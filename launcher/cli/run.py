"""``launch [run]``: start a job and see it to its end."""

from __future__ import annotations

import argparse

from launcher.cli.launch_options import read_options
from launcher.cli.options import add_options
from launcher.job_run.interrupts import stop_at_end_of_file
from launcher.job_run.run import run_job

SUMMARY = "start a distributed TensorFlow job, show what its tasks print, and say how each one ended"

EXAMPLES = """\
launch --ps 2 --workers 2 --flags train.py --epochs 3
launch --chief --workers 3 --ps 1 -m mypackage.train
launch --ps 1 --workers 2 train.py --ps_hosts={ps_hosts} --worker_hosts={worker_hosts} \\
       --job_name={job_name} --task_index={task_index}
launch --workers 4 --dry-run train.py            show the plan, start nothing
launch --workers 3 -- sh -c 'echo task $TASK_INDEX'
launch job.yaml                                  all of it in a file"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, then the program and all that follows it."""
    add_options(parser)
    program = parser.add_argument_group("what to run")
    program.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE",
        help="a Python module and its arguments",
    )  # fmt: skip
    program.add_argument(
        "-c", dest="code", nargs=argparse.REMAINDER, metavar="CODE", help="Python code and its arguments"
    )
    program.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGS...]",
        help="a .py file (run with the task's Python), an executable, or a job file (.yaml)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the job.

    Returns:
        Its exit code.

    Raises:
        LaunchError: it could not be started.
    """
    if args.until_eof_fd is not None:
        stop_at_end_of_file(args.until_eof_fd)
    return run_job(read_options(args))
