"""What the measured tasks run.

    task.py print FOLDER N
    task.py flood SIZE BLOCK LINE
    task.py wait FOLDER [CHILDREN]

The contenders start it. It must start fast (10 ms with ``python -I -S``), so it imports little. The program
that starts it passes the number of the task.
"""

import os
import sys
import time

#: The variables with the number of a task: that of launch, honcho and the floor, of Open MPI, of torchrun.
_NUMBERS = ("TASK_INDEX", "OMPI_COMM_WORLD_RANK", "RANK")
#: The number of the task that fails, and its exit code.
_FAILING, _CODE = 1, 7
_BLOCK = 64 * 1024
#: The time limit for a task to wait for the others.
_TIME_LIMIT = 300.0


def print_lines(folder: str, tasks: int) -> None:
    """Print the lines of this task in blocks, and return when all tasks have printed theirs.

    honcho stops all tasks when the first task exits, so no task may exit before.
    """
    number = _number()
    with open(f"{folder}/lines.{number}", "rb") as file:
        text = memoryview(file.read())
    while text:
        text = text[os.write(1, text[:_BLOCK]) :]
    _touch(f"{folder}/printed.{number}")
    end = time.monotonic() + _TIME_LIMIT
    while time.monotonic() < end and not all(os.path.exists(f"{folder}/printed.{i}") for i in range(tasks)):
        time.sleep(0.002)


def wait(folder: str, children: bool) -> None:
    """Wait until the bench lets the failing task fail. All other tasks sleep.

    Args:
        folder: The folder for the pids of tasks, and for the time of the failure.
        children: Whether this task starts two sleeping children.
    """
    number = _number()
    if children:
        os.spawnv(os.P_NOWAIT, "/bin/sh", ["sh", "-c", "sleep 600 & sleep 600"])
    _touch(f"{folder}/up.{number}", str(os.getpid()))
    if number != _FAILING:
        time.sleep(600)
        return
    failed = os.open(f"{folder}/failed", os.O_WRONLY | os.O_CREAT)
    with open(f"{folder}/go", "rb") as go:  # a FIFO
        go.read()
    os.write(failed, b"%d" % time.monotonic_ns())
    os._exit(_CODE)


def flood(size: int, block: int, line: int) -> None:
    """Print ``size`` bytes in writes of ``block`` bytes, and in lines of ``line`` bytes, or none for 0."""
    text = (b"x" * (line - 1) + b"\n") * (block // line + 1) if line else b"x" * block
    text = text[: block // line * line] if line else text
    while size > 0:
        size -= os.write(1, text[:size] if size < len(text) else text)


def _number() -> int:
    """Return the number of this task."""
    return next(int(os.environ[name]) for name in _NUMBERS if name in os.environ)


def _touch(path: str, text: str = "") -> None:
    """Write a file in one step, so that nobody reads a half of it."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


if __name__ == "__main__":
    if sys.argv[1] == "print":
        print_lines(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "flood":
        flood(*map(int, sys.argv[2:5]))
    else:
        wait(sys.argv[2], len(sys.argv) > 3)
