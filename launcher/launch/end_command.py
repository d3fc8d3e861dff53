"""The command of ``--on-end`` in a launch: found before anything is started, and run when all has ended."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager, nullcontext

from launcher.agent.lookup import find_executable
from launcher.backends.connections import slow
from launcher.common.errors import Fault, JobError, LaunchError, NotRunnableError, ProgramError
from launcher.common.report import Report
from launcher.config.settings import Settings
from launcher.config.table import ON_END
from launcher.job import RunPaths
from launcher.launch.interrupts import Interrupts
from launcher.messages import say
from launcher.output.renderers import record_as_dict
from launcher.runs.end_command import EndCommand, EndStatus, JobEnd, claim, run_command, status_of, store
from launcher.runs.run import load


def find_end_command(settings: Settings) -> EndCommand | None:
    """Return the command of ``--on-end``, or None without that option.

    Raises:
        JobError: Its program does not exist, or cannot be run.
    """
    words, folder = settings[ON_END], os.getcwd()
    if not words:
        return None
    try:
        program = find_executable(words[0], folder, os.environ.get("PATH", os.defpath))
    except (ProgramError, NotRunnableError) as error:
        # An address, or a whole command in quotes, may contain a secret, which no message shows.
        is_hidden = "://" in words[0] or any(char.isspace() for char in words[0])
        problem = "program not found: its name contains blanks or ://" if is_hidden else str(error)
        expected = "expected the program and its arguments as words of their own" if is_hidden else ""
        raise JobError([Fault(settings.source(ON_END), problem, expected)]) from error
    return EndCommand(words, program, folder)


def store_end_command(paths: RunPaths, command: EndCommand) -> None:
    """Write the command to the folder of the run, so that it runs even if the launcher is killed.

    Raises:
        LaunchError: The file cannot be written.
    """
    try:
        store(paths, command)
    except OSError as error:
        raise LaunchError(f"cannot write {paths.on_end!r}: {error.strerror}") from error


def drop_end_command(paths: RunPaths) -> None:
    """Let nobody run the command of a run."""
    claim(paths)


def run_end_command(
    command: EndCommand,
    report: Report,
    paths: RunPaths | None,
    interrupts: Interrupts | None = None,
) -> None:
    """Run the command, unless another process has done it. Ctrl-C ends it, and other signals do nothing.

    Args:
        command: The command.
        report: The report of the job.
        paths: The files of the run. None if it has no folder.
        interrupts: Handles the signals of the launch. None if nothing does.
    """
    if paths is not None and claim(paths) is None:
        say(f"the command of --on-end does not run, because {paths.on_end!r} is no longer there")
        return
    status = status_of(record_as_dict(report), EndStatus.FAILED)
    run = None if paths is None else load(paths.root)
    end = JobEnd(status, report.job, run.paths.report, run.origin.name) if run else JobEnd(status, report.job)
    queued: AbstractContextManager[None] = nullcontext() if interrupts is None else interrupts.queued()
    with queued, slow("waiting for the command of --on-end"):
        if interrupts is not None:
            interrupts.read()  # What has stopped the job is no reason to stop the command.
        run_command(command, end, lambda: interrupts is not None and signal.SIGINT in interrupts.read())
