"""Starting one process: found along its own PATH, in a session of its own, output into a pipe."""

from __future__ import annotations

import errno
import os
import signal
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

#: What every task gets unless the user says otherwise: lines that appear when they are printed,
#: and stacks in the log when a hung Python program is sent SIGABRT.
DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}

#: Exit codes as POSIX shells use them (XCU 2.8.2), and 125 for what is our own fault (as ``env`` does).
NOT_FOUND, NOT_RUNNABLE, OUR_FAULT = 127, 126, 125

#: Signals that Python, or we, ignore: a task starts with their defaults.
_DEFAULT_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGCHLD,
)


#: Where the agent was started: relative folders begin there.
_start_folder = os.open(".", os.O_PATH | os.O_DIRECTORY)


class CannotStart(Exception):
    """The process can't be started.

    Args:
        code: 127, 126 or 125.
        why: for the user.
    """

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class Started(NamedTuple):
    """A process that runs, and the reading end (not blocking) of what it prints."""

    pid: int
    output: int


def spawn(argv: Sequence[str], extra: Mapping[str, str], workdir: Optional[str]) -> Started:
    """Start ``argv`` with the environment of the agent and ``extra``.

    Args:
        argv: ``argv[0]`` is a path, or a name to look up along the task's PATH.
        extra: environment added to the agent's own.
        workdir: where it runs, relative to where the agent was started; ``None``: there.

    Raises:
        CannotStart: with the exit code that stands for it.
    """
    environment: Dict[str, str] = {**DEFAULTS, **os.environ, **extra}
    _enter(workdir)
    path = _find(argv[0], environment.get("PATH", os.defpath))
    reading, writing = _pipe()
    try:
        pid = _exec(path, argv, environment, writing)
    except OSError as error:
        os.close(reading)
        raise _explained(error, argv[0], path) from error
    finally:
        os.close(writing)
    os.set_blocking(reading, False)
    return Started(pid, reading)


def _enter(workdir: Optional[str]) -> None:
    """Move to the folder a task runs in; posix_spawn has no word for it, and this process has no other use for one."""
    try:
        os.chdir(_start_folder)
        if workdir is not None:
            os.chdir(workdir)
    except OSError as error:
        why = f"can't enter the working folder {workdir!r}: {error.strerror}"
        raise CannotStart(NOT_RUNNABLE, why) from error


def _pipe() -> Tuple[int, int]:
    try:
        return os.pipe()
    except OSError as error:
        raise CannotStart(OUR_FAULT, f"no pipe for its output: {error.strerror}") from error


def _exec(path: str, argv: Sequence[str], environment: Mapping[str, str], writing: int) -> int:
    return os.posix_spawn(
        path,
        list(argv),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writing, 1),
            (os.POSIX_SPAWN_DUP2, writing, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
    )


def _find(name: str, path: str) -> str:
    """The file ``name`` stands for, as execvp(3) finds it.

    Raises:
        CannotStart: 127 if there is none, 126 if there is one that may not be run.
    """
    if "/" in name:
        return name
    candidates = [os.path.join(folder or ".", name) for folder in path.split(os.pathsep)]
    files = [candidate for candidate in candidates if os.path.isfile(candidate)]
    for file in files:
        if os.access(file, os.X_OK):
            return file
    if files:
        raise CannotStart(NOT_RUNNABLE, f"{files[0]!r} is not executable")
    here = (
        " (a file of that name is in the working folder: write ./ before it)" if os.path.exists(name) else ""
    )
    raise CannotStart(NOT_FOUND, f"program not found: {name!r} is nowhere along PATH{here}")


def _explained(error: OSError, name: str, path: str) -> CannotStart:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.exists(path):
            return CannotStart(
                NOT_RUNNABLE, f"{name!r} can't be run: the interpreter its first line names is missing"
            )
        return CannotStart(NOT_FOUND, f"program not found: {name!r} (looked in {os.getcwd()!r})")
    if error.errno == errno.EACCES and os.path.isdir(path):
        return CannotStart(NOT_RUNNABLE, f"{name!r} is a folder, not a program")
    if error.errno == errno.EACCES:
        return CannotStart(NOT_RUNNABLE, f"{name!r} is not executable: chmod +x would make it so")
    if error.errno == errno.ENOEXEC:
        why = f"{name!r} can't be run: it is no program for this machine, or a script without a #! line"
        return CannotStart(NOT_RUNNABLE, why)
    if error.errno == errno.E2BIG:
        return CannotStart(NOT_RUNNABLE, "its arguments and environment are larger than the kernel allows")
    return CannotStart(OUR_FAULT, f"{name!r} can't be started: {error.strerror}")
