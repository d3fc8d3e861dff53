"""The table of settings, which declares every option of ``launch`` and every key of its files once.

The command line, the readers of files, the help and the reference are made from it. The rows of a backend are
beside the backend, in ``rows.py``. This module must not decide what a setting does.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from launcher.config import values
from launcher.config.documents import ConfigNode, FaultList
from launcher.config.hostfile import names_file, read_host_list
from launcher.config.schema import as_written, named_texts, several, text_of
from launcher.config.settings import (
    COMMAND_LINE,
    EVERYWHERE,
    FILES,
    HIDDEN,
    Group,
    Need,
    Setting,
    SourceKind,
    switch,
)
from launcher.config.values import OneOf, positive_duration, role_name, whole
from launcher.job import MAX_TASKS, RESTART_CHOICES, Host, Program

#: The need of an option that has an effect only with other machines among the hosts.
OTHER_MACHINES = Need("the option is about other machines, and none is named", "expected --hosts")
_MAX_FANOUT = 1024
#: The launcher pings every 2 s and notices a lost connection after 5 s.
_MIN_LEASE_SECONDS = 6

_T = TypeVar("_T")
_count = whole(0, MAX_TASKS)
# A job file contains these numbers below `roles:` instead.
_COUNTS = COMMAND_LINE | SourceKind.PROJECT_FILE


# ---------------------------------------------------------------------- readers


def _environment(text: str) -> str:
    """Read the Python environment in ``--venv`` or ``--env``.

    In other tools ``--env`` sets a variable, as in ``--env NAME=VALUE``, which is refused here.

    Raises:
        ValueError: The text sets a variable, or is no name of an environment.
    """
    name, equals, _ = text.partition("=")
    if equals:
        raise ValueError(f"for a variable use -x {name}=...")
    return values.environment(text)


def _progress(text: str) -> str:
    """Read the pattern of ``--progress``.

    Raises:
        ValueError: The text is no regular expression, or has no group ``step``.
    """
    import regex  # noqa: PLC0415 - takes 20 ms, and few launches need it

    try:
        pattern = regex.compile(text)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"expected a regular expression ({error})") from None
    if "step" not in pattern.groupindex:
        raise ValueError("expected a group step, as in 'step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)'")
    return text


def _lease(text: str) -> float:
    """Read a lease, which is how long the tasks of a host run on without a connection to the launcher.

    A lease that would end before the launcher notices the lost connection is refused.
    """
    seconds = positive_duration(text)
    if seconds < _MIN_LEASE_SECONDS:
        raise ValueError(f"expected {_MIN_LEASE_SECONDS} seconds or more")
    return seconds


def _without_value(text: str) -> str:
    """Return ``NAME=VALUE`` without the value, which may be secret."""
    name, equals, _ = text.partition("=")
    return f"{name}={HIDDEN}" if equals else text


def _descriptor(text: str) -> int:
    """Read the number of a descriptor that is open because the caller of ``launch`` has passed it on."""
    try:
        os.fstat(int(text))
    except (ValueError, OSError, OverflowError):
        raise ValueError("expected the number of an open descriptor") from None
    return int(text)


def _read_hosts(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """Read ``hosts:`` of a file: a text as for ``--hosts``, or a list of hosts."""
    if isinstance(node.value, str):
        return faults.check(node.line, label, node.value, values.one_line)
    return read_host_list(node, faults)


def read_program(node: ConfigNode, label: str, faults: FaultList) -> Program | None:
    """Read the program of a job or role from a file, with its arguments, see `_read_command`."""
    return _read_command(node, label, faults, Program.of)


def _read_own_command(node: ConfigNode, label: str, faults: FaultList) -> tuple[str, ...] | None:
    """Read the command of ``on_end:`` or ``on_event:`` of a file. No fault shows its words."""
    return _read_command(node, label, faults, _checked_words, secret=True)


def _read_command(
    node: ConfigNode, label: str, faults: FaultList, make: Callable[[list[str]], _T], *, secret: bool = False
) -> _T | None:
    """Read a command from a file.

    Args:
        node: A list of words, or a text, which is split into words as a shell does, without expansions.
        label: What messages call the node.
        faults: Receives the faults.
        make: Makes a value of the words.
        secret: Whether no fault may show the words.

    Returns:
        The value, or None if a fault was added.
    """
    items = node.value if isinstance(node.value, list) else [node]
    texts = [text for item in items if (text := text_of(item, label, faults)) is not None]
    if len(texts) < len(items):
        return None
    shown = HIDDEN if secret else " ".join(texts)  # Only the message contains it.
    # The items of a list are the words. Otherwise there is one text to split.
    return faults.check(
        node.line, label, shown, lambda _: make(texts if items is node.value else _split_words(texts[0]))
    )


def _split_words(text: str) -> list[str]:
    """Split a command into words as a shell does, without expansions."""
    try:
        return shlex.split(text)
    except ValueError:
        raise ValueError("expected quotes in pairs, as in a shell") from None


def _own_command(text: str) -> tuple[str, ...]:
    """Read the command of ``--on-end`` or ``--on-event``, which is split into words as a shell does."""
    return _checked_words(_split_words(text))


def _checked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command, if a program can be started with them."""
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError("expected a program and its arguments, without zero bytes")
    return tuple(words)


