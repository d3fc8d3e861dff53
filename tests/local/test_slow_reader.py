"""A slow reader of stdout delays no signal, timer or failure, and loses nothing while the job runs."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch, Started, in_shell
from tests.seeing import Family, last_run, soon, stub

#: Prints lines for ever, or 50 MB.
YES = "yes 'a line like any other of this job, with nothing in it to be seen'"
ENDLESS = ["sh", "-c", YES]
MEGABYTES = 50
#: Seconds that the end of a launch takes at the very most: less than the half minute of a slow flush.
SOON = 25.0


class Reader(threading.Thread):
    """Reads a fifo at so many bytes a second; `finish` reads what is left at once."""

    def __init__(self, path: Path, rate: float) -> None:
        super().__init__(daemon=True)
        self.path = path
        self._rate = rate
        self._hurry = threading.Event()
        #: Seconds by which it was late for the next piece, at most: the machine stood still.
        self.late = 0.0
        self._pieces: list[bytes] = []
        os.mkfifo(path)
        self.start()

    def run(self) -> None:
        size = max(256, int(self._rate / 50))
        with open(self.path, "rb", buffering=0) as file:
            while data := file.read(size):
                self._pieces.append(data)
                until = time.monotonic() + len(data) / self._rate
                self._hurry.wait(len(data) / self._rate)
                self.late = max(self.late, time.monotonic() - until)

    def finish(self) -> bytes:
        """All that it read, to the end."""
        self._hurry.set()
        self.join(40)
        assert not self.is_alive()
        return b"".join(self._pieces)


#: Makes readers that read so many bytes a second.
Readers = Callable[[float], Reader]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Readers]:
    readers: list[Reader] = []

    def make(rate: float) -> Reader:
        readers.append(Reader(tmp_path / f"fifo{len(readers)}", rate))
        return readers[-1]

    yield make
    for one in readers:
        if one.is_alive():  # the other end was never opened, or the launch was killed
            os.close(os.open(one.path, os.O_RDWR | os.O_NONBLOCK))
        one.finish()


def _into(launch: Launch, reader: Reader, *words: str) -> Started:
    return launch.start(*words, command=in_shell(f"exec \"$@\" >'{reader.path}'"))


def _until_much_waits(launch: Launch) -> None:
    """Until the tasks are held up: nothing of what they print comes any more."""

    def held_up() -> bool:
        before = _logged(launch)
        time.sleep(0.2)
        return 2 << 20 < before == _logged(launch)

    soon(held_up)


def _logged(launch: Launch) -> int:
    """Bytes in the logs of its run."""
    return sum(file.stat().st_size for file in launch.state.glob("*/logs/*"))


@pytest.mark.parametrize(("form", "number"), [("--show=worker", signal.SIGINT), ("--json", signal.SIGTERM)])
def test_a_signal_does_not_wait_for_a_slow_reader(
    launch: Launch, family: Family, reader: Readers, form: str, number: int
):
    slow = reader(2000)
    started = _into(launch, slow, form, "--workers", "2", "--grace", "1", "--", *ENDLESS)
    _until_much_waits(launch)
    started.stop(number, SOON, code=128 + number)
    family.gone(0.5)
    shown = slow.finish()
    assert shown.endswith(b"\n")
    if form == "--json":
        events = [json.loads(line) for line in shown.splitlines()]
        assert any(event["event"] == "TaskOutput" for event in events)


def test_a_failure_does_not_wait_for_a_slow_reader(launch: Launch, reader: Readers, tmp_path: Path):
    """The others are stopped when it happens, not when all was read that was printed before."""
    slow = reader(2000)
    now = tmp_path / "now"
    script = f"test $TASK_INDEX = 1 || exec {YES}; until test -e {now}; do sleep 0.01; done; exit 7"
    started = _into(launch, slow, "--workers", "2", "--grace", "1", "--", "sh", "-c", script)
    _until_much_waits(launch)
    before = time.time()
    now.touch()
    started.wait(SOON, code=7)
    moves = [event for event in last_run(launch).events if event["event"] == "TaskMoved"]
    exits = [event for event in moves if event["state"] == "ended"]
    assert len(exits) == 2 and all(event["at"] - before < SOON for event in exits)
    slow.finish()


@pytest.mark.promise("slow, stopped, closed readers")
@pytest.mark.timeout(300)
def test_a_steady_reader_gets_every_line(launch: Launch, reader: Readers, tmp_path: Path):
    """Slower than the job prints: nothing is skipped, and the tasks wait; the log is complete."""
    took = tmp_path / "took"
    words = ["-x", f"TOOK={took}", "--", *stub("printer", "mebibytes", MEGABYTES)]
    for _ in range(3):
        steady = reader(5e6)
        _into(launch, steady, *words).wait(80, code=0)
        shown = steady.finish()
        if steady.late < 1:  # else the launcher may have taken it for one that does not read
            break
    assert shown.count(b"worker/0 | " + b"z" * 99 + b"\n") == MEGABYTES * 10486
    assert b"not shown" not in shown
    assert float(took.read_text()) > 6
    assert b"succeeded" in shown
    assert last_run(launch).log("worker/0") == (b"z" * 99 + b"\n") * MEGABYTES * 10486


def test_of_a_job_that_is_done_a_slow_reader_gets_the_end(launch: Launch, reader: Readers):
    """The launcher waits half a minute at most; a signal ends that, and a notice counts the lines."""
    slow = reader(20_000)
    started = _into(launch, slow, "--", *stub("printer", "lines", 20_000))
    soon(lambda: any(launch.state.glob("*/report.json")))
    started.stop(signal.SIGINT, SOON, code=0)
    shown = slow.finish().decode()
    assert re.search(r"launch: [\d,]+ lines were not shown here", shown)
    assert "succeeded" in shown
