"""The template process: imports modules once; tasks are forked from it, with these modules loaded.

The tasks' Python (3.8 or later) runs the text of this module, so it imports the standard library only. Each
message on the socket to the agent is a packet:

    agent:     the text of this module; the names of the modules, as JSON
    template:  its new pid when they are imported; else why no task can be forked
    agent:     a `Request`, with two descriptors: the task's output, and ``go``
    template:  the pid of the task; else why it can't be forked

The task is forked twice, so that the agent, a subreaper, becomes its parent. It waits for a byte on ``go``,
which the agent sends when it knows the pid; at the end of ``go`` it exits.
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

#: What the template's Python runs: before any import it takes the working folder off the path, where that is
#: not safe (Python 3.11); then it reads this module from its stdin, the socket.
LOADER = (
    "import sys\n"
    "if not getattr(sys.flags, 'safe_path', False): del sys.path[0]\n"
    "import os\n"
    "exec(compile(os.read(0, 1 << 20), 'launch-template', 'exec'), {'__name__': 'template'})"
)
#: The template's last argument. Process lists show the memory of the arguments: a forked task writes its own
#: command line there, which may be as long as this.
PADDING = " " * 2000
#: Largest packet, in bytes.
_MAX_PACKET_BYTES = 1 << 20
#: Threads that a process may have when it forks: the main one, and one of a numerical library.
_MAX_THREADS = 2

Request = Dict[str, Any]


def run() -> None:
    """Import the modules; in each fork, become the task that the agent asks for."""
    given = {entry.partition(b"=")[0] for entry in _read("/proc/self/environ").split(b"\0")}
    link = socket.socket(fileno=os.dup(0))
    _replace(os.open(os.devnull, os.O_RDONLY), 0)
    _replace(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    _import(link, json.loads(link.recv(_MAX_PACKET_BYTES)))
    importlib.invalidate_caches()  # a task finds files that are made later
    gc.collect()
    gc.freeze()
    _continue_in_fork(link)
    added = {name: value for name, value in os.environb.items() if name not in given}
    link.send(str(os.getpid()).encode())
    request = _serve(link)
    link.close()
    _prepare(request, added)
    _become(request)


def _import(link: socket.socket, modules: Sequence[str]) -> None:
    """Import modules; if one fails, in whatever way, tell the agent and exit."""
    _show_as(["launch-template", *modules])
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        kind, error, _ = sys.exc_info()
        if kind is not None:
            link.send(f"{kind.__name__}: {error}".encode("utf-8", "replace")[:2000])
            os._exit(1)


def _continue_in_fork(link: socket.socket) -> None:
    """Go on in a fork; the agent ends this process.

    The fork has not mapped what only loading needs, such as half of TensorFlow's library. A first fork is for
    libraries that handle forks (OpenBLAS): they end their threads then, and start them when needed.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    _check_threads(link)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)


def _check_threads(link: socket.socket) -> None:
    """If other threads run in this process, tell the agent and exit: a fork would lack them, and hang."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > _MAX_THREADS:
        link.send(f"{threads} threads run after the import, and a fork has none of them".encode())
        os._exit(1)


def _serve(link: socket.socket) -> Request:
    """Fork a task for each request; returns in each task. Ends the process when the agent is gone."""
    while True:
        data, ancillary, _, _ = link.recvmsg(_MAX_PACKET_BYTES, socket.CMSG_SPACE(8))
        if not data:
            os._exit(0)
        fds = array.array("i", ancillary[0][2])
        _check_threads(link)
        request: Request = json.loads(data)
        pid = _fork(request["tag"], fds)
        if pid is None:
            return request
        for fd in fds:
            os.close(fd)
        link.send(str(pid).encode() if pid else b"no process is left for a task")


def _fork(tag: int, fds: Sequence[int]) -> Optional[int]:
    """Fork a task whose parent is the agent, not this process.

    Returns:
        Its pid; 0: none could be made; ``None``: this is the task, and the agent lets it go on.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        task = False
        try:
            os.close(reading)
            _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
            resource.setrlimit(resource.RLIMIT_RTTIME, (tag, hard))
            task = os.fork() == 0 and _may_go(writing, *fds)
        finally:
            if not task:
                os._exit(0)
        return None
    os.close(writing)
    answer = os.read(reading, 32)
    os.close(reading)
    os.waitpid(child, 0)  # now the agent is the task's parent
    return int(answer or 0)


def _may_go(answer: int, output: int, go: int) -> bool:
    """Make this fork a task with a session and its output; wait until the agent knows it.

    Returns:
        Whether the agent has accepted it.
    """
    os.setsid()
    os.write(answer, str(os.getpid()).encode())
    os.close(answer)
    os.dup2(output, 1)
    _replace(output, 2)
    accepted = os.read(go, 1)
    os.close(go)
    return bool(accepted)


def _prepare(request: Request, added: Dict[bytes, bytes]) -> None:
    """Give this process the environment of the task, and what else a Python of its own would have.

    Args:
        request: Of the agent.
        added: Variables that Python and the modules have set.
    """
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for name, value in added.items():
        os.environb.setdefault(name, value)
    _show_as(request["argv"])
    sys.orig_argv = list(request["argv"])
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()  # else every task has the same random numbers


def _show_as(argv: List[str]) -> None:
    """Show the task's command line in process lists, cut to the size of the template's arguments."""
    with suppress(OSError, ValueError):
        fields = _read("/proc/self/stat").rpartition(b") ")[2].split()
        start, end = int(fields[45]), int(fields[46])
        shown = b"\0".join(map(os.fsencode, argv))[: end - start - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(shown.ljust(end - start, b"\0"))


def _become(request: Request) -> None:
    """Run the program as Python's own command line does; its end is that of this Python.

    A traceback shows only the frames that a cold start has.
    """
    prepare, program = _program(*request["argv"][1:])
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, prepare)
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        own, hook = _without_ours(error.__traceback__), sys.excepthook
        sys.excepthook = lambda kind, error, _: hook(kind, error.with_traceback(own), own)
        raise


def _program(first: str, *rest: str) -> Tuple[str, Callable[[], object]]:
    """Return the entry of ``sys.path`` for a command line of Python, and a function that runs its program."""
    if first == "-m":
        sys.argv = ["-m", *rest[1:]]
        return os.getcwd(), lambda: runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    main = sys.modules["__main__"].__dict__
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        return "", lambda: exec(compile(rest[0], "<string>", "exec", dont_inherit=True), main)
    sys.argv = [first, *rest]
    file = os.path.join(os.getcwd(), first) if sys.version_info >= (3, 9) else first
    main.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    return os.path.dirname(os.path.realpath(first)), lambda: exec(_compiled(file), main)


def _compiled(file: str) -> Any:
    with open(file, "rb") as source:
        return compile(source.read(), file, "exec", dont_inherit=True)


def _without_ours(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    while traceback is not None and traceback.tb_frame.f_globals is globals():
        traceback = traceback.tb_next
    return traceback


def _replace(fd: int, number: int) -> None:
    os.dup2(fd, number)
    os.close(fd)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "template":
    run()
