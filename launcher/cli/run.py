"""``launch [run]``: run a job."""

from __future__ import annotations

import argparse
import os
import sys
from typing import cast

from launcher import __version__, transports
from launcher.cli.connecting import add_lease, add_reaching
from launcher.cli.launch_options import add_installed, program_command, read_options
from launcher.cli.parser import Parser
from launcher.config import values
from launcher.config.values import argument, whole
from launcher.errors import Fault, JobError
from launcher.job import MOST_TASKS, RESTART_CHOICES
from launcher.job_run.interrupts import stop_at_end_of_file
from launcher.job_run.run import run_job

SUMMARY = "run a distributed TensorFlow job, and report how each of its tasks ended"

EXAMPLES = """\
launch --ps 2 --workers 2 --flags train.py --epochs 3
launch --chief --workers 3 -m mypackage.train  run a module
launch --workers 2 train.py --role={job_name} --index={task_index}
launch --hosts node1:2,node2:2 --workers 4 train.py
launch --docker IMAGE --workers 2 train.py     each task in a container
launch --workers 4 --dry-run train.py          show the plan, start nothing
launch job.yaml                                a job file with all settings"""


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
            cast(Parser, parser).refused.append(f"{option}: expected once; for several hosts use host,host")
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
    cast(Parser, parser).add_more = add_installed
    _add_options(parser)
    program = parser.add_argument_group("program to run")
    program.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE [ARGS...]",
        help="a Python module and its arguments",
    )  # fmt: skip
    program.add_argument(
        "-c", dest="code", nargs=argparse.REMAINDER, metavar="CODE [ARGS...]",
        help="Python code and its arguments",
    )  # fmt: skip
    program.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGS...]",
        help="a .py file, an executable, or a job file (.yaml)",
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
        before = args.faults
        args.parse(command[1:], namespace=args)
        args.faults = [*before, *args.faults]
        extra = program_command(args)
        if extra and not args.faults:
            raise JobError([Fault("", f"unexpected argument {extra[0]!r}", "only options follow a job file")])
    options = read_options(args, command, job_file)  # raises the faults of the command line, too
    if not options.detach or options.dry_run:
        return run_job(options)
    from launcher.job_run.detach import run_detached

    return run_detached(options)