# ---------------------------------------------------------------------- paths of files


def _local_path(path: str, folder: str) -> str:
    """Return the absolute path of a file on this machine, from a path relative to a folder.

    A ``~`` is replaced by the home folder.
    """
    return os.path.join(folder, os.path.expanduser(path))


def remote_path(path: str, folder: str) -> str:
    """Return an absolute path for a machine that may be another one.

    A ``~`` stays, because the home folder on the other machine may be another one.

    Args:
        path: The path in a file.
        folder: The folder of the file, to which the path is relative.
    """
    return path if path.startswith("~") else os.path.join(folder, path)


def _remote_name(name: str, folder: str) -> str:
    """Return an absolute path if a name contains a slash, for a machine that may be another one."""
    return remote_path(name, folder) if "/" in name else name


def _hostfile(text: str, folder: str) -> str:
    """Return the absolute path of a hostfile, or the text itself if it is a list of hosts.

    Args:
        text: The value of ``hosts:`` in a file.
        folder: The folder of the file, to which the path is relative.
    """
    path = _local_path(text, folder)
    # A folder may have the name of a host by chance.
    is_file = os.path.exists(path) and not os.path.isdir(path)
    return path if is_file or names_file(text) else text


# ---------------------------------------------------------------------- rows

PS: Setting[int | None] = Setting(
    "ps", _count, "number of parameter servers", metavar="N", default=None, given_in=_COUNTS
)
WORKERS: Setting[int | None] = Setting(
    "workers", _count, "number of workers (default: 1 if no role is given)", metavar="N", default=None,
    given_in=_COUNTS,
)  # fmt: skip
CHIEF = Setting("chief", switch, "add a chief", default=False, given_in=_COUNTS)
EVALUATOR = Setting("evaluator", switch, "add an evaluator", default=False, given_in=_COUNTS)
GPUS: Setting[int | None] = Setting(
    "gpus", whole(0, values.MAX_GPUS), "GPUs per task (ps tasks get none)", metavar="N", default=None,
    given_in=_COUNTS,
)  # fmt: skip
HOSTS: Setting[str | tuple[Host, ...] | None] = Setting(
    "hosts", str, "a hostfile, or host[:slots],... (default: this machine)", metavar="X", default=None,
    given_in=EVERYWHERE, read=_read_hosts, path=_hostfile, once="for several hosts use host,host",
)  # fmt: skip

