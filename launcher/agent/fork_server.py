"""The program of a fork server: it imports modules once, then forks tasks that have them already.

`launcher.agent.fork_servers` sends the text of this module to the tasks' Python (3.8 or later), so it may
import nothing but the standard library. These packets pass over the socket to the agent:

    agent:        the text of this module, then the names of the modules as JSON
    fork server:  its new pid when they are imported, or the reason why no task can be forked
    agent:        a `Request` with two descriptors: the output of a task, and ``go``
    fork server:  the pid of the task, or the reason why it cannot be forked

A task is forked twice, so that the agent, which is a subreaper, becomes its parent. The task waits for a byte
on ``go``, which the agent sends when it knows the pid. If ``go`` is closed instead, the task exits.
"""

import array
import gc
import importlib
import json
import os
import resource
import runpy
import socket
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

#: What the Python of a fork server runs. Before any import it removes the working folder from ``sys.path``,
#: unless that is not there (``safe_path`` of Python 3.11). Then it reads this module from its stdin, which is
#: the socket.
LOADER = (
    "import sys\n"
    "if not getattr(sys.flags, 'safe_path', False): del sys.path[0]\n"
    "import os\n"
    "exec(compile(os.read(0, 1 << 20), 'launch-template', 'exec'), {'__name__': 'template'})"
)
#: The last argument of a fork server. Process lists show the memory of the arguments, and a forked task
#: writes its own command line there, which may be as long as this.
PADDING = " " * 2000
_MAX_PACKET_BYTES = 1 << 20
# It lets a process and its descendants trace this one, which takes its stacks.
_PR_SET_PTRACER = 0x59616D61
# A process may fork while it has its main thread and one idle thread of a numerical library.
_MAX_THREADS = 2

Request = Dict[str, Any]


def run() -> None:
    """Be a fork server: import the modules, then fork a task for each request of the agent.

    This returns only in the forked tasks, after their program has run.
    """
    # The names of the variables that the agent has passed, to tell below which ones Python and the imports
    # have added. Python may have changed os.environ already, but the kernel still has what the agent passed.
    initial_names = {entry.partition(b"=")[0] for entry in _read("/proc/self/environ").split(b"\0")}
    # Before: 0 is the socket to the agent. After: `link` is the socket, and 0, 1 and 2 are ``/dev/null``.
    link = socket.socket(fileno=os.dup(0))
    _replace(os.open(os.devnull, os.O_RDONLY), 0)
    _replace(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    _import(link, json.loads(link.recv(_MAX_PACKET_BYTES)))
    # Otherwise a task would not find modules whose files are made later.
    importlib.invalidate_caches()
    # The garbage collector of a task need not visit, and so copy, what all tasks share.
    gc.collect()
    gc.freeze()
    # The rest runs in a fork, without the memory that only the imports needed. The agent gets its pid.
    _continue_in_fork(link)
    # The variables that the imports have set, which each task gets, too.
    added = {name: value for name, value in os.environb.items() if name not in initial_names}
    link.send(str(os.getpid()).encode())
    request = _serve(link)
    # From here on this is the process of a task.
    link.close()
    _prepare(request, added)
    _run_program(request)


def _import(link: socket.socket, modules: Sequence[str]) -> None:
    """Import modules. If one of them fails, even by SystemExit, tell the agent why and exit.

    Args:
        link: The socket to the agent.
        modules: The names of the modules.
    """
    _show_as(["launch-template", *modules])
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        # No exception is under way here if all imports have succeeded. The traceback is not reported.
        kind, error, _ = sys.exc_info()
        if kind is not None:
            link.send(f"{kind.__name__}: {error}".encode("utf-8", "replace")[:2000])
            os._exit(1)


def _continue_in_fork(link: socket.socket) -> None:
    """Fork, and return in the child only. The agent kills this process when it knows the child.

    The child does not map the memory that was needed only for loading, such as half of TensorFlow's library.
    Before that, another fork lets libraries that handle forks (OpenBLAS) stop their threads. They start them
    again when they need them.
    """
    # This fork only calls the fork handlers of the libraries.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    # A thread that still runs now would be missing in the next fork, whose child does the work.
    _check_threads(link)
    pid = os.fork()
    # The parent does nothing but wait here until it is killed.
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)


