"""Starts the processes of tasks, each in a session of its own and with a pipe for its output.

The agent and its `ForkServers` use `Spawner`. A program is looked up along the PATH of its task. A task must
start with the limits, signals and folder that it would have without launch: nothing that the agent changed
for itself may reach it.
"""

import errno
import os
import resource
import signal
from contextlib import contextmanager, suppress
from typing import Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple

from launcher.agent import processes
from launcher.agent.lookup import check_script, environment_variables, find_executable
from launcher.common.errors import LaunchError, NotRunnableError
from launcher.common.record import Record
from launcher.common.text import why_not_started
from launcher.common.trusted_io import open_regular

#: Variables of every task unless the user sets them. Output arrives without delay, and a hung Python program
#: prints its stack traces when it is sent SIGABRT.
DEFAULT_VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
#: Unless ``grpc_proxy`` is set, gRPC uses the proxy in these, and tasks could not connect to each other.
_PROXY_VARIABLES = ("http_proxy", "https_proxy")

#: Tasks start with the kernel's default actions, even for signals that nohup, the user's shell or Python
#: ignore.
_ALL_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

_MISSING_LOADER = (
    "cannot be run: the loader that it was built for is missing: was it built for another system?"
)
#: The kernel looks for the interpreter of a script in its first bytes only.
_SHEBANG_BYTES = 256
#: Editors on Windows write it at the beginning of a file.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Why a program cannot be run, by the error number of the kernel.
_NOT_RUNNABLE_REASONS: Dict[Optional[int], str] = {
    errno.ENOENT: _MISSING_LOADER,
    errno.ENOTDIR: _MISSING_LOADER,
    errno.EACCES: "is not executable: chmod +x would make it so",
    errno.ENOEXEC: "cannot be run: not a program for this machine, or a script without a #! line",
    errno.E2BIG: "cannot be run: arguments and environment are larger than the kernel allows",
}


class Prepared(Record):
    """A command that can be started now, because the agent has entered the folder in which it runs."""

    #: The file of the program.
    path: str
    argv: List[str]
    environment: Dict[str, str]


class Started(Record):
    """A task's process that has just been started."""

    pid: int
    #: A non-blocking descriptor from which the output of the task is read.
    output: int
    #: The process tag (see `launcher.agent.processes`), or 0 if this user may not set one.
    tag: int


# A task needs up to three (its output, its port and a pidfd), and one more while it starts.
_DESCRIPTORS_PER_TASK = 4
_OWN_DESCRIPTORS = 64


class Limits:
    """The resource limits of the agent, and those with which tasks start.

    An agent with many tasks needs more file descriptors than the usual limit of 1024. Tasks must not inherit
    the raised limit, because programs that use select(2) rely on the usual one. The limits are those of the
    task while it starts, and are not changed afterwards, so that what it forks at once inherits the right
    ones, too.
    """

    def __init__(self) -> None:
        """Record the limits of open files and of realtime, with which this process was started."""
        #: The soft and hard limits of open files: those for tasks, and those of the agent.
        self._files = self._raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        #: The limits whose soft one is the process tag (`launcher.agent.processes`).
        self._realtime = resource.getrlimit(resource.RLIMIT_RTTIME)

    def make_room(self, tasks: int) -> bool:
        """Raise the agent's soft limit of open files as far as a number of tasks requires.

        Args:
            tasks: How many tasks the agent will run.

        Returns:
            Whether the hard limit allows as many descriptors as are needed.
        """
        # It may have been raised for an earlier job.
        soft, hard = self._raised
        needed = tasks * _DESCRIPTORS_PER_TASK + _OWN_DESCRIPTORS
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        # RLIM_INFINITY is -1, and needs no raise.
        if soft != resource.RLIM_INFINITY and soft < allowed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            self._raised = (allowed, hard)
        return allowed == needed

    @contextmanager
    def of_task(self, tag: int) -> Iterator[bool]:
        """Return a context in which the agent has the limits of a task, so that a child inherits them.

        Args:
            tag: The process tag for the child. It is one of these limits (RLIMIT_RTTIME), so that all
                descendants inherit it and can be recognized.

        Yields:
            Whether the child gets the tag. The hard limit of this user may forbid that.
        """
        # The agent itself has raised its limit of open files, which is not meant for tasks.
        resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
        try:
            _, hard = self._realtime
            resource.setrlimit(resource.RLIMIT_RTTIME, (tag, hard))
            is_tagged = True
        except (OSError, ValueError):
            is_tagged = False
        try:
            yield is_tagged
        finally:
            # The child has been started, and keeps what it has inherited.
            resource.setrlimit(resource.RLIMIT_RTTIME, self._realtime)
            resource.setrlimit(resource.RLIMIT_NOFILE, self._raised)


