"""A terminal for the command under test, and a Ctrl-C that comes while it starts."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

import pyte
import pytest

from tests.conftest import COMMAND, Ended, Launch, Started
from tests.seeing import ROOT, soon

#: Of a traceback: a file of ours, and a line in it. The package's own is run when nothing of ours is yet.
_FRAME = re.compile(r'File ".*/launcher/(?!__init__)([^"]*)", line (\d+)')
#: The line of the command from which on a Ctrl-C is ours.
_MAIN = "__main__.py"
_LINES = (ROOT / "launcher" / _MAIN).read_text().splitlines()
_HANDLER = 1 + [line.strip() for line in _LINES].index("_signal.signal(_signal.SIGINT, _exit_interrupted)")
#: In the error of a Python that could not start, or could not start our command.
_NOT_STARTED = ("runpy", "site", "Fatal Python error: init")
#: Python itself can drop a Ctrl-C before a line of ours is run: it reports that, and goes on.
_DROPPED = "Exception ignored in"


def press_ctrl_c(started: Started) -> None:
    """Once; once more if Python reports that it has dropped the first."""
    started.send(signal.SIGINT)
    soon(lambda: started.process.poll() is not None or _DROPPED in started.err)
    if started.process.poll() is None:
        started.send(signal.SIGINT)


def ended_by_ctrl_c(ended: Ended) -> None:
    """Whenever it came: 130, and no traceback of ours.

    Before our first line it is Python's: that ends by the signal, or with 1 because it could not import
    ``site`` or ``runpy``, or start at all.
    """
    for file, line in _FRAME.findall(ended.err):
        assert file == _MAIN and int(line) <= _HANDLER, ended.err
    pythons = ended.code == 1 and any(text in ended.err for text in _NOT_STARTED)
    assert ended.code in (128 + signal.SIGINT, -signal.SIGINT) or pythons, (ended.code, ended.err)


def last_step(terminal: Terminal) -> int:
    """The number after the last ``step`` that stands there; 0: there is none."""
    return int(([0] + re.findall(r"step (\d+)", terminal.shown))[-1])


class Terminal:
    """A pseudo-terminal with ``launch`` in it, as its controlling terminal: keys and size are real.

    Args:
        launch: whose home to use.
        args: of the command.
        columns, lines: the size.
        env: added to its environment.
        command: what runs there, before the arguments.
        stdout: where its output goes instead; its errors are in the terminal.
    """

    def __init__(
        self, launch: Launch, *args: str, columns: int = 100, lines: int = 30,
        env: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND, stdout: int | None = None,
    ) -> None:  # fmt: skip
        self._master, slave = os.openpty()
        self.resize(columns, lines)
        os.set_blocking(self._master, False)
        self.raw = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command, *args],
            stdin=slave, stdout=slave if stdout is None else stdout, stderr=slave,
            env={**os.environ, **launch.environment(), "TERM": "xterm-256color", **(env or {})},
        )  # fmt: skip
        os.close(slave)

    @property
    def text(self) -> str:
        """What was drawn so far, without its escape sequences."""
        text = self.raw.decode(errors="replace")
        return re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()].|[=>78DEHM])", "", text)

    @property
    def screen(self) -> list[str]:
        """The lines as they stand there in the end: what was erased or overwritten is gone."""
        lines = []
        for line in re.sub(r"\x1b\[[0-9;]*m", "", self.raw.decode(errors="replace")).split("\n"):
            parts = re.split(r"\r+(?:\x1b\[K)?|\x1b\[K", line.rstrip("\r"))
            lines.append(next((part for part in reversed(parts) if part), ""))
        return lines

    @property
    def shown(self) -> str:
        """What a terminal shows now, line by line, after all movements of its cursor."""
        columns, lines = self._size
        screen = pyte.Screen(columns, lines)
        pyte.ByteStream(screen).feed(self.raw)
        return "\n".join(line.rstrip() for line in screen.display)

    def resize(self, columns: int, lines: int) -> None:
        """Change its size, as a window manager would."""
        self._size = (columns, lines)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def echoes(self) -> bool:
        """Whether it shows what is typed, and gives it to programs line by line: it is as at its start."""
        flags = termios.tcgetattr(self._master)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def press(self, keys: str) -> None:
        """Press keys: ``\\x03`` is Ctrl-C."""
        os.write(self._master, keys.encode())

    def until(self, condition: Callable[[Terminal], object], seconds: float = 40.0) -> None:
        """Read until something is true."""
        deadline = time.monotonic() + seconds
        while not condition(self):
            if not self._read(0.05) and self.process.poll() is not None and condition(self):
                return
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds} s; the terminal shows:\n{self.text[-3000:]}")

    def wait(self, seconds: float = 40.0) -> int:
        """Read until the command has ended; its exit code."""
        self.until(lambda it: it.process.poll() is not None, seconds)
        while self._read(0.0):
            continue
        return self.process.returncode

    @property
    def is_open(self) -> bool:
        """Whether its window is open."""
        return self._master >= 0

    def hang_up(self) -> None:
        """Close the window, and wait for nothing."""
        if self.is_open:
            os.close(self._master)
            self._master = -1

    def close(self) -> None:
        """Close the window: the kernel hangs up."""
        self.hang_up()
        if self.process.poll() is None:
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except BlockingIOError:
            return False
        except OSError:  # EIO: no process has it open any more
            time.sleep(min(seconds, 0.01))
            return False
        self.raw += data
        return bool(data)