def _check_threads(link: socket.socket) -> None:
    """Check that this process may fork, otherwise tell the agent and exit.

    A fork lacks all other threads of this process, and would hang if it waited for one of them.

    Args:
        link: The socket to the agent. After a text, which is the reason, the agent gives this process up.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads > _MAX_THREADS:
        link.send(f"{threads} threads run after the import, and a fork has none of them".encode())
        os._exit(1)


def _serve(link: socket.socket) -> Request:
    """Fork a task for each request of the agent, and exit when the agent is gone.

    Args:
        link: The socket to the agent, which is sent the pid of each task, or the reason why there is none.

    Returns:
        The request, and only in the forked task. The fork server itself never returns.
    """
    while True:
        data, ancillary, _, _ = link.recvmsg(_MAX_PACKET_BYTES, socket.CMSG_SPACE(8))
        # No bytes mean that the agent has closed its end, or has ended.
        if not data:
            os._exit(0)
        # The agent passes two descriptors along with each request.
        fds = array.array("i", ancillary[0][2])
        # A thread that a module has started meanwhile would be missing in the fork.
        _check_threads(link)
        request: Request = json.loads(data)
        pid = _fork(request["tag"], fds)
        # Only the task gets None.
        if pid is None:
            return request
        # The agent notices the end of the output only if this process does not hold it open, too.
        for fd in fds:
            os.close(fd)
        link.send(str(pid).encode() if pid else b"no process is left for a task")


def _fork(tag: int, fds: Sequence[int]) -> Optional[int]:
    """Fork a task whose parent becomes the agent, by a child of this process that forks the task and exits.

    Args:
        tag: The process tag of the task, a number by which the agent recognizes all of its processes.
        fds: Two descriptors from the agent: the output of the task, and ``go``.

    Returns:
        In this process, the pid of the task, or 0 if it could not be forked. In the task, None, as soon as
        the agent lets it run.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        is_task = False
        try:
            os.close(reading)
            # The process tag is the soft limit RLIMIT_RTTIME, which the task inherits.
            _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
            resource.setrlimit(resource.RLIMIT_RTTIME, (tag, hard))
            # The task waits until the agent has noted it, so that no part of its program runs unwatched.
            # The first operand is true in the task only. The child that has forked it goes on to exit.
            is_task = os.fork() == 0 and _await_permission(writing, *fds)
        finally:
            # The child that has forked the task exits here, and so does a task that may not run.
            if not is_task:
                os._exit(0)
        return None
    os.close(writing)
    # The task writes its pid. If there is no task, the pipe is closed without a byte.
    answer = os.read(reading, 32)
    os.close(reading)
    # When its parent has exited, the task belongs to the agent.
    os.waitpid(child, 0)
    return int(answer or 0)


def _await_permission(pid_pipe: int, output: int, go: int) -> bool:
    """Give this task a session and its output, report its pid, and wait until the agent lets it run.

    Args:
        pid_pipe: The pipe to the fork server, to which our pid is written.
        output: The descriptor that becomes stdout and stderr.
        go: A descriptor from which a byte can be read when the agent knows the task. If it reaches
            end-of-file instead, the task must not run.

    Returns:
        Whether the agent lets the task run.
    """
    # A task leads its own session and process group, by which it is stopped.
    os.setsid()
    os.write(pid_pipe, str(os.getpid()).encode())
    os.close(pid_pipe)
    os.dup2(output, 1)
    _replace(output, 2)
    permission = os.read(go, 1)
    os.close(go)
    return bool(permission)


