"""``launch [run]``: run a job."""

from __future__ import annotations

import argparse
import os
import sys

from launcher import __version__, transports
from launcher.cli.launch_options import program_command, read_options
from launcher.config import values
from launcher.config.values import argument, whole
from launcher.errors import Fault, JobError
from launcher.job import MOST_TASKS, RESTART_CHOICES
from launcher.job_run.interrupts import stop_at_end_of_file
from launcher.job_run.run import run_job

SUMMARY = "run a distributed TensorFlow job, show the output of its tasks, and report how each task ended"

EXAMPLES = """\
launch --ps 2 --workers 2 --flags train.py --epochs 3
launch --chief --workers 3 --ps 1 -m mypackage.train
launch --ps 1 --workers 2 train.py --ps_hosts={ps_hosts} --worker_hosts={worker_hosts} \\
       --job_name={job_name} --task_index={task_index}
launch --workers 4 --dry-run train.py            show the plan, start nothing
launch --workers 3 -- sh -c 'echo task $TASK_INDEX'
launch job.yaml                                  a job file with all settings"""


class _Once(argparse.Action):
    """An option that may be given once; argparse itself would use the last one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: object,
        option: object = None,
    ) -> None:
        if getattr(namespace, self.dest) not in (None, value):
            raise argparse.ArgumentError(self, "expected once; several hosts are host,host,...")
        setattr(namespace, self.dest, value)


def _descriptor(text: str) -> int:
    """The number of an open descriptor, inherited from the program that started ``launch``."""
    try:
        os.fstat(int(text))
    except (ValueError, OSError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected the number of an open descriptor") from None
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch run``: the options, then the program and its arguments."""
    parser.set_defaults(parse=parser.parse_args)
    _add_options(parser)
    program = parser.add_argument_group("program to run")
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
        LaunchError: the job could not be started.
    """
    if args.until_eof_fd is not None:
        stop_at_end_of_file(args.until_eof_fd)
    command = program_command(args)
    job_file = command[0] if command and command[0].endswith((".yaml", ".yml")) else ""
    if job_file and command[1:]:  # only options may follow a job file
        args.parse(command[1:], namespace=args)
        if extra := program_command(args):
            raise JobError([Fault("", f"unexpected argument {extra[0]!r}", "only options follow a job file")])
    options = read_options(args, command, job_file)
    if not options.detach or options.dry_run:
        return run_job(options)
    from launcher.job_run.detach import run_detached

    return run_detached(options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a launch, without the program."""
    count = argument(whole(0, MOST_TASKS))
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument("--ps", type=count, metavar="N", help="parameter servers")
    tasks.add_argument("--workers", type=count, metavar="N", help="workers (default: 1 if no role is given)")
    tasks.add_argument("--chief", action="store_true", help="a chief")
    tasks.add_argument("--evaluator", action="store_true", help="an evaluator")
    tasks.add_argument("--gpus", type=count, metavar="N", help="GPUs per task (ps tasks get none)")
    tasks.add_argument(
        "--hosts", action=_Once, metavar="X", help="a hostfile, or host[:slots],... (default: this machine)"
    )

    program = parser.add_argument_group("program")
    program.add_argument(
        "--flags", action="store_true", help="append --ps_hosts= --worker_hosts= --job_name= --task_index="
    )
    program.add_argument(
        "-x", dest="env", action="append", default=[], metavar="NAME[=VALUE]",
        help="environment of the tasks; NAME alone and PRE* copy variables of launch; repeatable",
    )  # fmt: skip
    program.add_argument(
        "--python", metavar="PATH", help="the Python of .py programs and modules (default: launch's own)"
    )
    program.add_argument(
        "--preload", type=argument(values.modules), metavar="MODULE[,MODULE]",
        help="import these once on each host (tensorflow), and fork the tasks' Pythons from that process",
    )  # fmt: skip
    program.add_argument("--workdir", metavar="DIR", help="where the tasks run (default: here)")

    others = parser.add_argument_group("other machines")
    others.add_argument(
        "--sync", action="append", default=[], metavar="DIR[:REMOTE]",
        help="copy this folder to every host, and run the tasks in the copy; repeatable",
    )  # fmt: skip
    others.add_argument(
        "--collect", action="append", default=[], metavar="[TASK=]PATH[:DIR]",
        help="copy PATH from the tasks back here when the job ends; repeatable",
    )  # fmt: skip
    others.add_argument(
        "--no-check", action="store_true", help="do not check whether the hosts can connect to each other"
    )
    others.add_argument(
        "--relay", metavar="SOCKET",
        help="forward a port on each host to this unix socket here; tasks find its address in LAUNCH_RELAY",
    )  # fmt: skip
    for transport in transports.transports().values():
        transport.add_options(parser)

    again = parser.add_argument_group("failed tasks")
    again.add_argument(
        "--restarts", type=count, metavar="N",
        help="start failed tasks again, those of a lost host on others, up to N times in all (default: 0)",
    )  # fmt: skip
    again.add_argument(
        "--restart", choices=RESTART_CHOICES,
        help="what starts again after a failure: the task, the job, or as the strategy needs it (auto)",
    )  # fmt: skip
    again.add_argument(
        "--stall", metavar="S",
        help="a task that prints nothing for so long has failed: end it, and show where it hangs: 90s, 10m; "
        "0: no limit (default)",
    )  # fmt: skip
    end = parser.add_argument_group("end of the job")
    end.add_argument(
        "--on-failure", choices=("stop", "continue"),
        help="stop the other tasks when one fails, or let them continue (default: stop)",
    )  # fmt: skip
    end.add_argument(
        "--grace", metavar="S", help="time from SIGTERM to SIGABRT: seconds, or 10s, 5m, 0 (default: 10)"
    )
    end.add_argument(
        "--drain", action="append", default=[], metavar="[ROLE=]S",
        help="time for workers and evaluator, or a role, to end by themselves after the job is done: 60s, 5m "
        "(default: 0); repeatable",
    )  # fmt: skip
    end.add_argument("--timeout", metavar="S", help="limit for the job: seconds, or 90s, 5m, 2h; 0: no limit")

    output = parser.add_argument_group("output")
    output.add_argument(
        "-d", "--detach", action="store_true",
        help="print the run's name when all tasks run, and go on without a terminal; see launch attach",
    )  # fmt: skip
    output.add_argument(
        "--run-dir", metavar="DIR", help="folder of this run's files (default: below the XDG state folder)"
    )
    output.add_argument(
        "--output-dirs", action="store_true",
        help="give each task a folder, OUTPUT_DIR, whose content is in this run's output/ at the end",
    )  # fmt: skip
    output.add_argument("--report", metavar="FILE", help="write the report (JSON) to this file, too")
    output.add_argument(
        "--show", metavar="TASKS", help="show only these tasks' output: worker,ps/0,worker/2-5"
    )
    output.add_argument(
        "-v", "--verbose", action="store_true",
        help="show TensorFlow's start-up notices and repeated tracebacks on a terminal, too",
    )  # fmt: skip
    output.add_argument("--timestamps", action="store_true", help="begin each line of a task with the time")
    output.add_argument("-q", "--quiet", action="store_true", help="show failures only")
    output.add_argument(
        "--no-last-lines", action="store_true", help="do not show the last lines of the task that failed"
    )
    output.add_argument("--json", action="store_true", help="events and output as JSON lines on stdout")
    output.add_argument(
        "--tmux", action="store_true", help="show each task in a tmux pane; closing the session ends the job"
    )
    output.add_argument(
        "--no-defaults", action="store_true",
        help="ignore launch.toml, and [tool.launch] of pyproject.toml, beside the program",
    )  # fmt: skip
    output.add_argument("--dry-run", action="store_true", help="show the plan, start nothing")
    version = f"launch {__version__}, Python {sys.version.split()[0]}"
    output.add_argument("--version", action="version", version=version)
    # For programs that start `launch`: launcher.output.jsonl, launcher.config.jobfile,
    # launcher.job_run.interrupts.
    output.add_argument("--events-fd", type=_descriptor, metavar="N", help=argparse.SUPPRESS)
    output.add_argument("--commands-fd", type=_descriptor, metavar="N", help=argparse.SUPPRESS)
    output.add_argument("--roles-fd", type=_descriptor, metavar="N", help=argparse.SUPPRESS)
    output.add_argument("--until-eof-fd", type=_descriptor, metavar="N", help=argparse.SUPPRESS)