COMMAND: Setting[Program | None] = Setting(
    "command", str, "The program and its arguments: a list, or a text that is split as a shell does.",
    default=None, given_in=SourceKind.JOB_FILE, read=read_program,
)  # fmt: skip
ROLES: Setting[Any] = Setting(
    "roles", str, "The roles: a number of tasks, or a mapping.", default=None,
    given_in=SourceKind.JOB_FILE, read=as_written,
)  # fmt: skip
FLAGS = Setting(
    "flags", switch, "add --ps_hosts --worker_hosts --job_name --task_index", default=False,
    given_in=EVERYWHERE,
)  # fmt: skip
VARIABLES: Setting[tuple[str, ...]] = Setting(
    "variables", str, "set a variable, or copy it (NAME, PRE*); repeatable", metavar="NAME[=VALUE]",
    flags=("-x",), default=(), repeatable=True, masked=_without_value,
)  # fmt: skip
ENV: Setting[tuple[tuple[str, str], ...]] = Setting(
    "env", str, "Environment variables of the tasks.", default=(), given_in=FILES,
    read=named_texts(values.env_name),
)  # fmt: skip
PYTHON: Setting[str | None] = Setting(
    "python", values.program_path, "the Python that runs .py files (default: launch's own)", metavar="PATH",
    default=None, given_in=EVERYWHERE, path=_remote_name,
)  # fmt: skip
VENV: Setting[str | None] = Setting(
    "venv", _environment, "the Python environment of the tasks, or its folder", metavar="NAME",
    flags=("--venv", "--env"), default=None, given_in=EVERYWHERE, path=_remote_name, excludes=("python",),
    masked=_without_value,
)  # fmt: skip
PRELOAD: Setting[tuple[str, ...]] = Setting(
    "preload", values.modules, "import once on each host, and fork the tasks from there",
    metavar="MODULE,...", default=(), given_in=EVERYWHERE,
    read=several(values.module, values.comma_separated),
)  # fmt: skip
WORKDIR: Setting[str | None] = Setting(
    "workdir", values.not_empty, "where the tasks run (default: here)", metavar="DIR", default=None,
    given_in=EVERYWHERE, path=remote_path,
)  # fmt: skip
TENSORBOARD: Setting[str | None] = Setting(
    "tensorboard", str, "run TensorBoard (default: on the working folder)", metavar="[=DIR]",
    default=None, value_optional=True, given_in=EVERYWHERE,
)  # fmt: skip

SYNC: Setting[tuple[str, ...]] = Setting(
    "sync", str, "copy a folder to the hosts, run there; repeatable", metavar="DIR[:REMOTE]", default=(),
    repeatable=True, given_in=EVERYWHERE, path=_local_path, needs=OTHER_MACHINES,
)  # fmt: skip
COLLECT: Setting[tuple[str, ...]] = Setting(
    "collect", values.path_to_target, "copy PATH of tasks here, or to a URL; repeatable",
    metavar="[TASK=]PATH[:DIR]", default=(), repeatable=True, given_in=EVERYWHERE,
)  # fmt: skip
NO_CHECK = Setting(
    "no_check", switch, "do not check that the hosts reach each other", default=False, needs=OTHER_MACHINES
)
# This has no need: the Python API always sets it, and only a job file may name other machines.
RELAY: Setting[str | None] = Setting(
    "relay", str, "forward a port of each host here; see LAUNCH_RELAY", metavar="SOCKET", default=None
)
LEASE = Setting(
    "lease", _lease, "time tasks run without a connection (default: 60)", metavar="S", default=60.0,
    needs=OTHER_MACHINES,
)  # fmt: skip
CONNECT_TIMEOUT = Setting(
    "connect_timeout", positive_duration, "limit for each step of connecting (default: 10)", metavar="S",
    default=10.0, needs=OTHER_MACHINES,
)  # fmt: skip
FANOUT = Setting(
    "fanout", whole(1, _MAX_FANOUT), "hosts to connect to at the same time (default: 32)", metavar="N",
    default=32, needs=OTHER_MACHINES,
)  # fmt: skip

