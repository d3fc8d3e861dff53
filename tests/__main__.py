"""``python -m tests``: the whole suite, in a few pytest processes side by side.

Most tests wait for something real (a cable that is cut, a container, a lease), so one after the other they
take a quarter of an hour in which the machine idles. A test that stands in no shard of the table belongs to
the last one, so none can be forgotten. The last line printed is pytest's summary, of all of them together.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
#: What runs side by side; the rest is a shard of its own. Whatever uses the Docker engine is in one: a launch
#: sweeps what dead ones have left there, and says so.
SHARDS = {"ssh": ("ssh", "api"), "containers": ("docker", "contract")}
REST = "rest"
#: Seconds that a shard may take; and from Ctrl-C to SIGKILL.
BOUND, GRACE = 2400.0, 20.0
#: What pytest prints last: how many of each, and how long.
_SUMMARY = re.compile(r"^=* ?((?:\d+ \w+(?:, )?)+) in [\d.]+s")
_COUNT = re.compile(r"(\d+) (\w+)")
#: A test that failed, with its reason.
_FAILURE = re.compile(r"(FAILED|ERROR) tests/")
#: The width that pytest may write in, so that it tells the reason whole. No test sees it.
_COLUMNS = "200"
#: The order in which pytest tells them.
_ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "errors")
_READ = 1 << 16


def paths() -> Mapping[str, Sequence[str]]:
    """The folders and files of each shard."""
    named = {name for names in SHARDS.values() for name in names}
    entries = sorted(path for path in TESTS.iterdir() if path.name not in named)
    rest = [path for path in entries if any(path.glob("**/test_*.py")) or path.match("test_*.py")]
    there = {name: [TESTS / folder for folder in folders] for name, folders in SHARDS.items()}
    chosen = {**there, REST: rest}
    return {name: [str(path) for path in found if path.exists()] for name, found in chosen.items()}


class Shard:
    """One pytest; its lines are shown with its name."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        #: What pytest says of each test that failed, at its end.
        self.failures: list[str] = []
        self._unfinished = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=TESTS.parent,
            env={**os.environ, "COLUMNS": _COLUMNS},
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def read(self) -> bool:
        """Show what it wrote; whether there may be more."""
        data = self.output.read1(_READ)  # type: ignore[attr-defined]  # a pipe's reader is buffered
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines if data else [self._unfinished]:
            self._show(line.decode("utf-8", "replace"))
        return bool(data)

    def _show(self, line: str) -> None:
        print(f"{self.name:>10} | {line}", flush=True)
        if _FAILURE.match(line):
            self.failures.append(line)
        summary = _SUMMARY.match(line)
        for count, what in _COUNT.findall(summary[1]) if summary else ():
            self.counts[{"error": "errors", "warning": "warnings"}.get(what, what)] += int(count)

    def end(self) -> None:
        """End it, if it runs."""
        for number, seconds in ((signal.SIGINT, GRACE), (signal.SIGKILL, GRACE)):
            if self.process.poll() is None:
                self.process.send_signal(number)
                try:
                    self.process.wait(seconds)
                except subprocess.TimeoutExpired:
                    print(f"{self.name:>10} | does not end", flush=True)


def run(shards: Sequence[Shard]) -> None:
    """Show what they write until all have ended, or time is up."""
    poll = select.poll()
    reading = {shard.output.fileno(): shard for shard in shards}
    for fd in reading:
        poll.register(fd, select.POLLIN)
    until = time.monotonic() + BOUND
    while reading and time.monotonic() < until:
        for fd, _ in poll.poll(1000):
            if not reading[fd].read():
                poll.unregister(fd)
                reading.pop(fd).process.wait(GRACE)
    for shard in reading.values():
        print(f"{shard.name:>10} | not over after {BOUND:.0f} s", flush=True)


def summary(shards: Sequence[Shard], seconds: float) -> str:
    """All of them together, as pytest would tell it."""
    total = sum((shard.counts for shard in shards), Counter[str]())
    total["errors"] += sum(1 for shard in shards if shard.process.returncode not in (0, 1))
    told = ", ".join(f"{total[what]} {what}" for what in _ORDER if total[what])
    return f" {told} in {seconds:.2f}s ({int(seconds // 60)}:{int(seconds % 60):02d}) ".center(80, "=")


def main(words: Sequence[str]) -> int:
    """Run the suite; the exit status is 0 only if every shard's is."""
    since = time.monotonic()
    shards = [Shard(name, [*words, *found]) for name, found in paths().items()]
    try:
        run(shards)
    finally:
        for shard in shards:
            shard.end()
            shard.output.close()
    for shard in shards:
        if shard.process.returncode:
            print(f"{shard.name:>10} | pytest ended with {shard.process.returncode}")
        for failure in shard.failures:  # once more: the rest of another shard may stand between
            print(f"{shard.name:>10} | {failure}")
    print(summary(shards, time.monotonic() - since), flush=True)
    return int(any(shard.process.returncode for shard in shards))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
