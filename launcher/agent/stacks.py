"""Takes the Python stacks of tasks, which go on meanwhile. The launcher lets an agent run it in a child.

The launcher sends the program of py-spy, which is a static one and so runs on any Linux of its processor. It
runs from memory, so that it leaves no file here. The agent itself must never wait for it. Everything that the
launcher gets from here is bounded, because tasks decide about the depth and the names of their functions.
"""

import errno
import hashlib
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Tuple

from launcher.agent import processes
from launcher.common.errors import LaunchError
from launcher.common.trusted_io import memory_file

_MAX_SIDE_BY_SIDE = 4
#: The largest numbers of processes of a task, of threads, of frames of a thread, and of characters of a text.
_MAX_PROCESSES, _MAX_THREADS, _MAX_FRAMES, _MAX_CHARACTERS = 8, 20, 100, 200
#: The most that py-spy may print about one process, and this program about one task.
_MAX_PRINTED_BYTES, _MAX_TASK_BYTES = 4 << 20, 32 << 10
#: A file of the program that belongs to Python, or of its library.
_PYTHON_FILE = re.compile(r"/(lib)?python[\d.]*[a-z]*(\.so[\d.]*)?( \(deleted\))?$")
#: What allows py-spy to read a process, by the number in ``kernel.yama.ptrace_scope``.
_ADVICE = {
    "1": "Python is not the task's own process (`exec python` in its script makes it that);"
    " `sysctl kernel.yama.ptrace_scope=0` on {} allows all",
    "2": "`sysctl kernel.yama.ptrace_scope=1` on {} allows it",
    "3": "kernel.yama.ptrace_scope is 3 on {}, which only a restart without it changes",
}
_OTHER_ADVICE = "{} forbids ptrace; in a container, `--cap-add SYS_PTRACE` allows it"


def take(arguments: Mapping[str, Any]) -> int:
    """Print the Python stacks of tasks as JSON, one object for each task.

    The program of py-spy comes from stdin, compressed by zlib.

    Args:
        arguments: The pid of each task in ``tasks``; the ``size`` of what comes from stdin; the ``sha256`` of
            the program and the ``machine`` that it was built for; and how many ``seconds`` this may take.
    """
    until = time.monotonic() + arguments["seconds"]
    try:
        program = _receive_py_spy(arguments)
        # py-spy, which prints to a file, inherits this limit. Our own output goes to a pipe, which has none.
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_PRINTED_BYTES, _MAX_PRINTED_BYTES))
        pids = {task: _pythons_of(pid) for task, pid in arguments["tasks"].items()}
        with ThreadPoolExecutor(_MAX_SIDE_BY_SIDE) as pool:
            dumps = {
                task: [pool.submit(_dump, program, pid, until) for pid in of_task]
                for task, of_task in pids.items()
            }
        answers = [_answer(task, [dump.result() for dump in of_task]) for task, of_task in dumps.items()]
    except (LaunchError, OSError) as error:
        answers = [{"tasks": [*arguments["tasks"]], "threads": [], "note": str(error)}]
    sys.stdout.write(json.dumps(answers))
    return 0


def _receive_py_spy(arguments: Mapping[str, Any]) -> int:
    """Read the compressed program of py-spy from stdin, to which the launcher sends it.

    Args:
        arguments: ``machine``, the processor for which the program is, as uname names it. ``size``, the
            compressed size in bytes. ``sha256``, the checksum of the program.

    Returns:
        The descriptor of a file in memory that contains the program, from which it can be run.

    Raises:
        LaunchError: The program is for another processor, or has not arrived as it was sent.
    """
    machine = os.uname().machine
    if machine != arguments["machine"]:
        raise LaunchError(f"py-spy beside launch is for {arguments['machine']}, and this host is {machine}")
    with open(0, "rb", closefd=False) as stdin:
        received = stdin.read(arguments["size"])
    try:
        program = zlib.decompress(received)
    except zlib.error:
        program = b""
    if hashlib.sha256(program).hexdigest() != arguments["sha256"]:
        raise LaunchError("the program of py-spy did not arrive as it was sent")
    fd = memory_file("py-spy")
    with open(fd, "wb", closefd=False) as file:
        file.write(program)
    # A program cannot be run while a descriptor is open by which it can be written to.
    read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return read_only


def _pythons_of(pid: int) -> List[int]:
    """Return the Python processes of a task: its own process, or those below it if that is no Python."""
    # Another process may have got the pid of a task that has ended. A task is a child of our agent.
    process = processes.read_process(pid)
    if process is None or process.parent != os.getppid():
        return []
    if _runs_python(pid):
        return [pid]
    below = (each.pid for each in processes.descendants_of(pid))
    return [each for each in below if _runs_python(each)][:_MAX_PROCESSES]