RESTARTS = Setting(
    "restarts", _count, "start failed tasks again, up to N times (default: 0)", metavar="N", default=0,
    given_in=EVERYWHERE,
)  # fmt: skip
RESTART = Setting(
    "restart", OneOf(*RESTART_CHOICES), "what starts again (default: auto, by the strategy)",
    default="auto", given_in=EVERYWHERE,
)  # fmt: skip
STALL = Setting(
    "stall", values.duration, "a task silent for so long fails: 90s, 10m (default: 0)", metavar="S",
    default=0.0, given_in=EVERYWHERE,
)  # fmt: skip
PROGRESS: Setting[str | None] = Setting(
    "progress", _progress, "how lines with steps look: 'step (?P<step>[0-9]+)'", metavar="REGEX",
    default=None, given_in=EVERYWHERE,
)  # fmt: skip

NO_SAMPLES = Setting(
    "no_samples", switch, "do not look at CPU, memory, GPUs and steps of tasks", default=False,
    given_in=EVERYWHERE,
)  # fmt: skip

ON_FAILURE = Setting(
    "on_failure", OneOf("stop", "continue"), "stop or continue if a task fails (default: stop)",
    default="stop", given_in=EVERYWHERE,
)  # fmt: skip
DONE_WHEN = Setting(
    "done_when", role_name, "chief, workers or a role: the job is done when it is", metavar="ROLE",
    default="", given_in=EVERYWHERE,
)  # fmt: skip
GRACE = Setting(
    "grace", values.duration, "time from SIGTERM to SIGABRT: 10s, 5m (default: 10)", metavar="S",
    default=10.0, given_in=EVERYWHERE,
)  # fmt: skip
DRAIN: Setting[tuple[tuple[str, float], ...]] = Setting(
    "drain", values.duration, "time for workers to finish after the job (default: 0)", metavar="[ROLE=]S",
    default=(), by_role=True,
)  # fmt: skip
TIMEOUT = Setting(
    "timeout", values.duration, "time limit of the job: 90s, 5m, 2h (default: 0, none)", metavar="S",
    default=0.0, given_in=EVERYWHERE,
)  # fmt: skip
ON_END: Setting[tuple[str, ...]] = Setting(
    "on_end", _own_command, "run this once, however the job ended", metavar="COMMAND",
    default=(), given_in=EVERYWHERE, read=_read_own_command, masked=lambda _: HIDDEN,
)  # fmt: skip
ON_EVENT: Setting[tuple[str, ...]] = Setting(
    "on_event", _own_command, "run this at a restart, lost host, stall, nan, ...", metavar="COMMAND",
    default=(), given_in=EVERYWHERE, read=_read_own_command, masked=lambda _: HIDDEN,
)  # fmt: skip

DETACH = Setting(
    "detach", switch, "run in the background; launch attach comes back", flags=("-d", "--detach"),
    default=False,
)  # fmt: skip
DRY_RUN = Setting("dry_run", switch, "show the plan, start nothing", default=False)
PAGE = Setting("page", switch, "show the job in a browser while it runs", default=False)
REPORT: Setting[str | None] = Setting(
    "report", values.target, "write a report (JSON) to this file or URL, too", metavar="FILE", default=None
)
QUIET = Setting("quiet", switch, "show failures only", flags=("-q", "--quiet"), default=False)
RUN_DIR: Setting[str | None] = Setting(
    "run_dir", values.not_empty, "folder of the run's files (default: in ~/.local/state)", metavar="DIR",
    default=None, given_in=COMMAND_LINE | SourceKind.JOB_FILE, path=_local_path,
)  # fmt: skip
NAME: Setting[str | None] = Setting(
    "name", values.run_name, "call the run so in commands, as in launch logs NAME",
    metavar="NAME", default=None, given_in=COMMAND_LINE | SourceKind.JOB_FILE,
)  # fmt: skip
NOTE: Setting[str | None] = Setting(
    "note", values.note, "a line about the run, for launch ps --all", metavar="TEXT", default=None,
    given_in=COMMAND_LINE | SourceKind.JOB_FILE,
)  # fmt: skip
OUTPUT_DIRS = Setting(
    "output_dirs", switch, "give each task a folder for results, OUTPUT_DIR", default=False,
    given_in=EVERYWHERE,
)  # fmt: skip
OUTPUT_TO: Setting[str | None] = Setting(
    "output_to", values.target_url, "copy OUTPUT_DIR to URL/TASK, over files of the same names",
    metavar="URL", default=None, given_in=EVERYWHERE,
)  # fmt: skip
VERBOSE = Setting(
    "verbose", switch, "show start-up messages of TensorFlow, too", flags=("-v", "--verbose"), default=False
)
FOLD = Setting("fold", switch, "hide start-up messages of TensorFlow (the default)", default=False)
TIMESTAMPS = Setting("timestamps", switch, "begin each line of a task with the time", default=False)
SHOW: Setting[str | None] = Setting(
    "show", values.not_empty, "show only these tasks: worker,ps/0,worker/2-5", metavar="TASKS", default=None
)
NO_LAST_LINES = Setting("no_last_lines", switch, "do not show the last lines of a failed task", default=False)
JSON = Setting("json", switch, "events and output as JSON lines on stdout", default=False)
TMUX = Setting("tmux", switch, "a tmux pane for each task; closing tmux stops the job", default=False)
NO_DEFAULTS = Setting(
    "no_defaults", switch, "ignore launch.toml and pyproject.toml beside the program", default=False
)

