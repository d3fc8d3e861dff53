"""``launch [run]``: run a job."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from launcher import backends
from launcher.cli.arguments import CommandLine, parse_launch
from launcher.cli.connecting import check_current_folder
from launcher.config.settings import Given, Group, command_line_level, merge
from launcher.config.table import DETACH, DRY_RUN, SUBMITTED, UNTIL_EOF_FD
from launcher.config.values import names_job_file
from launcher.launch.build_options import LaunchWords, build_options
from launcher.launch.interrupts import stop_at_end_of_file
from launcher.launch.options import LaunchOptions
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
    """The options of a launch."""
    return backends.groups()


def run(words: Sequence[str], namespace: argparse.Namespace) -> int:
    """Run the job.

    Args:
        words: The command line.
        namespace: Gets its texts, also if an error is raised.

    Returns:
        Its exit code.

    Raises:
        LaunchError: the job could not be started.
    """
    line = parse_launch(words, namespace)
    level, _ = command_line_level(line.texts, backends.rows())
    settings, _ = merge([level], backends.rows())
    submitted, descriptor = settings[SUBMITTED], settings[UNTIL_EOF_FD]
    if submitted is not None:
        from launcher.launch.detach import run_submitted  # noqa: PLC0415 - for a launcher in the background

        return run_submitted(submitted)
    if descriptor is not None:
        stop_at_end_of_file(descriptor)
    options = options_of(line)
    if not options.settings[DETACH] or options.settings[DRY_RUN]:
        return Session(options).run()
    from launcher.launch.detach import run_detached  # noqa: PLC0415 - for a launcher in the background

    return run_detached(options)


def options_of(line: CommandLine, engine: str = "", implied: Mapping[str, Given] = {}) -> LaunchOptions:
    """The options of a launch, of the command line and of files.

    Args:
        line: The command line; options may follow a job file, and for a TFJob perhaps a program.
        engine: The backend that the command itself asks for.
        implied: Settings that the command itself gives.

    Raises:
        InputError: with all their faults.
    """
    check_current_folder()
    job_file = line.command[0] if line.command and names_job_file(line.command[0]) else ""
    texts, rest = line.texts, CommandLine({}, [])
    if job_file and line.command[1:]:
        rest = parse_launch(line.command[1:])
        texts = {**texts}
        for name, text in rest.texts.items():
            texts[name] = [*texts.get(name, []), *text] if isinstance(text, list) else text
    level, faults = command_line_level(texts, backends.rows())
    words = LaunchWords(
        level,
        command=line.command,
        job_file=job_file,
        program=() if faults else rest.command,
        is_marked=rest.is_marked if job_file else line.is_marked,
        faults=faults,
        engine=engine,
    )
    return build_options(words, implied)
