"""``launch rerun``: start a run again with the same options and program, in the same folder.

The folder of the run contains its command line. Values that may be secret are not there, and neither is a
run of the Python API, whose functions only its program has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from launcher import backends
from launcher.backends.queued_runs import find
from launcher.cli import run as run_command
from launcher.cli.arguments import parse_options
from launcher.cli.run_names import run_argument
from launcher.common.errors import Fault, InputError
from launcher.config.settings import HIDDEN, Group, Setting, Settings, option_words
from launcher.config.table import RUN_DIR, VARIABLES
from launcher.runs.run import Run

SUMMARY = "start a run again: the same program, options and folder"

#: argparse would not show that options are meant.
USAGE = "launch rerun [-h] RUN [OPTIONS]"
#: What follows the fault of an option in another place.
ADVICE = "; options of launch come after RUN"

EXAMPLES = """\
launch rerun latest                    as it was started
launch rerun nightly --restarts 3      with another option, or one more
launch rerun k3f9m -x TOKEN            a value that is not in the run's folder

Files such as the job file are read again. Relative paths start at the folder
where the run was started. --run-dir is left out: its folder is in use."""


RUN = run_argument(positional="1")
OPTIONS: Setting[tuple[str, ...]] = Setting(
    "options", str, "options of launch, which win over those of the run", metavar="OPTIONS", default=(),
    positional="...", repeatable=True,
)  # fmt: skip
GROUPS = (Group("positional arguments", (RUN, OPTIONS)),)


def run(settings: Settings) -> int:
    """Start the run that the user names again.

    Returns:
        The exit code of the new run.

    Raises:
        InputError: The run cannot be started again, or a value is missing. Nothing was started.
        LaunchError: The job could not be started.
    """
    old_run = find(settings[RUN])
    origin = old_run.origin
    _check(old_run)
    options = _merged(parse_options(origin.options), parse_options(settings[OPTIONS]))
    if faults := list(_missing_values(options)):
        raise InputError(faults)
    # -m and -c are options of launch. After -- anything else is the program, whatever its name is.
    mark = [] if origin.program[0] in ("-m", "-c") else ["--"]
    words = [*option_words(options, backends.rows()), *mark, *origin.program]
    try:
        os.chdir(origin.folder)
    except OSError as error:
        problem = f"{old_run.called} was started in {origin.folder!r}: {error.strerror}"
        raise InputError([Fault("", problem)]) from error
    # With --detach the queue of a cluster starts the launcher with the words in sys.argv. So they must be the
    # whole command line of the new run.
    sys.argv[1:] = words
    return run_command.run(words, argparse.Namespace())


def _check(run: Run) -> None:
    """Refuse a run whose command line is not known, or was not typed by this user.

    Raises:
        InputError: The run cannot be started again.
    """
    if not run.is_ours:
        problem = f"its record belongs to user {run.written_by}, who could have written any command line"
    elif run.origin.driver:
        problem = f"a Python program has started it: run {run.origin.driver} again"
    elif not run.origin.program:
        problem = "its command line is too long, or an earlier version of launch has started it"
    else:
        return
    raise InputError([Fault(run.called, problem)])


def _merged(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the new run. Of variables, only those of the same name are replaced.

    Args:
        recorded: The texts of the options in the folder of the run, by the names of the settings.
        given: The texts of the options that the user has typed now, in the same form.
    """
    # Files of the old run are in the folder of --run-dir, so the new run needs another one.
    replaced = {*given, RUN_DIR.name}
    for row in backends.rows():
        alternatives = {row.name, *row.excludes}  # Such as --python and --venv.
        if alternatives & given.keys():
            replaced |= alternatives
    options = {name: text for name, text in recorded.items() if name not in replaced}
    variables = given.get(VARIABLES.name, [])
    names = {text.partition("=")[0] for text in variables}
    kept = [text for text in recorded.get(VARIABLES.name, []) if text.partition("=")[0] not in names]
    return {**options, **given, VARIABLES.name: [*kept, *variables]}


def _missing_values(options: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each option whose value is not in the folder of the run, as it may be secret."""
    for row in backends.rows():
        # `masked` is `str` if all values of the option are stored as they are. `HIDDEN` replaces a secret.
        written = [] if row.masked is str else options.get(row.name, [])
        for text in written if isinstance(written, list) else [written]:
            name, _, value = text.rpartition("=")
            if value == HIDDEN:
                problem = "the value is not in the folder of the run, because it may be secret"
                expected = f"expected {row.flag} {row.metavar} again"
                yield Fault(f"{row.flag} {name}".rstrip(), problem, expected)