#: The option of a launcher that a cluster's queue starts, see `launcher.launch.submit`.
SUBMITTED: Setting[str | None] = Setting("submitted", str, metavar="FILE", default=None)
# These descriptors come from a program that starts ``launch``, such as the Python API. In this order they are
# used by `launcher.output.renderers`, `launcher.launch.orchestrator`, `launcher.config.jobfile` and
# `launcher.launch.interrupts`.
EVENTS_FD: Setting[int | None] = Setting("events_fd", _descriptor, metavar="N", default=None)
COMMANDS_FD: Setting[int | None] = Setting("commands_fd", _descriptor, metavar="N", default=None)
ROLES_FD: Setting[int | None] = Setting("roles_fd", _descriptor, metavar="N", default=None)
UNTIL_EOF_FD: Setting[int | None] = Setting("until_eof_fd", _descriptor, metavar="N", default=None)
#: The Python program that has started ``launch`` by the API, for `launch ps`.
DRIVER: Setting[str | None] = Setting("driver", str, metavar="PROGRAM", default=None)

# ---------------------------------------------------------------------- groups

#: The groups of the help that stand before those of the backends.
FIRST_GROUPS = (
    Group("tasks", (PS, WORKERS, CHIEF, EVALUATOR, GPUS, HOSTS)),
    Group("program", (COMMAND, ROLES, FLAGS, VARIABLES, ENV, PYTHON, VENV, PRELOAD, WORKDIR, TENSORBOARD)),
    Group("other machines", (SYNC, COLLECT, NO_CHECK, RELAY, LEASE, CONNECT_TIMEOUT, FANOUT)),
)
#: The groups of the help that stand after those of the backends.
LAST_GROUPS = (
    Group("failed tasks", (RESTARTS, RESTART, STALL, PROGRESS)),
    Group("end of the job", (ON_FAILURE, DONE_WHEN, GRACE, DRAIN, TIMEOUT, ON_END, ON_EVENT)),
    Group(
        "output",
        (DETACH, NAME, NOTE, DRY_RUN, PAGE, REPORT, QUIET, RUN_DIR, OUTPUT_DIRS, OUTPUT_TO, NO_SAMPLES,
         VERBOSE, FOLD, TIMESTAMPS, SHOW, NO_LAST_LINES, JSON, TMUX, NO_DEFAULTS, SUBMITTED, EVENTS_FD,
         COMMANDS_FD, ROLES_FD, UNTIL_EOF_FD, DRIVER),
    ),
)  # fmt: skip
#: All rows of ``launch`` itself, without those of backends.
ROWS = tuple(row for group in (*FIRST_GROUPS, *LAST_GROUPS) for row in group.rows)
