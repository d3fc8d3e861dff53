"""``launch [run]``: run a job."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from typing import Any, cast

from launcher import __version__, backends
from launcher.cli.connecting import add_reaching, lease
from launcher.cli.launch_options import add_installed, program_command, read_options
from launcher.cli.parser import Parser
from launcher.config import values
from launcher.config.values import REPEATABLE, option, whole
from launcher.job import MAX_TASKS, RESTART_CHOICES
from launcher.launch.interrupts import stop_at_end_of_file
from launcher.launch.options import DESCRIPTORS, LaunchOptions
from launcher.launch.run import run_job

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

    def __call__(self, parser: Any, namespace: object, value: object, option: object = None) -> None:
        if getattr(namespace, self.dest) not in (None, value):
            parser.refused.append(f"{option}: expected once; for several hosts use host,host")
        setattr(namespace, self.dest, value)


class _Switch(argparse.Action):
    """An option that may have a value after ``=`` and never takes the next word; `Parser` adds the values."""

    def __call__(self, parser: object, namespace: object, *_: object) -> None:
        setattr(namespace, self.dest, self.const)


def _descriptor(text: str) -> int:
    """The number of an open descriptor, inherited from the program that started ``launch``."""
    try:
        os.fstat(int(text))
    except (ValueError, OSError, OverflowError):
        raise ValueError("expected the number of an open descriptor") from None
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch run``: the options, then the program and its arguments."""
    parser.set_defaults(parse=parser.parse_args, engine="")  # the transport that `launch export` implies
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
        help="a .py file, an executable, a job file or TFJob (.yaml)",
    )  # fmt: skip


def _environment(text: str) -> str:
    """The value of ``--env``, which sets a variable in other tools: it may be secret."""
    name, equals, _ = text.partition("=")
    if equals:
        raise argparse.ArgumentTypeError(f"for a variable use -x {name}=...")
    return values.environment(text)


def run(args: argparse.Namespace) -> int:
    """Run the job.

    Returns:
        Its exit code.

    Raises:
        LaunchError: the job could not be started.
    """
    if args.submitted is not None:
        from launcher.launch.detach import run_submitted

        return run_submitted(args.submitted)
    if args.until_eof_fd is not None:
        stop_at_end_of_file(args.until_eof_fd)
    options = options_of(args)
    if not options.detach or options.dry_run:
        return run_job(options)
    from launcher.launch.detach import run_detached

    return run_detached(options)


def options_of(args: argparse.Namespace) -> LaunchOptions:
    """The options of a launch, of the command line and of a job file.

    Raises:
        InputError: with all their faults.
    """
    command = program_command(args)
    job_file = command[0] if command and values.names_job_file(command[0]) else ""
    program: list[str] = []
    if job_file and command[1:]:  # options follow a job file; for a TFJob perhaps a program
        before = args.faults
        args.parse(command[1:], namespace=args)
        args.faults = [*before, *args.faults]
        program = program_command(args)
    # It raises the faults of the command line, too.
    return read_options(args, command, job_file, () if args.faults else program)


class _HelpAll(argparse.Action):
    """Prints the help with all options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(cast(Parser, parser).help_text(), end="")
        parser.exit()


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a launch, without the program."""

    def group(title: str) -> functools.partial[argparse.Action]:
        return functools.partial(option, parser.add_argument_group(title))

    count, path = whole(0, MAX_TASKS), values.not_empty
    tasks = group("tasks")
    tasks("--ps N", "number of parameter servers", count)
    tasks("--workers N", "number of workers (default: 1 if no role is given)", count)
    tasks("--chief", "add a chief")
    tasks("--evaluator", "add an evaluator")
    tasks("--gpus N", "GPUs per task (ps tasks get none)", count)
    tasks("--hosts X", "a hostfile, or host[:slots],... (default: this machine)", action=_Once)

    program = group("program")
    program("--flags", "add --ps_hosts --worker_hosts --job_name --task_index")
    text = "set a variable, or copy it (NAME, PRE*); repeatable"
    program("-x NAME[=VALUE]", text, dest="env", **REPEATABLE)
    program("--python PATH", "the Python that runs .py files (default: launch's own)", path)
    text = "the Python environment of the tasks, or its folder"
    program("--venv --env NAME", text, _environment)
    text = "import once on each host, and fork the tasks from there"
    program("--preload MODULE,...", text, values.modules)
    program("--workdir DIR", "where the tasks run (default: here)", path)
    text = "run TensorBoard (default: on the working folder)"
    program("--tensorboard", text, action=_Switch, nargs=0, const="", metavar="[=DIR]")

    machines = parser.add_argument_group("other machines")
    others = functools.partial(option, machines)
    text = "copy a folder to the hosts, run there; repeatable"
    others("--sync DIR[:REMOTE]", text, **REPEATABLE)
    text = "copy PATH of tasks to here at the end; repeatable"
    others("--collect [TASK=]PATH[:DIR]", text, **REPEATABLE)
    others("--no-check", "do not check that the hosts reach each other")
    others("--relay SOCKET", "forward a port of each host here; see LAUNCH_RELAY")
    others("--lease S", "time tasks run without a connection (default: 60)", lease)
    add_reaching(machines)
    for backend in backends.backends().values():
        backend.add_options(parser)

    again = group("failed tasks")
    again("--restarts N", "start failed tasks again, up to N times (default: 0)", count)
    again("--restart", "what starts again (default: auto, by the strategy)", choices=RESTART_CHOICES)
    again("--stall S", "a task silent for so long fails: 90s, 10m (default: 0)")
    end = group("end of the job")
    text = "stop or continue if a task fails (default: stop)"
    end("--on-failure", text, choices=("stop", "continue"))
    text = "chief, workers or a role: the job is done when it is"
    end("--done-when ROLE", text, values.role_name)
    end("--grace S", "time from SIGTERM to SIGABRT: 10s, 5m (default: 10)")
    text = "time for workers to finish after the job (default: 0)"
    end("--drain [ROLE=]S", text, **REPEATABLE)
    end("--timeout S", "time limit of the job: 90s, 5m, 2h (default: 0, none)")

    output = group("output")
    output("-d --detach", "run in the background; launch attach comes back")
    output("--dry-run", "show the plan, start nothing")
    output("--report FILE", "write a report (JSON) to this file, too")
    output("-q --quiet", "show failures only")
    output("--run-dir DIR", "folder of the run's files (default: in ~/.local/state)", path)
    output("--output-dirs", "give each task a folder for results, OUTPUT_DIR")
    output("-v --verbose", "show start-up notices of TensorFlow, too")
    output("--fold", "hide start-up notices of TensorFlow")
    output("--timestamps", "begin each line of a task with the time")
    output("--show TASKS", "show only these tasks: worker,ps/0,worker/2-5", path)
    output("--no-last-lines", "do not show the last lines of a failed task")
    output("--json", "events and output as JSON lines on stdout")
    output("--tmux", "a tmux pane for each task; closing tmux stops the job")
    output("--no-defaults", "ignore launch.toml and pyproject.toml beside the program")
    option(parser, "--help-all", "show every option, and exit", action=_HelpAll, nargs=0)
    version = f"launch {__version__}, Python {sys.version.split()[0]}"
    option(parser, "--version", "show the version, and exit", action="version", version=version)
    output("--submitted FILE", argparse.SUPPRESS)  # for a launcher in a cluster: launcher.launch.detach
    for name in DESCRIPTORS:
        output(f"{name} N", argparse.SUPPRESS, _descriptor)