class Spawner:
    """Starts the processes of one agent: first `prepare` a command, then `spawn` it.

    Args:
        agent: The number of the agent, which is part of all process tags.
    """

    def __init__(self, agent: int) -> None:
        """Record the folder and the environment of the agent, with which tasks start."""
        #: The limits of open files and the process tag, with which tasks start.
        self.limits = Limits()
        self._agent = agent
        #: How many process tags were made so far.
        self._count = 0
        #: The folder in which the agent was started. Relative working folders are below it.
        self._start_folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        #: The standard input of tasks, which is ``/dev/null``.
        self._null = os.open(os.devnull, os.O_RDONLY)
        #: A low descriptor that is replaced by the one that the next process inherits. posix_spawn refuses
        #: descriptors above the tasks' limit of open files, and the agent may have such ones.
        self._inherited = os.dup(self._null)
        #: The process that every task permits to trace it: the agent, whose children take stacks and may then
        #: trace it, too. 0 if the kernel requires no such permission.
        self.tracer = os.getpid() if processes.ptrace_scope() == "1" else 0
        #: The variables of every task, unless it has others.
        self._environment = {**DEFAULT_VARIABLES, **os.environ}

    def prepare(
        self,
        argv: Sequence[str],
        extra: Mapping[str, str],
        workdir: Optional[str] = None,
        venv: Optional[str] = None,
        script: Optional[str] = None,
    ) -> Prepared:
        """Find a program, complete its environment, and enter the folder in which it runs.

        Args:
            argv: The command line. ``argv[0]`` is a path, or a name to look up along the task's PATH.
            extra: Variables that are added to the environment of the agent.
            workdir: The folder in which the program runs, relative to the one in which the agent was started.
                If it is None, the program runs in that one.
            venv: The Python environment of the program, see `environment_variables`.
            script: A script that must exist, because the program will read it.

        Raises:
            LaunchError: The program cannot be run. The error contains the exit code of such a task.
        """
        # ``~`` stands for the home folder. It is replaced in argv[0] itself, and not only in the path that is
        # looked up below, because a Python of a virtual environment finds its packages by argv[0].
        argv = [os.path.expanduser(argv[0]), *argv[1:]]
        # Later variables replace earlier ones: the agent's, those of the task, those of the environment.
        environment: Dict[str, str] = {**self._environment, **extra}
        # gRPC would use the proxy for the connections between tasks, too.
        if any(environment.get(name) for name in _PROXY_VARIABLES):
            # The empty value means no proxy. One that the user has set stays.
            environment.setdefault("grpc_proxy", "")
        if venv is not None:
            environment.update(environment_variables(environment, venv))
        # From here on relative paths are those of the task. posix_spawn starts the program in this folder.
        _enter_workdir(self._start_folder, workdir)
        # A PWD that the user has set for the task stays.
        if "PWD" not in extra:
            environment["PWD"] = _name_of_folder(environment.get("PWD", ""), workdir)
        if script is not None:
            check_script(script, folder="")
        path = find_executable(argv[0], folder="", path=environment.get("PATH", os.defpath))
        return Prepared(path, argv, environment)

    def spawn(self, prepared: Prepared) -> Started:
        """Start the process of a task, with a pipe for its output.

        Args:
            prepared: The command. The agent must still be in the folder that `prepare` has entered.

        Raises:
            LaunchError: No process was started. The error contains the exit code of such a task.
        """
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise LaunchError(f"no pipe for its output: {error.strerror}") from error
        # Stdin is /dev/null. Stdout and stderr are the writing end of the pipe, which the agent closes in any
        # case, because it would otherwise never read the end of the output.
        try:
            pid, tag = self._start_process(prepared, writing, (self._null, self._inherited, self._inherited))
        except LaunchError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        return Started(pid, reading, tag)

    def spawn_with_stdin(self, prepared: Prepared, stdin: int) -> int:
        """Start a process that does not belong to a task, such as a fork server. Its output is discarded.

        Args:
            prepared: The command. The agent must still be in the folder that `prepare` has entered.
            stdin: The descriptor that becomes its standard input.

        Returns:
            The pid.

        Raises:
            LaunchError: No process was started.
        """
        pid, _ = self._start_process(prepared, stdin, (self._inherited, self._null, self._null))
        return pid

    def new_tag(self) -> int:
        """Return a process tag that no other process of this agent has."""
        self._count += 1
        return processes.tag(self._agent, self._count)

    def _start_process(self, prepared: Prepared, inherited: int, streams: Sequence[int]) -> Tuple[int, int]:
        """Start a process in a session of its own, with the limits of a task and a new process tag.

        A process inherits its limits and its tag from the agent, which sets them for this moment.

        Args:
            prepared: The command.
            inherited: A descriptor that the process gets wherever ``streams`` contains `_inherited`.
            streams: The stdin, stdout and stderr of the process: each is `_null` or `_inherited`.

        Returns:
            The pid, and the process tag or 0 if this user may not set one.

        Raises:
            LaunchError: The kernel refuses to run the program.
        """
        # posix_spawn refuses descriptors above the task's limit of open files. So the one that the process
        # inherits takes the place of a low one for the moment.
        os.dup2(inherited, self._inherited, inheritable=False)
        # The tag, by which the processes of a task are found, is one of the limits that they inherit.
        tag = self.new_tag()
        try:
            with self.limits.of_task(tag) as is_tagged:
                if self.tracer:
                    pid = _fork(prepared, streams, self.tracer)
                else:
                    pid = os.posix_spawn(
                        prepared.path,
                        prepared.argv,
                        prepared.environment,
                        file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)],
                        setsid=True,
                        # The agent blocks or ignores some signals, but a task must not.
                        setsigmask=(),
                        setsigdef=_ALL_SIGNALS,
                    )
        except (OSError, ValueError) as error:
            raise _start_error(error, prepared.argv[0], prepared.path) from error
        finally:
            # While the agent itself holds the writing end of a pipe, it never reads the end of the output.
            os.dup2(self._null, self._inherited, inheritable=False)
        return pid, tag if is_tagged else 0


