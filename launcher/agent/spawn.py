"""Starts the processes of tasks: each gets a session of its own and a pipe for its output.

The agent calls `Spawner`, and so do fork servers. A program is found along the PATH of its task. A process
starts with the limits, signals and folder that it would have without launch.
"""

import errno
import os
import resource
import signal
from contextlib import contextmanager, suppress
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from launcher.agent import processes
from launcher.agent.lookup import environment_variables, find_executable, find_script
from launcher.common.errors import LaunchError, NotRunnableError
from launcher.common.record import Record
from launcher.common.text import why_not_started
from launcher.common.trusted_io import open_regular

#: Variables of every task unless the user sets them: output without delay; stack traces in the log when a
#: hung Python program gets SIGABRT.
DEFAULT_VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
#: Where gRPC looks for a proxy, unless ``grpc_proxy`` is set: the tasks could not connect to each other.
_PROXY_VARIABLES = ("http_proxy", "https_proxy")

#: Tasks start with the kernel's defaults, also for signals that nohup, the user's shell or Python ignores.
_ALL_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


_MISSING_LOADER = (
    "can't be run: the loader that it was built for is missing: was it built for another system?"
)
#: Bytes of a script in which the kernel looks for its interpreter.
_SHEBANG_BYTES = 256
#: Editors on Windows begin files with it.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Why a program can't be run, by the error of the kernel.
_NOT_RUNNABLE_REASONS: Dict[Optional[int], str] = {
    errno.ENOENT: _MISSING_LOADER,
    errno.ENOTDIR: _MISSING_LOADER,
    errno.EACCES: "is not executable: chmod +x would make it so",
    errno.ENOEXEC: "can't be run: not a program for this machine, or a script without a #! line",
    errno.E2BIG: "can't be run: arguments and environment are larger than the kernel allows",
}


class Prepared(Record):
    """A command that can be started, in the folder that the agent has entered."""

    path: str
    argv: List[str]
    environment: Dict[str, str]


class Started(Record):
    """A started process, the non-blocking reading end of its output, its tag (0: none)."""

    pid: int
    output: int
    tag: int


#: File descriptors that the agent needs for each task, and for itself.
_DESCRIPTORS_PER_TASK = 4
_OWN_DESCRIPTORS = 64


class Limits:
    """Resource limits of the agent, and those that tasks start with.

    A task takes two or three descriptors of the agent, and the usual limit is 1024; programs that use
    select(2) rely on it, so they must not inherit the agent's. Limits are set for the moment of the start,
    not changed afterwards: what a task forks at once has the right ones too.
    """

    def __init__(self) -> None:
        self._files = self._raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._realtime = resource.getrlimit(resource.RLIMIT_RTTIME)

    def make_room(self, tasks: int) -> bool:
        """Raise our soft limit of open files for this number of tasks; whether the hard limit allows it."""
        _, hard = self._files
        needed = tasks * _DESCRIPTORS_PER_TASK + _OWN_DESCRIPTORS
        if hard != resource.RLIM_INFINITY:
            needed = min(needed, hard)
        if needed > self._raised[0] != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            self._raised = (needed, hard)
        return needed == tasks * _DESCRIPTORS_PER_TASK + _OWN_DESCRIPTORS

    @contextmanager
    def of_task(self, tag: int) -> Iterator[bool]:
        """Set limits and tag while a process starts. Yields whether this user may set the tag."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
        try:
            resource.setrlimit(resource.RLIMIT_RTTIME, (tag, self._realtime[1]))
            tagged = True
        except (OSError, ValueError):  # the hard limit is below it
            tagged = False
        try:
            yield tagged
        finally:
            resource.setrlimit(resource.RLIMIT_RTTIME, self._realtime)
            resource.setrlimit(resource.RLIMIT_NOFILE, self._raised)


class Spawner:
    """Starts processes.

    Args:
        agent: The agent's number, for tags.
    """

    def __init__(self, agent: int) -> None:
        self.limits = Limits()
        self._agent = agent
        self._count = 0
        #: The folder in which the agent was started: relative folders are below it.
        self._home = os.open(".", os.O_PATH | os.O_DIRECTORY)
        #: The tasks' standard input. The second one stands for what a process inherits while it starts:
        #: posix_spawn takes no descriptor above the tasks' limit of open files.
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._inherited = os.dup(self._nothing)
        self._environment = {**DEFAULT_VARIABLES, **os.environ}

    def prepare(
        self,
        argv: Sequence[str],
        extra: Mapping[str, str],
        workdir: Optional[str] = None,
        venv: Optional[str] = None,
        script: Optional[str] = None,
    ) -> Prepared:
        """Find the program ``argv``, and enter the folder in which it runs.

        Args:
            argv: ``argv[0]`` is a path, or a name to look up along the task's PATH.
            extra: Environment added to the agent's own.
            workdir: The folder in which it runs, relative to the one in which the agent was started.
                None: that one.
            venv: The environment that it runs in, see `environment_variables`.
            script: A file that must be there.

        Raises:
            LaunchError: With the exit code that stands for it.
        """
        argv = [os.path.expanduser(argv[0]), *argv[1:]]  # a venv's Python finds its packages by argv[0]
        environment: Dict[str, str] = {**self._environment, **extra}
        if any(environment.get(name) for name in _PROXY_VARIABLES):
            environment.setdefault("grpc_proxy", "")
        if venv is not None:
            environment.update(environment_variables(environment, venv))
        _enter(self._home, workdir)
        if "PWD" not in extra:
            environment["PWD"] = _name_of_folder(environment.get("PWD", ""), workdir)
        if script is not None:
            find_script(script, "")
        path = find_executable(argv[0], "", environment.get("PATH", os.defpath))
        return Prepared(path, argv, environment)

    def spawn(self, prepared: Prepared) -> Started:
        """Start a task with a pipe for its output.

        Raises:
            LaunchError: With the exit code that stands for it.
        """
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise LaunchError(f"no pipe for its output: {error.strerror}") from error
        try:
            pid, tag = self._spawn(prepared, writing, (self._nothing, self._inherited, self._inherited))
        except LaunchError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        return Started(pid, reading, tag)

    def spawn_with_stdin(self, prepared: Prepared, stdin: int) -> int:
        """Start a process that does not belong to a task. Its output is discarded.

        Args:
            prepared: By `prepare`.
            stdin: The descriptor of its standard input.

        Returns:
            Its pid.

        Raises:
            LaunchError: With the exit code that stands for it.
        """
        return self._spawn(prepared, stdin, (self._inherited, self._nothing, self._nothing))[0]

    def new_tag(self) -> int:
        """Return a tag for a process."""
        self._count += 1
        return processes.tag(self._agent, self._count)

    def _spawn(self, prepared: Prepared, inherited: int, streams: Sequence[int]) -> Tuple[int, int]:
        """Start a process whose ``streams`` may be `_inherited`, which stands for ``inherited``.

        Returns:
            Its pid, and its tag (0: this user may set none).
        """
        os.dup2(inherited, self._inherited, inheritable=False)
        tag = self.new_tag()
        try:
            with self.limits.of_task(tag) as tagged:
                pid = os.posix_spawn(
                    prepared.path,
                    prepared.argv,
                    prepared.environment,
                    file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)],
                    setsid=True,
                    setsigmask=(),
                    setsigdef=_ALL_SIGNALS,
                )
        except (OSError, ValueError) as error:
            raise _explained(error, prepared.argv[0], prepared.path) from error
        finally:
            os.dup2(self._nothing, self._inherited, inheritable=False)
        return pid, tag if tagged else 0


def _enter(home: int, workdir: Optional[str]) -> None:
    """Work in a task's folder while it starts, because posix_spawn cannot set the folder."""
    try:
        os.chdir(home)
        if workdir is not None:
            os.chdir(os.path.expanduser(workdir))
    except (OSError, ValueError) as error:
        why = f"can't enter the working folder {workdir!r}: {_reason(error)}"
        raise NotRunnableError(why) from error