class _HelpAll(argparse.Action):
    """Prints the help with all options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(cast(Parser, parser).help_text(), end="")
        parser.exit()


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a launch, without the program."""
    count = argument(whole(0, MOST_TASKS))
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument("--ps", type=count, metavar="N", help="number of parameter servers")
    tasks.add_argument(
        "--workers", type=count, metavar="N", help="number of workers (default: 1 if no role is given)"
    )
    tasks.add_argument("--chief", action="store_true", help="add a chief")
    tasks.add_argument("--evaluator", action="store_true", help="add an evaluator")
    tasks.add_argument("--gpus", type=count, metavar="N", help="GPUs per task (ps tasks get none)")
    tasks.add_argument(
        "--hosts", action=_Once, metavar="X",
        help="a hostfile, or host[:slots],... (default: this machine)",
    )  # fmt: skip

    program = parser.add_argument_group("program")
    program.add_argument(
        "--flags", action="store_true",
        help="add --ps_hosts --worker_hosts --job_name --task_index",
    )  # fmt: skip
    program.add_argument(
        "-x", dest="env", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable, or copy it (NAME, PRE*); repeatable",
    )  # fmt: skip
    program.add_argument(
        "--python", type=argument(values.not_empty), metavar="PATH",
        help="the Python that runs .py files (default: launch's own)",
    )  # fmt: skip
    program.add_argument(
        "--preload", type=argument(values.modules), metavar="MODULE,...",
        help="import once on each host, and fork the tasks from there",
    )  # fmt: skip
    path = argument(values.not_empty)
    program.add_argument("--workdir", type=path, metavar="DIR", help="where the tasks run (default: here)")
    program.add_argument(
        "--tensorboard", nargs="?", const="", metavar="DIR",
        help="run TensorBoard (default: on the working folder)",
    )  # fmt: skip

    others = parser.add_argument_group("other machines")
    others.add_argument(
        "--sync", action="append", default=[], metavar="DIR[:REMOTE]",
        help="copy a folder to the hosts, run there; repeatable",
    )  # fmt: skip
    others.add_argument(
        "--collect", action="append", default=[], metavar="[TASK=]PATH[:DIR]",
        help="copy PATH of tasks to here at the end; repeatable",
    )  # fmt: skip
    others.add_argument(
        "--no-check", action="store_true", help="do not check that the hosts reach each other"
    )
    others.add_argument(
        "--relay", metavar="SOCKET",
        help="forward a port of each host here; see LAUNCH_RELAY",
    )  # fmt: skip
    add_lease(others)
    add_reaching(others)
    for transport in transports.transports().values():
        transport.add_options(parser)

    again = parser.add_argument_group("failed tasks")
    again.add_argument(
        "--restarts", type=count, metavar="N", help="start failed tasks again, up to N times (default: 0)"
    )
    again.add_argument(
        "--restart", choices=RESTART_CHOICES, type=argument(values.choice(*RESTART_CHOICES)),
        help="what starts again (default: auto, by the strategy)",
    )  # fmt: skip
    again.add_argument("--stall", metavar="S", help="a task silent for so long fails: 90s, 10m (default: 0)")
    end = parser.add_argument_group("end of the job")
    on_failure = ("stop", "continue")
    end.add_argument(
        "--on-failure", choices=on_failure, type=argument(values.choice(*on_failure)),
        help="stop or continue if a task fails (default: stop)",
    )  # fmt: skip
    end.add_argument(
        "--done-when", type=argument(values.role_name), metavar="ROLE",
        help="chief, workers or a role: the job is done when it is",
    )  # fmt: skip
    end.add_argument("--grace", metavar="S", help="time from SIGTERM to SIGABRT: 10s, 5m (default: 10)")
    end.add_argument(
        "--drain", action="append", default=[], metavar="[ROLE=]S",
        help="time for workers to finish after the job (default: 0)",
    )  # fmt: skip
    end.add_argument("--timeout", metavar="S", help="time limit of the job: 90s, 5m, 2h (default: 0, none)")

    output = parser.add_argument_group("output")
    output.add_argument(
        "-d", "--detach", action="store_true", help="run in the background; launch attach comes back"
    )
    output.add_argument("--dry-run", action="store_true", help="show the plan, start nothing")
    output.add_argument("--report", metavar="FILE", help="write a report (JSON) to this file, too")
    output.add_argument("-q", "--quiet", action="store_true", help="show failures only")
    output.add_argument(
        "--run-dir", type=path, metavar="DIR",
        help="folder of the run's files (default: in ~/.local/state)",
    )  # fmt: skip
    output.add_argument(
        "--output-dirs", action="store_true", help="give each task a folder for results, OUTPUT_DIR"
    )
    output.add_argument(
        "-v", "--verbose", action="store_true", help="show start-up notices and repeated tracebacks, too"
    )
    text = "hide repeated tracebacks and start-up notices"
    output.add_argument("--fold", action="store_true", help=text)
    output.add_argument("--timestamps", action="store_true", help="begin each line of a task with the time")
    output.add_argument(
        "--show", type=path, metavar="TASKS", help="show only these tasks: worker,ps/0,worker/2-5"
    )
    output.add_argument(
        "--no-last-lines", action="store_true", help="do not show the last lines of a failed task"
    )
    output.add_argument("--json", action="store_true", help="events and output as JSON lines on stdout")
    text = "a tmux pane for each task; closing tmux stops the job"
    output.add_argument("--tmux", action="store_true", help=text)
    text = "ignore launch.toml and pyproject.toml beside the program"
    output.add_argument("--no-defaults", action="store_true", help=text)
    text = "show every option, and exit"
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help=text)
    version = f"launch {__version__}, Python {sys.version.split()[0]}"
    parser.add_argument("--version", action="version", version=version, help="show the version, and exit")
    # For programs that start `launch`: launcher.output.jsonl, launcher.config.jobfile,
    # launcher.job_run.interrupts.
    for name in ("--events-fd", "--commands-fd", "--roles-fd", "--until-eof-fd"):
        output.add_argument(name, type=_descriptor, metavar="N", help=argparse.SUPPRESS)
