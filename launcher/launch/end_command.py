"""Finds the program of ``--on-end`` before anything is started."""

from __future__ import annotations

import os

from launcher.agent.lookup import find_executable
from launcher.common.errors import Fault, JobError, NotRunnableError, ProgramError
from launcher.config.settings import Settings
from launcher.config.table import ON_END
from launcher.runs.end_command import EndCommand


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
