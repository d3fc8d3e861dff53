"""The floor, the least a Python program can do: ``floor.py spawn N ARGV...``, ``floor.py copy N ARGV...``.

The measurements start it as one of the contenders. Its pipes hold 1 MiB where the system allows that, and it
copies no byte more often than prefixes need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

#: The bytes of a pipe.
_PIPE = 1 << 20
#: The bytes of one read, which fit into the cache of a core.
_READ = 128 * 1024
#: A line of at least this number of bytes is printed in pieces.
_LONG = 64 * 1024


class Printer:
    """A printer of the lines of a task, which puts a prefix before each. A long line is printed in pieces.

    Args:
        prefix: The prefix.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix, self._newline, self._rest = prefix, b"\n" + prefix, b""

    def show(self, data: bytes) -> None:
        """Print the lines that are complete now, and keep the rest."""
        text = data.replace(b"\n", self._newline)
        cut = text.rfind(b"\n") + 1
        if cut:
            write(1, [self._prefix, self._rest, memoryview(text)[:cut]])
            self._rest = text[cut + len(self._prefix) :]
        elif len(self._rest) + len(text) < _LONG:
            self._rest += text
        else:
            write(1, [self._prefix, self._rest, text, b"\n"])
            self._rest = b""

    def close(self) -> None:
        """Print a last line without an end."""
        if self._rest:
            write(1, [self._prefix, self._rest, b"\n"])


def write(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all parts to a descriptor."""
    sent = os.writev(fd, parts)
    if sent < sum(map(len, parts)):
        rest = memoryview(b"".join(parts))[sent:]
        while rest:
            rest = rest[os.write(fd, rest) :]


def pipe() -> tuple[int, int]:
    """Make a large pipe, and return the descriptors of its reading and its writing end."""
    import fcntl

    reading, writing = os.pipe()
    try:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE)
    except PermissionError:  # the user has too many: it keeps its 64 KiB
        pass
    return reading, writing


def start(index: int, argv: list[str], output: int | None = None) -> int:
    """Start a task, and return its pid.

    Args:
        index: The index of the task, for its environment.
        argv: The command line of the task.
        output: The descriptor of its stdout. By default it is that of this process.
    """
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]  # type: ignore[list-item]
    if output is not None:
        actions.append((os.POSIX_SPAWN_DUP2, output, 1))
    environment = {**os.environ, "TASK_INDEX": str(index)}
    return os.posix_spawnp(argv[0], argv, environment, file_actions=actions)


def pieces(count: int, argv: list[str]) -> Iterator[list[tuple[int, bytes]]]:
    """Start tasks, and yield what they print as it arrives.

    Args:
        count: The number of tasks.
        argv: Their command line.

    Yields:
        Pairs of the index of a task and the bytes that it has printed.
    """
    import select

    epoll = select.epoll()
    tasks = {}
    for index in range(count):
        reading, writing = pipe()
        start(index, argv, writing)
        os.close(writing)
        tasks[reading] = index
        epoll.register(reading, select.EPOLLIN)
    while tasks:
        found = []
        for fd, _ in epoll.poll():
            data = os.read(fd, _READ)
            if data:
                found.append((tasks[fd], data))
            else:
                epoll.unregister(fd)
                del tasks[fd]
        yield found


def spawn(count: int, argv: list[str]) -> int:
    """Start tasks, and wait for all of them. If one fails, send SIGTERM to the others.

    Returns:
        The exit code of the first task that has failed, or 0.
    """
    tasks = {start(index, argv) for index in range(count)}
    first = 0
    while tasks:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        tasks.remove(pid)
        if code and not first:
            first = code
            for task in tasks:
                os.kill(task, 15)
    return first


def worst(count: int) -> int:
    """Wait for a number of child processes, and return the highest exit code."""
    return max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(count))


def copy(count: int, argv: list[str]) -> int:
    """Start tasks, print their lines with a prefix, and return the highest exit code."""
    printers = [Printer(b"task %d | " % index) for index in range(count)]
    for found in pieces(count, argv):
        for index, data in found:
            printers[index].show(data)
    for printer in printers:
        printer.close()
    return worst(count)


if __name__ == "__main__":
    kind = {"spawn": spawn, "copy": copy}[sys.argv[1]]
    sys.exit(kind(int(sys.argv[2]), sys.argv[3:]))