def _name_of_folder(inherited: str, workdir: Optional[str]) -> str:
    """Return the value of PWD for the folder that the agent has entered, by the name that a user knows.

    Shells and programs such as ``make`` believe PWD, and keep the name of a link to a folder.

    Args:
        inherited: PWD of the agent; it may name another folder.
        workdir: What was entered, see `Spawner.prepare`.
    """
    below = os.path.normpath(os.path.join(inherited, os.path.expanduser(workdir or "")))
    for name in (inherited, below):
        with suppress(OSError, ValueError):
            if os.path.isabs(name) and os.path.samefile(name, "."):
                return name
    return os.getcwd()


def _explained(error: Exception, name: str, path: str) -> LaunchError:
    """Return the error for a program that cannot be started.

    Args:
        error: Of the kernel.
        name: The program, as the user named it.
        path: Its file.
    """
    code = error.errno if isinstance(error, OSError) else None
    if code in _NOT_RUNNABLE_REASONS:
        return NotRunnableError(f"{name!r} {_about_first_line(code, path) or _NOT_RUNNABLE_REASONS[code]}")
    return LaunchError(f"{name!r} can't be started: {_reason(error)}")


def _about_first_line(code: Optional[int], path: str) -> str:
    """Return what is wrong with the first line of a script; empty if nothing is, or if it is no script."""
    try:
        with open_regular(path) as file:
            line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return ""
    if code == errno.ENOEXEC and line.startswith(_BYTE_ORDER_MARK + b"#!"):
        return (
            "can't be run: a byte order mark stands before its #! line:"
            r" sed -i '1s/^\xEF\xBB\xBF//' FILE removes it"
        )
    words = line[2:].strip(b" \t").replace(b"\t", b" ").split(b" ")
    may_be = code in (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
    if not may_be or not line.startswith(b"#!") or not words[0]:
        return ""
    interpreter = os.fsdecode(words[0])
    if interpreter.endswith("\r"):
        return (
            f"can't be run: its first line names the interpreter {interpreter!r}, because its lines end as on"
            r" Windows: sed -i 's/\r$//' FILE makes them end as here"
        )
    missing = "can't be executed" if os.path.exists(interpreter) else "is missing"
    return f"can't be run: the interpreter {interpreter!r} in its first line {missing}"


def _reason(error: Exception) -> str:
    return why_not_started(error) if isinstance(error, OSError) else str(error)
