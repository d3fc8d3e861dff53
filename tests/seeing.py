"""What tests wait for and look at: conditions, processes of this machine, the files of a run.

It is for the tests of every folder, and needs nothing of pytest: the benchmarks use it, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conftest import Launch, Started

STUBS = Path(__file__).resolve().parent / "stubs"
ROOT = STUBS.parents[1]
#: The variable that all processes of a test inherit, with a value of that test alone.
MARK = "LAUNCH_TEST_MARK"
#: Seconds between two looks at what should be over.
_PAUSE = 0.05


def stub(name: str, *words: object) -> list[str]:
    """The command of a stub; without site packages, so that it starts in 10 ms."""
    return [sys.executable, "-I", "-S", str(STUBS / f"{name}.py"), *map(str, words)]


# ---------------------------------------------------------------------- waiting


def soon(condition: Callable[[], Any], seconds: float = 30.0, why: str | Callable[[], object] = "") -> Any:
    """Wait until a condition is true, and return what it returned; fail at the time limit.

    Args:
        condition: Is called again and again, until it returns something true.
        seconds: The time limit.
        why: What the failure says, too; or a function that returns it then.
    """
    found = is_soon(condition, seconds)
    assert found, f"not within {seconds} s: {why() if callable(why) else why}"
    return found


def is_soon(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait as `soon` does; at the time limit return what the condition returned last."""
    deadline = time.monotonic() + seconds
    while True:
        since = time.monotonic()
        if (found := condition()) or since > deadline:
            return found
        # Longer than a look takes, which may start a program: what is awaited needs the processors.
        time.sleep(min(max(3 * (time.monotonic() - since), 0.01), 0.5))


def looks(seconds: float) -> Iterator[None]:
    """Look again and again at what should be over after so many seconds, and for two seconds more.

    Counted is the time in which we could look: while a machine stands still no process ends, and that
    is one look, however long. A machine that is busy with other work gets more: others have to wait, too.
    """
    left = seconds * max(1.0, os.getloadavg()[0] / 2 / (os.cpu_count() or 1)) + 2
    last = time.monotonic()
    while left > 0:
        yield
        time.sleep(_PAUSE)
        now = time.monotonic()
        left -= min(now - last, 2 * _PAUSE)
        last = now
    yield


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


def proc(pid: int, name: str, root: str | Path = "/proc") -> bytes:
    """A file of ``/proc/PID``; empty: the process has ended, is a zombie, or belongs to another user.

    Args:
        pid: The process, as the root numbers it.
        name: The file.
        root: The ``/proc`` of another machine, if it is not one of this machine.
    """
    try:
        with open(f"{root}/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def stat_field(pid: int, number: int, root: str | Path = "/proc") -> bytes:
    """A field of ``/proc/PID/stat``, numbered as in proc(5), from 3; empty: the process is gone."""
    fields = proc(pid, "stat", root).rpartition(b")")[2].split()
    return fields[number - 3] if fields else b""


def process_name(pid: int, root: str | Path = "/proc") -> str:
    """The name of a process; empty: it is gone."""
    return proc(pid, "comm", root).decode().strip()


def pid_namespace(pid: int, root: str | Path = "/proc") -> str:
    """The namespace in which a process has its number; empty: the process is gone."""
    try:
        return os.readlink(f"{root}/{pid}/ns/pid")
    except OSError:
        return ""


def command_line(pid: int, root: str | Path = "/proc") -> str:
    """A process's arguments, with spaces between them."""
    return proc(pid, "cmdline", root).replace(b"\0", b" ").decode(errors="replace").strip()


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process, unless it has just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def alive(pid: int, root: str | Path = "/proc") -> bool:
    """Whether the process is there and more than a zombie."""
    return stat_field(pid, 3, root) not in (b"", b"Z", b"X")


def stopped(pid: int) -> bool:
    """Whether SIGSTOP or a tracer has stopped it: a signal takes a moment to get there."""
    return stat_field(pid, 3) in (b"T", b"t")


def named(pids: set[int], name: str) -> list[int]:
    """Those of the processes that have this name.

    A forked process has the name of its parent until it calls exec: it does not count.
    """
    found = [pid for pid in sorted(pids) if process_name(pid) == name]
    return [pid for pid in found if _parent(pid) not in found]


def _parent(pid: int) -> int:
    return int(stat_field(pid, 4) or 0)


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
        names = [(pid, process_name(pid), command_line(pid)[:80]) for pid in sorted(left)]
        raise AssertionError(f"alive after {time.monotonic() - since:.1f} s: {names}")

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


# ---------------------------------------------------------------------- the control socket


def connected(run: str) -> socket.socket:
    """A connection to the launcher of a run."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(30)
    peer.connect(f"\0tf-launcher-{run}")
    return peer


def asked(peer: socket.socket, packet: bytes) -> Any:
    """The answer to a packet, from a file that comes with one."""
    peer.send(packet)
    _, files, _, _ = socket.recv_fds(peer, 100, 1)
    with open(files[0], "rb") as file:
        file.seek(0)
        return json.load(file)
