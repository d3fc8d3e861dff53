"""Doing several things at once, none of which may hold up the rest: threads and commands with a limit."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Callable, List, Mapping, Optional, Sequence, Set

#: Bytes that are read of what a command says.
_LIMIT = 64 * 1024


def together(jobs: Sequence[Callable[[], Any]], seconds: float, at_once: int = 16) -> List[Any]:
    """The results of these jobs, in their order; ``None`` for what is not done in time.

    A name service or a file server that never answers can't be interrupted: its thread is left behind,
    and does not keep the program from ending.

    Args:
        jobs: they see to their own errors.
        seconds: for all of them.
        at_once: how many may be at work at a time.
    """
    results: List[Any] = [None] * len(jobs)
    waiting: queue.Queue[int] = queue.Queue()
    for index in range(len(jobs)):
        waiting.put(index)
    deadline = time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            results[index] = jobs[index]()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(at_once, len(jobs)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(results)


class Said(NamedTuple):
    """How a command ended: ``ok``, ``missing``, ``failed`` or ``slow`` (ended by us), and what it printed."""

    state: str
    text: str


class Commands:
    """Runs commands, each with everything it starts in a group of its own, and ends them in time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Set[int] = set()
        self._over = False

    def run(self, argv: Sequence[str], seconds: float, env: Mapping[str, str]) -> Said:
        """Run a command in the root folder: nothing of where we are can change what it does.

        Args:
            argv: its first word is a path, or is looked up along our ``PATH``.
            seconds: it may take; then it and what it started is killed.
            env: all of its environment.
        """
        try:
            process = self._start(argv, env)
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            return Said("missing" if missing else "failed", getattr(error, "strerror", None) or str(error))
        if process is None:
            return Said("slow", "")
        late = threading.Event()
        timer = threading.Timer(seconds, self._end, (process.pid, late))
        timer.daemon = True
        timer.start()
        text = _read(process)
        self._reap(process)
        timer.cancel()
        state = "slow" if late.is_set() else "failed" if process.returncode else "ok"
        return Said(state, text.decode("utf-8", "replace").strip())

    def end_all(self) -> None:
        """Kill what runs, and start nothing any more."""
        with self._lock:  # whoever is starting one has done so by now, or will not
            self._over = True
            running = tuple(self._running)
        for pid in running:
            self._end(pid, threading.Event())

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> Optional[subprocess.Popen[bytes]]:
        """The command, running; ``None``: it is too late for that."""
        with self._lock:
            if self._over:
                return None
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                cwd="/", env=dict(env), start_new_session=True,
            )  # fmt: skip
            self._running.add(process.pid)
            return process

    def _end(self, pid: int, late: threading.Event) -> None:
        """Kill the group of a command that was not reaped: its number is nobody else's."""
        with self._lock:
            if pid in self._running:
                late.set()
                os.killpg(pid, signal.SIGKILL)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._running.discard(process.pid)
            process.wait()


def _read(process: subprocess.Popen[bytes]) -> bytes:
    """The first that it prints; more would wait for a reader, so nobody is left to read."""
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.read(_LIMIT)
