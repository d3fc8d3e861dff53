"""Starting one process: found along its own PATH, in a session of its own, output into a pipe."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from launcher.agent.limits import Limits

if TYPE_CHECKING:
    from typing import Dict, Mapping, Optional, Sequence, Tuple

#: What every task gets unless the user says otherwise: lines that appear when they are printed,
#: and stacks in the log when a hung Python program is sent SIGABRT.
DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}

#: Exit codes as POSIX shells use them (XCU 2.8.2), and 125 for what is our own fault (as ``env`` does).
NOT_FOUND, NOT_RUNNABLE, OUR_FAULT = 127, 126, 125

#: Whatever nohup, the user's shell or Python ignores: a task starts with the kernel's defaults.
_ALL_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


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
    """A process that runs, the reading end (not blocking) of what it prints, its watermark (0: none)."""

    pid: int
    output: int
    watermark: int


class Spawner:
    """Starts processes.

    Args:
        limits: what they start with.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._count = 0
        #: Where the agent was started: relative folders begin there.
        self._home = os.open(".", os.O_PATH | os.O_DIRECTORY)
        #: What tasks read from: open already, so that one can start when no descriptor is left to have.
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._environment = {**DEFAULTS, **os.environ}

    def spawn(
        self,
        argv: Sequence[str],
        extra: Mapping[str, str],
        workdir: Optional[str] = None,
        venv: Optional[str] = None,
        script: Optional[str] = None,
    ) -> Started:
        """Start ``argv`` with the environment of the agent and ``extra``.

        Args:
            argv: ``argv[0]`` is a path, or a name to look up along the task's PATH.
            extra: environment added to the agent's own.
            workdir: where it runs, relative to where the agent was started; ``None``: there.
            venv: the virtual or conda environment it runs in.
            script: a file that must be there.

        Raises:
            CannotStart: with the exit code that stands for it.
        """
        environment: Dict[str, str] = {**self._environment, **extra}
        if venv is not None:
            environment.update(_environment_of(venv, environment))
        _enter(self._home, workdir)
        if script is not None and not os.path.exists(script):
            raise CannotStart(NOT_FOUND, f"program not found: {script!r} (looked in {os.getcwd()!r})")
        path = _find(argv[0], environment.get("PATH", os.defpath))
        reading, writing = _pipe()
        reading = self._limits.keep(reading)
        self._count += 1
        watermark = self._limits.lend(self._count)
        try:
            pid = _exec(path, argv, environment, (self._nothing, writing, writing))
        except (OSError, ValueError) as error:
            os.close(reading)
            raise _explained(error, argv[0], path) from error
        finally:
            self._limits.take_back()
            os.close(writing)
        os.set_blocking(reading, False)
        return Started(pid, reading, watermark)


def _enter(home: int, workdir: Optional[str]) -> None:
    """Move to the folder a task runs in: posix_spawn has no word for it, and we have no other use for one."""
    try:
        os.chdir(home)
        if workdir is not None:
            os.chdir(_at_home(workdir))
    except (OSError, ValueError) as error:
        why = f"can't enter the working folder {workdir!r}: {_said(error)}"
        raise CannotStart(NOT_RUNNABLE, why) from error


def _environment_of(venv: str, environment: Mapping[str, str]) -> Dict[str, str]:
    from launcher.agent.environments import entered

    try:
        return entered(environment, venv)
    except OSError as error:
        why = f"there is no virtual or conda environment {venv!r} (or no bin/python in it)"
        raise CannotStart(NOT_FOUND, why) from error


def _at_home(path: str) -> str:
    """``~/x`` means the home of whoever runs the agent: the launcher does not know it."""
    return os.path.expanduser(path) if path.startswith("~") else path


def _pipe() -> Tuple[int, int]:
    try:
        return os.pipe()
    except OSError as error:
        raise CannotStart(OUR_FAULT, f"no pipe for its output: {error.strerror}") from error


def _exec(path: str, argv: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> int:
    return os.posix_spawn(
        path,
        list(argv),
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)],
        setsid=True,
        setsigmask=(),
        setsigdef=_ALL_SIGNALS,
    )


def _find(name: str, path: str) -> str:
    """The file ``name`` stands for, as execvp(3) finds it.

    Raises:
        CannotStart: 127 if there is none, 126 if there is one that may not be run.
    """
    if "/" in name:
        return _at_home(name)
    files = (os.path.join(folder or ".", name) for folder in path.split(os.pathsep))
    found = [file for file in files if os.path.isfile(file)]
    runnable = next((file for file in found if os.access(file, os.X_OK)), None)
    if runnable is not None:
        return runnable
    if found:
        raise CannotStart(NOT_RUNNABLE, f"{found[0]!r} is not executable")
    here = os.path.exists(name)
    hint = " (a file of that name is in the working folder: write ./ before it)" if here else ""
    raise CannotStart(NOT_FOUND, f"program not found: {name!r} is nowhere along PATH{hint}")


def _explained(error: Exception, name: str, path: str) -> CannotStart:
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOENT, errno.ENOTDIR):
        if os.path.exists(path):
            why = f"{name!r} can't be run: the interpreter its first line names is missing"
            return CannotStart(NOT_RUNNABLE, why)
        return CannotStart(NOT_FOUND, f"program not found: {name!r} (looked in {os.getcwd()!r})")
    if code == errno.EACCES and os.path.isdir(path):
        return CannotStart(NOT_RUNNABLE, f"{name!r} is a folder, not a program")
    if code == errno.EACCES:
        return CannotStart(NOT_RUNNABLE, f"{name!r} is not executable: chmod +x would make it so")
    if code == errno.ENOEXEC:
        why = f"{name!r} can't be run: it is no program for this machine, or a script without a #! line"
        return CannotStart(NOT_RUNNABLE, why)
    if code == errno.E2BIG:
        return CannotStart(NOT_RUNNABLE, "its arguments and environment are larger than the kernel allows")
    return CannotStart(OUR_FAULT, f"{name!r} can't be started: {_said(error)}")


def _said(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
