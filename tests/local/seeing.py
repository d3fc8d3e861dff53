"""What the tests of the command look at: a run's files, processes, and a terminal of its own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MARK, Ended, Launch, Started, command_line, kill, looks, proc, stat_field

STUBS = Path(__file__).resolve().parents[1] / "stubs"
ROOT = STUBS.parents[1]


def stub(name: str, *words: object) -> list[str]:
    """The command of a stub; without site packages, so that it starts in 10 ms."""
    return [sys.executable, "-I", "-S", str(STUBS / f"{name}.py"), *map(str, words)]


def soon(what: Callable[[], Any], seconds: float = 30.0, why: str = "") -> Any:
    """Wait until something is true, and return it; fail if it is not in time."""
    deadline = time.monotonic() + seconds
    while True:
        since = time.monotonic()
        if found := what():
            return found
        if since > deadline:
            pytest.fail(why or f"not within {seconds} s")
        # As long as a look takes: what is awaited needs a processor, too.
        time.sleep(min(max(time.monotonic() - since, 0.01), 0.3))


def quick(once: Callable[[], float], seconds: float) -> None:
    """Fail unless what takes ``once()`` seconds takes less than so many: a quiet machine needs one try.

    A busy one gets a minute of tries.
    """
    until = time.monotonic() + 60
    tries = [once()]
    while tries[-1] >= seconds and time.monotonic() < until:
        tries.append(once())
    print("tries:", *(f"{each:.2f} s" for each in tries))
    assert tries[-1] < seconds


# ---------------------------------------------------------------------- processes


def alive(pid: int) -> bool:
    """Whether the process is there and more than a zombie."""
    return stat_field(pid, 3) not in (b"", b"Z", b"X")


def stopped(pid: int) -> bool:
    """Whether SIGSTOP or a tracer has stopped it: a signal takes a moment to get there."""
    return stat_field(pid, 3) in (b"T", b"t")


def named(pids: set[int], name: str) -> list[int]:
    """Those of the processes that have this name.

    A forked process has the name of its parent until it calls exec: it does not count.
    """
    found = [pid for pid in sorted(pids) if _name(pid) == name]
    return [pid for pid in found if _parent(pid) not in found]


def _parent(pid: int) -> int:
    return int(stat_field(pid, 4) or 0)


def _name(pid: int) -> str:
    return proc(pid, "comm").decode().strip()


def resident(pid: int) -> int:
    """Bytes of memory of its own and shared; 0 if it is gone."""
    fields = proc(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


class Family:
    """Every process that a test's launches started.

    Known by the test's mark, or, where a process has cleared its environment, by the pid and the start
    that ``stubs/family.py`` wrote down before it did.
    """

    def __init__(self, mark: str, folder: Path) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self.folder = folder
        folder.mkdir()

    def alive(self) -> set[int]:
        """Those that are alive now."""
        noted = {int(name) for name in os.listdir(self.folder) if name.isdigit()}
        return {pid for pid in noted if alive(pid) and self._is_noted(pid)} | set(self._marked())

    def _is_noted(self, pid: int) -> bool:
        """Whether it is the one that was noted: numbers are used again."""
        try:
            start = (self.folder / str(pid)).read_bytes()
        except OSError:
            return False
        return start in (b"", stat_field(pid, 22))  # empty: it is just being written, by this process

    def kill(self) -> None:
        """Kill all; another process may just have done it."""
        for pid in self.alive():
            kill(pid)

    def started(self, launch: Launch, workers: int, *ways: str, grace: str = "30") -> Started:
        """Start a job, and wait until each of its workers has such a family; see ``stubs/family.py``."""
        words = ["--workers", str(workers), "--grace", grace, "--", *stub("family", *ways, "sleep")]
        return launch.start(*words).until(lambda _: self.ready() == workers)

    def ready(self) -> int:
        """How many main processes have all their family."""
        return sum(name.startswith("ready-") for name in os.listdir(self.folder))

    def gone(self, within: float) -> None:
        """Fail unless all are over in time; on a machine that is busy with other work, in its time."""
        left, since = set[int](), time.monotonic()
        for _ in looks(within):
            if not (left := self.alive()):
                return
        names = [(pid, _name(pid), command_line(pid)[:80]) for pid in sorted(left)]
        pytest.fail(f"alive after {time.monotonic() - since:.1f} s: {names}")

    def forget(self) -> None:
        """Start again with an empty folder."""
        for name in os.listdir(self.folder):
            os.unlink(self.folder / name)

    def _marked(self) -> Iterator[int]:
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            # In the middle of exec a process shows no environment: its parent's counts.
            environment = proc(int(name), "environ") or proc(_parent(int(name)), "environ")
            if self._mark in environment and alive(int(name)):
                yield int(name)


# ---------------------------------------------------------------------- a run's files


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def report(self) -> Any:
        """``report.json``."""
        return json.loads((self.path / "report.json").read_text())

    @property
    def plan(self) -> Any:
        """``plan.json``."""
        return json.loads((self.path / "plan.json").read_text())

    @property
    def events(self) -> list[Any]:
        """``events.jsonl``, as far as its lines are whole."""
        lines = (self.path / "events.jsonl").read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def task(self, name: str) -> Any:
        """What the report says of one task."""
        return next(task for task in self.report["tasks"] if task["task"] == name)

    def states(self) -> dict[str, str]:
        """Each task's state."""
        return {task["task"]: task["state"] for task in self.report["tasks"]}

    def codes(self) -> list[int]:
        """Each task's end as a shell would show it."""
        ends = [task["status"] for task in self.report["tasks"]]
        return [end["code"] if end["code"] is not None else 128 + end["signal"] for end in ends]

    def log(self, task: str) -> bytes:
        """What a task printed."""
        return (self.path / "logs" / f"{task.replace('/', '-')}.log").read_bytes()


def last_run(launch: Launch) -> RunFolder:
    """The newest run below the state folder of the test's command."""
    return RunFolder(max(launch.state.iterdir(), key=lambda path: path.stat().st_mtime_ns))


def run_of(launch: Launch, started: Started) -> RunFolder:
    """The run of one of several launches that run: the folder of another may be the one changed last."""
    records = {path.parent: json.loads(path.read_text()) for path in launch.state.glob("*/launcher.json")}
    (path,) = (path for path, record in records.items() if record["pid"] == started.pid)
    return RunFolder(path)


# ---------------------------------------------------------------------- a Ctrl-C while the command starts

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


# ---------------------------------------------------------------------- a terminal


class Terminal:
    """A pseudo-terminal with ``launch`` in it, as its controlling terminal: keys and size are real.

    Args:
        launch: whose home to use.
        args: of the command.
        columns, lines: the size.
        env: added to its environment.
        command: what runs there, before the arguments.
    """

    def __init__(
        self,
        launch: Launch,
        *args: str,
        columns: int = 100,
        lines: int = 30,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "launcher"),
    ) -> None:
        self._master, slave = os.openpty()
        self.resize(columns, lines)
        os.set_blocking(self._master, False)
        self.raw = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command, *args],
            stdin=slave, stdout=slave, stderr=slave,
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

    def resize(self, columns: int, lines: int) -> None:
        """Change its size, as a window manager would."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

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
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            self._read(0.05)
            if time.monotonic() > deadline:
                pytest.fail(f"still running after {seconds} s; the terminal shows:\n{self.text[-3000:]}")
        while self._read(0.0):
            continue
        return self.process.returncode

    def close(self) -> None:
        """Close the window: the kernel hangs up."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1
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
