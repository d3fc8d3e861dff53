"""Finds settings that are right one by one, but not together, or not for this program.

`launcher.launch.build_options` calls it after it has read all settings. It only yields faults and notes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence

from launcher import backends
from launcher.agent.lookup import is_command
from launcher.common.errors import Fault, Note
from launcher.common.text import join_names
from launcher.common.trusted_io import open_regular
from launcher.config import table
from launcher.config.settings import COMMAND_LINE, Need, Setting, Settings
from launcher.config.values import JOB_FILE_ENDINGS, shell_syntax
from launcher.job import JobSpec, Role
from launcher.launch.misplaced_options import TYPICAL_OPTIONS, misplaced_options
from launcher.launch.options import ON_COMMAND_LINE, LaunchWords

#: How many bytes at the start of a file show what it is.
_START_OF_FILE_BYTES = 1 << 16
_SHOW_OUTPUT = (table.FOLD, table.SHOW, table.TIMESTAMPS, table.TMUX)
#: A setting, the settings that contradict it, and why they do.
_CONFLICTS: tuple[tuple[Setting[bool], tuple[Setting[object], ...], str], ...] = (
    (table.JSON, (table.QUIET, *_SHOW_OUTPUT), "--json prints everything as JSON"),
    (
        table.DETACH,
        (table.JSON, table.EVENTS_FD, *_SHOW_OUTPUT),
        "launch attach and launch logs show the output of tasks",
    ),
    (table.NO_SAMPLES, (table.PROGRESS,), "steps are read with the samples"),
)


def need_faults(settings: Settings, met_needs: Sequence[Need]) -> Iterator[Fault]:
    """Yield the faults of options on the command line whose needs are not met.

    In files such options are right: they wait for launches that meet the need.

    Args:
        settings: The settings of the launch.
        met_needs: The needs that this launch meets.
    """
    # Needs are known by the problem that a launch has which does not meet them.
    met_problems = {need.problem for need in met_needs}
    for row in backends.rows():
        need = row.needs
        if need and need.problem not in met_problems and settings.source_kind(row) == COMMAND_LINE:
            yield Fault(row.flag, need.problem, need.expected)


def name_faults(settings: Settings, roles: Sequence[Role]) -> Iterator[Fault]:
    """Yield the fault of a run that is called like a role, which `launch logs` would take for its tasks."""
    name = settings[table.NAME]
    if name in {role.name for role in roles}:
        problem = f"{name!r} is a role of the job"
        yield Fault(settings.source(table.NAME), problem, "expected another name")


def container_faults(settings: Settings, spec: JobSpec, other_machines: bool) -> Iterator[Fault]:
    """Yield the faults of settings that tasks in containers cannot have.

    ``--collect`` copies files from other machines. An environment (``--venv``) is a folder of a host, and a
    container has the packages of its image instead.

    Args:
        settings: The settings of the launch.
        spec: The job.
        other_machines: Whether the containers may be on other machines.
    """
    if settings.is_given(table.COLLECT) and not other_machines:
        problem = "the option is about other machines, and none is named"
        yield Fault(settings.source(table.COLLECT), problem, "expected --hosts, --output-dirs or --output-to")
    if spec.venv:
        problem = f"containers do not have the environment {spec.venv!r}"
        yield Fault(settings.source(table.VENV), problem, "expected an image with its packages")


def program_faults(settings: Settings, words: LaunchWords) -> Iterator[Fault | Note]:
    """Yield what is wrong with the program of a command line, and with paths and combinations of options.

    A note is only a warning: the launch goes on.
    """
    # Options of launch may follow a job file. After "--" the program may have options of the same names.
    if words.command and not words.has_roles and not words.is_marked:
        program = words.command[0]
        if program.endswith(".py") and os.path.isfile(program) and not os.path.getsize(program):
            yield Note(f"{program} is empty: its tasks do nothing")
        yield from misplaced_options(settings, words.command)
    yield from _path_faults(settings)
    yield from _api_faults(settings, words.command)
    yield from _conflict_faults(settings)
    for row in (table.ON_END, table.ON_EVENT):
        if found := shell_syntax(settings[row][1:]):
            # A word with a $ may be a secret, which no message shows.
            what = "a word with $" if found.startswith("$") else found
            problem = f"the command gets {what} as it is written: no shell reads it"
            yield Note(f"{settings.source(row)}: {problem}; sh -c '...' runs a whole line in a shell")
    yield from _no_program_faults(settings, words)


def _path_faults(settings: Settings) -> Iterator[Fault]:
    """Yield the faults of the paths of ``--relay`` and ``--report``, before the job starts."""
    relay, report = settings[table.RELAY], settings[table.REPORT]
    if relay is not None and not (os.path.exists(relay) and stat.S_ISSOCK(os.stat(relay).st_mode)):
        expected = "expected the path of a unix socket that a process listens on"
        yield Fault("--relay", f"{relay!r} is not a socket", expected)
    if report is None or "://" in report:
        return
    if report in ("", "-") or os.path.isdir(report):
        yield Fault("--report", f"{report!r} is not the name of a file")
    elif not os.path.isdir(os.path.dirname(os.path.abspath(report))):
        yield Fault("--report", f"{report!r}: its folder does not exist", "expected a folder that exists")


def _api_faults(settings: Settings, command: Sequence[str]) -> Iterator[Fault]:
    """Yield the fault that ``options=`` of the Python API contains a program, which would run instead.

    The API puts ``--events-fd`` before the options of the user, and ``--commands-fd`` after them. After a
    program the latter is an argument of the program, so it is missing among the options.
    """
    lacks_pipe = settings.is_given(table.EVENTS_FD) and not settings.is_given(table.COMMANDS_FD)
    if lacks_pipe and "--commands-fd" in command:
        word = "--" if not command or command[0] == "--commands-fd" else command[0]
        expected = "expected options of launch only: the program is an argument of its own"
        yield Fault("options", f"{word!r} ends the options", expected)


def _conflict_faults(settings: Settings) -> Iterator[Fault]:
    """Yield the faults of options that contradict each other."""
    for row, others, why in _CONFLICTS:
        # ``--dry-run --json`` prints the plan, which options about the output do not contradict.
        if not settings[row] or (row is table.JSON and settings[table.DRY_RUN]):
            continue
        # ``progress:`` of the project file is for many launches, some of which take no samples.
        for other in (each for each in others if settings.source_kind(each) == COMMAND_LINE):
            problem = f"{row.flag} and {other.flag} both"
            yield Fault(ON_COMMAND_LINE, problem, f"expected one of them: {why}")


def _no_program_faults(settings: Settings, words: LaunchWords) -> Iterator[Fault]:
    """Yield the fault that the word in place of the program is a job file or the value of an option.

    - A word that looks like a program, or is a command here, has no fault.
    - An existing file has one only if its content is that of a job file whose name has another ending.
    - A word without a file is the value of an option in ``--tensorboard logs train.py`` and ``--hosts a b
      train.py``: an option or a program follows it. With ``--`` before the program there is no such fault, as
      the program may be in an image or on other machines.
    """
    # The word in place of the program and the next one. Missing words are empty.
    name, following = [*(words.program if words.job_file else words.command), "", ""][:2]
    if name[:1] in ("", "-") or name.endswith(".py") or ("/" not in name and is_command(name)):
        return
    if os.path.isfile(name):
        try:
            with open_regular(name) as file:
                start = file.read(_START_OF_FILE_BYTES)
        except OSError:
            return
        # A job file contains ``roles``, or ``apiVersion`` if it is a TFJob of Kubernetes.
        is_json = start.lstrip().startswith(b"{")
        pattern = rb'"(roles|apiVersion)"\s*:' if is_json else rb"(?m)^(roles|apiVersion)[ \t]*:"
        is_job_file = re.search(pattern, start) and b"\0" not in start and not start.startswith(b"#!")
        if is_job_file and not words.has_roles:
            expected = f"expected a name that ends with one of {join_names(JOB_FILE_ENDINGS)}"
            yield Fault(name, "this is a job file", expected)
        return
    # There is no file of that name. The next word shows whether a program follows it.
    is_option = following.partition("=")[0] in (*TYPICAL_OPTIONS, "--", "-m", "-c")
    is_program = following.endswith((".py", *JOB_FILE_ENDINGS)) or is_command(following)
    if words.is_marked or not (is_option or is_program):
        return
    problem = f"{name!r} would be the program, and {following!r} its argument"
    # ``--tensorboard`` without a value is the empty string.
    if settings[table.TENSORBOARD] == "" and settings.source_kind(table.TENSORBOARD) == COMMAND_LINE:
        expected = f"use --tensorboard={name} for a folder, or -- before a program"
        yield Fault("--tensorboard", problem, expected)
    elif settings.source_kind(table.HOSTS) == COMMAND_LINE and re.fullmatch(r"[\w.:@\[\]-]+", name):
        yield Fault("--hosts", problem, f"for several hosts use --hosts {settings[table.HOSTS]},{name}")
