"""The bare shape of launch's output, in plain Python: ``shape.py N LOGS ARGV...``.

`bench.shapes` measures launch against it. It contains the pipes of tasks, a forked agent, frames, log files
and a console, and nothing else.
"""

import os
import struct
import sys

from floor import Printer, pieces, pipe, worst, write

_HEAD = struct.Struct("<II")
#: The largest number of buffers in one call of ``writev``.
_MOST = 1000


def agent(count: int, argv: list[str], out: int) -> int:
    """Start the tasks, and send each piece of their output after a head with its task and size.

    Args:
        count: The number of tasks.
        argv: Their command line.
        out: The descriptor of the pipe to the launcher.

    Returns:
        The highest exit code.
    """
    for found in pieces(count, argv):
        frames = [part for task, data in found for part in (_HEAD.pack(task, len(data)), data)]
        for at in range(0, len(frames), _MOST):
            write(out, frames[at : at + _MOST])
    return worst(count)


def launcher(count: int, logs: str, reading: int) -> None:
    """Write each task's output to its log and, with a prefix for each line, to stdout.

    Args:
        count: The number of tasks.
        logs: The folder for the logs.
        reading: The descriptor of the pipe from the agent.
    """
    files = [os.open(f"{logs}/{index}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for index in range(count)]
    printers = [Printer(b"worker/%d | " % index) for index in range(count)]
    while head := os.read(reading, _HEAD.size):
        while len(head) < _HEAD.size:
            head += os.read(reading, _HEAD.size - len(head))
        task, size = _HEAD.unpack(head)
        while size:  # The agent may still be writing the piece.
            data = os.read(reading, size)
            size -= len(data)
            os.write(files[task], data)
            printers[task].show(data)
    for printer in printers:
        printer.close()


def main() -> int:
    """Fork the agent, run the launcher, and return the exit code of the agent."""
    count, logs, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    reading, writing = pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os._exit(agent(count, argv, writing))
    os.close(writing)
    launcher(count, logs, reading)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