def _runs_python(pid: int) -> bool:
    """Return whether a process runs a Python, or may run one, by the names of its program and libraries."""
    try:
        if _PYTHON_FILE.search(os.readlink(f"/proc/{pid}/exe")):
            return True
    except PermissionError:
        # This process may not read the other one. It counts as a Python, so py-spy is run for it: its
        # error lets `_explain` tell the user how to allow that.
        return True
    except OSError:
        return False
    return any(_PYTHON_FILE.search(line) for line in processes.lines_of(f"/proc/{pid}/maps"))


def _dump(program: int, pid: int, until: float) -> Tuple[int, bytes, bytes]:
    """Run py-spy for a process.

    Args:
        program: The descriptor of the program.
        pid: The process.
        until: When to give up (monotonic).

    Returns:
        The exit status of py-spy, which is negative if it was killed, what it printed, and its stderr.
    """
    argv = [f"/proc/self/fd/{program}", "dump", "--json", "--pid", str(pid)]
    found = processes.read_process(pid)
    # py-spy need not pause a process that is suspended, and cannot.
    argv += ["--nonblocking"] if found is not None and found.state == "T" else []
    with open(memory_file("stacks"), "w+b") as out, open(memory_file("errors"), "w+b") as errors:
        seconds, status = max(0.0, until - time.monotonic()), -signal.SIGKILL
        # A process that py-spy has stopped goes on when py-spy is killed.
        with suppress(subprocess.TimeoutExpired):
            null = subprocess.DEVNULL
            status = subprocess.call(
                argv, stdin=null, stdout=out, stderr=errors, pass_fds=[program], timeout=seconds
            )
        return status, os.pread(out.fileno(), _MAX_PRINTED_BYTES, 0), os.pread(errors.fileno(), 9999, 0)


def _answer(task: str, dumps: List[Tuple[int, bytes, bytes]]) -> Dict[str, Any]:
    """Return the stacks of a task for the launcher, or a note why there are none.

    Args:
        task: The task.
        dumps: What `_dump` returned for its processes.
    """
    threads: List[Dict[str, Any]] = []
    note = "" if dumps else "it is no Python program"
    for number, (status, printed, errors) in enumerate(dumps, 1):
        try:
            found = [_thread(thread) for thread in json.loads(printed)]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            note = note or _explain(status, errors.decode("utf-8", "replace"))
            continue
        found.sort(key=lambda thread: thread["name"] != "MainThread")
        if len(dumps) > 1:
            found = [{**thread, "name": f"{thread['name']} of process {number}"} for thread in found]
        threads += found
    del threads[_MAX_THREADS:]
    while len(threads) > 1 and len(json.dumps(threads)) > _MAX_TASK_BYTES:
        threads.pop()
    # A Python that ends, for example, has no stack.
    note = "" if threads else note or "no Python code runs in it"
    return {"tasks": [task], "threads": threads, "note": note}


def _thread(thread: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a thread of py-spy's JSON with what the launcher needs of it."""
    # If a fork server has forked the task, the frames from this name on are those of the fork server.
    of_program = itertools.takewhile(lambda frame: frame["filename"] != "launch-template", thread["frames"])
    frames = []
    for frame in itertools.islice(of_program, _MAX_FRAMES):
        file = os.path.basename(frame["filename"])[-_MAX_CHARACTERS:]
        frames.append(f"{frame['name'][:_MAX_CHARACTERS]} ({file}:{frame['line']})")
    # A program that has imported no module `threading` names no thread.
    name = thread["thread_name"] or ("MainThread" if thread["os_thread_id"] == thread["pid"] else "unnamed")
    return {"name": str(name)[:_MAX_CHARACTERS], "frames": frames}


def _explain(status: int, errors: str) -> str:
    """Return why py-spy could not read a process, and what allows it.

    Args:
        status: The exit status of py-spy, which is negative if it was killed.
        errors: What it printed to its stderr.
    """
    if status < 0:
        return "py-spy took too long"
    if os.strerror(errno.EPERM) in errors or "ermission" in errors:
        advice = _ADVICE.get(processes.ptrace_scope(), _OTHER_ADVICE).format(os.uname().nodename)
        return f"the kernel does not let py-spy read it: {advice}"
    first_line = (errors.strip().splitlines() or [f"exit code {status}"])[0]
    return f"py-spy cannot read it: {first_line[:_MAX_CHARACTERS]}"
