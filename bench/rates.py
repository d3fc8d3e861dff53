"""Measures how fast the output of a task passes through the client of an engine.

`bench.kubernetes` and `bench.slurm` use it. The rate counts from the first byte to the last, without the
start-up.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TypeAlias

from bench import tables
from bench.setting import Setting

#: The time limit for a client to exit after SIGINT.
_TIME_LIMIT = 180.0
#: The bytes that a task prints, and the characters of a line without its end.
_BYTES, _LINE = 64 << 20, 63
_PRINT = f"""import os
lines = b"{"0123456789" * 7}"[:{_LINE}] + b"\\n"
lines *= 1024
for _ in range({_BYTES} // len(lines)):
    view = memoryview(lines)
    while view:
        view = view[os.write(1, view):]
"""
#: The environment of a client. None means that of this process.
Environ: TypeAlias = Mapping[str, str] | None
#: The command of a task, which prints `_BYTES`.
PROGRAM = ("python3", "-E", "-s", "-S", "-c", _PRINT)


@contextmanager
def started(
    argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a client whose stdout is a pipe. At the end of the context it gets SIGINT, and is awaited."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_TIME_LIMIT)


def pieces(output: IO[bytes] | None) -> Iterator[bytes]:
    """Yield the output of a process in the pieces in which it is read from its pipe."""
    assert output is not None
    while piece := os.read(output.fileno(), 1 << 20):
        yield piece


def _rate(argv: Sequence[str], environ: Environ) -> float | None:
    """Run a client, and return how many bytes of the task it passes on in a second.

    Returns:
        The rate, from the first piece to the last. None means that lines are missing.
    """
    first, lines = 0.0, 0
    with started(argv, environ) as process:
        for piece in pieces(process.stdout):
            first = first or time.perf_counter()
            lines += piece.count(b"\n")
            if lines >= _BYTES // (_LINE + 1):
                return _BYTES / (time.perf_counter() - first)
    return None


class Rates:
    """The rates of several clients, whose tasks run `PROGRAM`.

    Args:
        setting: Receives a fault if a client loses lines.
        engine: The name of the engine, for titles and faults.
    """

    def __init__(self, setting: Setting, engine: str) -> None:
        self._setting, self._engine = setting, engine
        self._runs: dict[str, list[float]] = {}

    def add(self, name: str, argv: Sequence[str], environ: Environ = None) -> None:
        """Run a client once, and note its rate under a name.

        Args:
            name: The name of the client in the table.
            argv: The command line of the client.
            environ: The environment of the client.
        """
        folder = self._setting.folder(name)
        rate = _rate(argv, environ and {**environ, "XDG_STATE_HOME": str(folder)})
        shutil.rmtree(folder)
        if rate is None:
            self._setting.faults.append(f"{self._engine}: {name} has lost lines")
        else:
            self._runs.setdefault(name, []).append(rate / 1e6)

    def show(self, base: str) -> None:
        """Print the table of rates, with their ratios to those of one client.

        Args:
            base: The name of this client.
        """
        to = self._runs.get(base, [])
        rows = [[name, f"{max(own):.0f}", tables.ratio(own, to)] for name, own in self._runs.items()]
        head = ["from the first byte to the last", "best MB/s", f"x {base} (median)"]
        tables.show(f"{self._engine} output: {_BYTES >> 20} MiB of lines of a task", head, rows)