def _fork(prepared: Prepared, streams: Sequence[int], tracer: int) -> int:
    """Start a process as posix_spawn does in `Spawner`, and let another process trace it, which needs a fork.

    Args:
        prepared: The command.
        streams: The stdin, stdout and stderr of the process.
        tracer: The pid of the process that may trace it to show its stacks, which is the agent.

    Returns:
        The pid.

    Raises:
        OSError: The kernel refuses to run the program.
    """
    # The program closes the pipe when it starts. Otherwise the number of the error comes through it.
    reading, writing = os.pipe()
    # A handler of the agent must not run in the fork.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _exec(prepared, streams, tracer, writing)  # It never returns.
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(writing)
        with open(reading, "rb") as pipe:
            number = pipe.read()
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return pid


def _exec(prepared: Prepared, streams: Sequence[int], tracer: int, error_pipe: int) -> NoReturn:
    """Become a program, in a fork of the agent. If that fails, write the number of the error for `_fork`."""
    # This stands for an error without a number, such as a NUL in an argument.
    number = errno.EINVAL
    try:
        os.setsid()
        for stream, fd in enumerate(streams):
            os.dup2(fd, stream)
        for ignored in _ALL_SIGNALS:
            signal.signal(ignored, signal.SIG_DFL)
        # The agent may trace the task to show its stacks. Without its permission the kernel may refuse that.
        processes.admit_tracer(tracer)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(prepared.path, prepared.argv, prepared.environment)
    except OSError as error:
        number = error.errno or number
    finally:
        os.write(error_pipe, str(number).encode())
        os._exit(1)


