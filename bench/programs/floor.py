"""The floor, the least a Python program can do: ``floor.py spawn N ARGV...``, ``floor.py copy N ARGV...``."""

import os
import selectors
import subprocess
import sys

_READ = 256 * 1024


def _start(index: int, argv: list[str], stdout: int | None = None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TASK_INDEX": str(index)}
    return subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=stdout)


def spawn(count: int, argv: list[str]) -> int:
    """Start ``count`` processes and wait for each; if one fails, end the others."""
    tasks = {task.pid: task for task in (_start(index, argv) for index in range(count))}
    first = 0
    while tasks:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        tasks.pop(pid).returncode = code
        if code and not first:
            first = code
            for task in tasks.values():
                task.terminate()
    return first


def copy(count: int, argv: list[str]) -> int:
    """Start ``count`` processes, print their lines with a prefix."""
    selector = selectors.DefaultSelector()
    tasks = [_start(index, argv, subprocess.PIPE) for index in range(count)]
    rests = [b""] * count
    for index, task in enumerate(tasks):
        assert task.stdout is not None
        selector.register(task.stdout.fileno(), selectors.EVENT_READ, index)
    while selector.get_map():
        for key, _ in selector.select():
            data = os.read(key.fd, _READ)
            if data:
                rests[key.data] = _print(b"task %d | " % key.data, rests[key.data] + data)
            else:
                selector.unregister(key.fd)
    return max(task.wait() for task in tasks)


def _print(prefix: bytes, data: bytes) -> bytes:
    """Print the whole lines of ``data``; return the rest."""
    cut = data.rfind(b"\n") + 1
    if cut:
        text = memoryview(prefix + data[: cut - 1].replace(b"\n", b"\n" + prefix) + b"\n")
        while text:
            text = text[os.write(1, text) :]
    return data[cut:]


if __name__ == "__main__":
    kind = {"spawn": spawn, "copy": copy}[sys.argv[1]]
    sys.exit(kind(int(sys.argv[2]), sys.argv[3:]))
