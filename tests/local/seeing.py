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

from tests.conftest import MARK, Launch, Started, looks

STUBS = Path(__file__).resolve().parents[1] / "stubs"
ROOT = STUBS.parents[1]


def stub(name: str, *words: object) -> list[str]:
    """The command of a stub; without site packages, so that it starts in 10 ms."""
    return [sys.executable, "-I", "-S", str(STUBS / f"{name}.py"), *map(str, words)]


def soon(what: Callable[[], Any], seconds: float = 30.0, why: str = "") -> Any:
    """Wait until something is true, and return it; fail if it is not in time."""
    deadline = time.monotonic() + seconds
    while True:
        late = time.monotonic() > deadline
        if found := what():
            return found
        if late:
            pytest.fail(why or f"not within {seconds} s")
        time.sleep(0.01)


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
    return _field(pid, 3) not in (b"", b"Z", b"X")


def stopped(pid: int) -> bool:
    """Whether it does nothing any more until somebody lets it: a signal takes a moment to get there."""
    return _field(pid, 3) in (b"T", b"t")


def named(pids: set[int], name: str) -> list[int]:
    """Those of the processes that are called so.

    Whoever is forked is called like his parent until he calls exec: not he.
    """
    found = [pid for pid in sorted(pids) if _name(pid) == name]
    return [pid for pid in found if _parent(pid) not in found]


def _field(pid: int, number: int) -> bytes:
    """A field of ``/proc/PID/stat``, numbered as in proc(5), from 3; empty: the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[number - 3]
    except OSError:
        return b""


def _parent(pid: int) -> int:
    return int(_field(pid, 4) or 0)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def resident(pid: int) -> int:
    """Bytes of memory of its own and shared; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Family:
    """Every process that a test's launches started.

    Known by the test's mark, or, where a process has cleared its environment, by the pid and the start
    that ``stubs/family.py`` wrote down before it did.
    """

    def __init__(self, mark: str, folder: Path) -> None:
        self._wanted = f"{MARK}={mark}".encode()
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
        return start in (b"", _field(pid, 22))  # empty: it is just being written, by this process

    def kill(self) -> None:
        """Kill all, as far as somebody else is not just doing it."""
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def ready(self) -> int:
        """How many main processes have all their family."""
        return sum(name.startswith("ready-") for name in os.listdir(self.folder))

    def gone(self, within: float) -> None:
        """Fail unless all are over in time; on a machine that is busy with other work, in its time."""
        left, since = set[int](), time.monotonic()
        for _ in looks(within):
            if not (left := self.alive()):
                return
        names = [(pid, _name(pid), _words(pid)) for pid in sorted(left)]
        pytest.fail(f"alive after {time.monotonic() - since:.1f} s: {names}")

    def forget(self) -> None:
        """Start again with an empty folder."""
        for name in os.listdir(self.folder):
            os.unlink(self.folder / name)

    def _marked(self) -> Iterator[int]:
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid() or not alive(int(name)):
                continue
            environment = _environment(int(name))
            # In the middle of exec there is none to be seen.
            if self._wanted in (environment or _environment(_parent(int(name)))).split(b"\0"):
                yield int(name)


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
    except OSError:
        return ""


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
        except OSError:  # EIO: nobody has it open any more
            time.sleep(min(seconds, 0.01))
            return False
        self.raw += data
        return bool(data)