def _prepare(request: Request, added: Dict[bytes, bytes]) -> None:
    """Give this process the folder, the environment and the command line of its task.

    Args:
        request: The request of the agent.
        added: Environment variables that Python and the imported modules have set. They stay set.
    """
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # A variable that the user has set for the task has priority.
    for name, value in added.items():
        os.environb.setdefault(name, value)
    _show_as(request["argv"])
    # The kernel may let only an admitted process (the agent) read the stacks of this one: Yama's
    # ptrace_scope.
    if request["tracer"]:
        import ctypes  # noqa: PLC0415 - the program itself may not need it

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(request["tracer"]), 0, 0, 0)
    # Python 3.10 and later set this for a program that they start.
    sys.orig_argv = list(request["argv"])
    if numpy := sys.modules.get("numpy.random"):
        # A generator that was made before the fork would give all tasks the same random numbers.
        numpy.seed()


def _show_as(argv: List[str]) -> None:
    """Change the command line of this process in process lists.

    Args:
        argv: The command line. It is cut to the size of the fork server's arguments, see `PADDING`.
    """
    with suppress(OSError, ValueError):
        # arg_start and arg_end of proc_pid_stat(5): where the kernel reads the command line in our memory.
        fields = _read("/proc/self/stat").rpartition(b") ")[2].split()
        start, end = int(fields[45]), int(fields[46])
        shown = b"\0".join(map(os.fsencode, argv))[: end - start - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(shown.ljust(end - start, b"\0"))


def _run_program(request: Request) -> None:
    """Run the program of the task as Python's own command line does.

    A traceback shows the frames of the program only, as if it had been started by itself.

    Args:
        request: The request of the agent. Its ``argv`` is the command line of a Python.
    """
    # The first argument is the Python itself.
    import_folder, program = _program(*request["argv"][1:])
    # Python before 3.11 has no ``-P``, which keeps this folder out of the path.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, import_folder)
    try:
        program()
    except SystemExit:
        # Python exits with its code, and shows no traceback.
        raise
    except BaseException as error:
        # Python itself prints the traceback when the error has left this function. The hook shortens it.
        shown, hook = _without_launcher_frames(error.__traceback__), sys.excepthook
        sys.excepthook = lambda kind, error, _: hook(kind, error.with_traceback(shown), shown)
        raise


def _program(first: str, *rest: str) -> Tuple[str, Callable[[], object]]:
    """Interpret the command line of a Python, ``-m MODULE``, ``-c CODE`` or a file, and set ``sys.argv``.

    Args:
        first: The first argument after the interpreter.
        rest: All further arguments.

    Returns:
        The folder that belongs at the front of ``sys.path``, and a function that runs the program.
    """
    if first == "-m":
        # `runpy` replaces the first one by the path of the module.
        sys.argv = ["-m", *rest[1:]]
        return os.getcwd(), lambda: runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    # The program runs in the namespace of the main module, as it does when Python starts it.
    main = sys.modules["__main__"].__dict__
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        return "", lambda: exec(compile(rest[0], "<string>", "exec", dont_inherit=True), main)
    sys.argv = [first, *rest]
    # Since 3.9, Python makes the path of the program absolute.
    file = os.path.join(os.getcwd(), first) if sys.version_info >= (3, 9) else first
    main.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    return os.path.dirname(os.path.realpath(first)), lambda: exec(_compiled(file), main)


def _compiled(file: str) -> Any:
    """Return the code of a Python file, compiled as if it were run by itself."""
    with open(file, "rb") as source:
        return compile(source.read(), file, "exec", dont_inherit=True)


def _without_launcher_frames(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    """Return a traceback without its first frames, which belong to this module."""
    while traceback is not None and traceback.tb_frame.f_globals is globals():
        traceback = traceback.tb_next
    return traceback


def _replace(fd: int, number: int) -> None:
    """Move a descriptor to a number, and close what had this number."""
    os.dup2(fd, number)
    os.close(fd)


def _read(path: str) -> bytes:
    """Return the content of a file."""
    with open(path, "rb") as file:
        return file.read()


if __name__ == "template":
    run()