def _enter_workdir(start_folder: int, workdir: Optional[str]) -> None:
    """Change to the working folder of a task that is about to start, because posix_spawn cannot do that.

    Args:
        start_folder: A descriptor of the folder in which the agent was started.
        workdir: The folder, see `Spawner.prepare`.

    Raises:
        NotRunnableError: The folder cannot be entered.
    """
    try:
        # The agent may still be in the folder of an earlier task. A relative path begins in the start folder.
        os.chdir(start_folder)
        if workdir is not None:
            os.chdir(os.path.expanduser(workdir))
    except (OSError, ValueError) as error:
        why = f"cannot enter the working folder {workdir!r}: {_reason(error)}"
        raise NotRunnableError(why) from error


def _name_of_folder(inherited: str, workdir: Optional[str]) -> str:
    """Return the value of PWD for the current folder, by the name that the user gave to it.

    Shells and programs such as ``make`` trust PWD, and keep the name of a link to a folder.

    Args:
        inherited: The PWD of the agent, which may name another folder.
        workdir: The folder that the agent has entered for the task, see `Spawner.prepare`.
    """
    below_inherited = os.path.normpath(os.path.join(inherited, os.path.expanduser(workdir or "")))
    # A name counts only if it leads to the current folder.
    for name in (inherited, below_inherited):
        with suppress(OSError, ValueError):
            if os.path.isabs(name) and os.path.samefile(name, "."):
                return name
    return os.getcwd()


def _start_error(error: Exception, name: str, path: str) -> LaunchError:
    """Return the error for a program that cannot be started, with advice where there is any.

    Args:
        error: Why posix_spawn failed.
        name: The program, as the user named it.
        path: The file of the program.
    """
    # It is no OSError if an argument or a variable contains a NUL.
    code = error.errno if isinstance(error, OSError) else None
    if code in _NOT_RUNNABLE_REASONS:
        return NotRunnableError(f"{name!r} {_fault_of_first_line(code, path) or _NOT_RUNNABLE_REASONS[code]}")
    return LaunchError(f"{name!r} cannot be started: {_reason(error)}")


def _fault_of_first_line(code: Optional[int], path: str) -> str:
    """Return why the kernel cannot use the ``#!`` line of a script.

    Args:
        code: The error number of the kernel.
        path: The file of the script.

    Returns:
        An empty text if the line is not at fault, or if the file is not a script.
    """
    try:
        with open_regular(path) as file:
            line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return ""
    if code == errno.ENOEXEC and line.startswith(_BYTE_ORDER_MARK + b"#!"):
        return (
            "cannot be run: a byte order mark stands before its #! line:"
            r" sed -i '1s/^\xEF\xBB\xBF//' FILE removes it"
        )
    # The kernel reports a missing or forbidden interpreter by the same numbers as a missing program.
    may_be_interpreter = code in (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
    # After the #! comes the interpreter, and perhaps an argument for it.
    words = line[2:].strip(b" \t").replace(b"\t", b" ").split(b" ")
    if not may_be_interpreter or not line.startswith(b"#!") or not words[0]:
        return ""
    interpreter = os.fsdecode(words[0])
    if interpreter.endswith("\r"):
        return (
            f"cannot be run: its first line names the interpreter {interpreter!r}, because its lines end as"
            r" on Windows: sed -i 's/\r$//' FILE makes them end as here"
        )
    missing = "cannot be executed" if os.path.exists(interpreter) else "is missing"
    return f"cannot be run: the interpreter {interpreter!r} in its first line {missing}"


def _reason(error: Exception) -> str:
    """Return why a program cannot be started, from the error of the attempt, for the user."""
    return why_not_started(error) if isinstance(error, OSError) else str(error)
