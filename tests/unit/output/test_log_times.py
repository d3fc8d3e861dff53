"""The index of a log, whose clock is simulated: what it says, and how large it becomes."""

from __future__ import annotations

import io
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.report import TaskState
from launcher.job import RunPaths
from launcher.output import log_times
from launcher.output.log_times import MAX_INDEX_BYTES, LogIndex, LogTimes, index_of
from launcher.output.logs import GrowingLog, LogSelection
from launcher.output.run_files import Files
from tests.conftest import examples
from tests.unit.output.output_samples import moved, printed, report, run_info

W0 = TaskId("worker/0")
START = 1_796_000_000
DAY = 86_400


class Printed:
    """A log whose task prints at times that the test chooses, without a file for the output itself."""

    def __init__(self, log: Path) -> None:
        self.log, self.index, self.file, self.size = log, LogIndex(), bytearray(), 0
        self.largest = 0

    def add(self, second: int, size: int) -> None:
        if second != self.index.second:
            new, replaces = self.index.add(second, self.size, lambda: bytes(self.file))
            if replaces:
                self.file.clear()
            self.file += new
            self.largest = max(self.largest, len(self.file))
        self.size += size

    def times(self) -> LogTimes:
        Path(index_of(str(self.log))).write_bytes(self.file)
        times = LogTimes(str(self.log))
        times.refresh()
        return times


@pytest.mark.parametrize("bytes_a_second", [1, pytest.param(4000, marks=pytest.mark.long)])
def test_the_index_of_a_chatty_week_stays_small_and_is_precise_where_it_is_new(
    bytes_a_second: int, tmp_path: Path
):
    it = Printed(tmp_path / "worker-0.log")
    for second in range(START, START + 7 * DAY):
        it.add(second, bytes_a_second)
    assert it.largest <= MAX_INDEX_BYTES == 64 * 1024
    times, end = it.times(), START + 7 * DAY
    for ago in (1, 60, 600, 3600, DAY, 6 * DAY):
        at, most = end - ago, ago // 100
        start, last = times.start(at), times.end(at)
        assert 0 <= at - START - start // bytes_a_second <= most
        assert 0 <= last // bytes_a_second - (at - START) <= most
    assert times.start(START) == 0 and times.start(end) == sys.maxsize


@pytest.mark.parametrize(
    ("years", "seconds"), [(70, range(600)), (70, range(7200)), (-1, range(7200)), (70, range(0, DAY, 2))]
)
def test_the_clock_was_wrong(years: int, seconds: range, tmp_path: Path):
    """For some time, or each other second: the index stays small, and the times of today are known."""
    it = Printed(tmp_path / "worker-0.log")
    for second in range(DAY):
        it.add(START + second + (years * 365 * DAY if second in seconds else 0), 10)
    assert it.largest <= MAX_INDEX_BYTES
    if DAY - 2 not in seconds:
        times = it.times()
        assert 0 <= DAY - 600 - times.end(START + DAY - 600) // 10 <= 6


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 40), st.integers(0, 50)), min_size=1, max_size=40),
    st.integers(-5, 1000),
    st.integers(1, 500),
)
def test_nothing_that_was_printed_in_a_window_is_left_out(steps, since, length):
    """Also when the index is thinned and the clock is set back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_times, "MAX_INDEX_BYTES", 200)
        patch.setattr(log_times, "AGE_RATIO", 2)
        it, now, history = Printed(Path(f"/tmp/{os.getpid()}-times.log")), START, []
        for pause, size in steps:
            now += pause
            history.append((now, it.size, it.size + size))
            it.add(now, size)
        times = it.times()
        os.unlink(index_of(str(it.log)))
    since, until = START + since, START + since + length
    first, end = times.start(since), times.end(until)
    for second, begins, ends in history:
        if since <= second < until and begins < ends:
            assert first <= begins and ends <= end


def test_it_is_read_while_the_launcher_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_times, "MAX_INDEX_BYTES", 400)
    monkeypatch.setattr(log_times, "AGE_RATIO", 2)
    it = Printed(tmp_path / "worker-0.log")
    it.add(START, 10)
    following = it.times()
    for second in range(START + 1, START + 300, 2):
        it.add(second, 10)
        fresh = it.times()
        following.refresh()
        windows = [(following.start(at), following.end(at)) for at in range(START, second + 2)]
        assert windows == [(fresh.start(at), fresh.end(at)) for at in range(START, second + 2)]


@pytest.mark.parametrize(
    "index", [None, b"", b"\n\n", b"17960000", b"x 0 1\n", b"1 2\n", b"9" * 12 + b" 0 1\n"]
)
def test_a_log_without_times_is_refused(index: bytes | None, tmp_path: Path):
    log = tmp_path / "worker-0.log"
    log.write_bytes(b"printed\n")
    if index is not None:
        (tmp_path / "worker-0.times").write_bytes(index)
    with pytest.raises(LaunchError, match=r"worker-0\.times"):
        GrowingLog(str(log), selection=LogSelection(since=5.0)).write(io.BytesIO())


def test_the_launcher_notes_when_a_task_prints_and_starts_again(tmp_path: Path):
    paths, clock = RunPaths(str(tmp_path / "run")), [START + 0.5]
    first, second = (Files(lambda: clock[0], is_resumed=is_resumed) for is_resumed in (False, True))
    log = Path(paths.log(W0))
    first.begin(run_info(paths, node1="worker/0"))
    for at, data in ((0.5, b"a\n"), (0.9, b"b\n"), (1.1, b"c"), (7, b"c\n"), (9, b"d")):
        clock[0] = START + at
        first.on(printed(W0, data))
    first.on(moved(W0, 1, TaskState.FAILED))
    clock[0] += 20
    first.on(moved(W0, 2, TaskState.STARTING))
    second.begin(run_info(paths, node1="worker/0"))
    clock[0] += 20
    second.on(printed(W0, b"e\n"))
    for files in (first, second):
        files.close(report())
    out = io.BytesIO()
    GrowingLog(str(log), selection=LogSelection(timestamps=True)).write_rest(out)
    lines = out.getvalue().decode().splitlines()
    clocks = [int(line[14:16]) * 60 + int(line[17:19]) for line in lines]
    assert [line[20:] for line in lines] == ["a", "b", "cc", "d", "launch: attempt 2 starts here", "e"]
    assert [(later - clocks[0]) % 3600 for later in clocks] == [0, 0, 7, 29, 29, 49]


def test_a_truncated_log_begins_a_new_index(tmp_path: Path):
    paths, clock = RunPaths(str(tmp_path / "run")), [float(START)]
    files = Files(lambda: clock[0])
    files.begin(run_info(paths, node1="worker/0"))
    for _ in range(100):
        clock[0] += 1
        files.on(printed(W0, b"printed before\n"))
    os.truncate(paths.log(W0), 0)
    clock[0] += 1
    files.on(printed(W0, b"new\n"))
    index = Path(index_of(paths.log(W0)))
    assert index.read_bytes() == b"%d 0 1\n" % clock[0] and index.stat().st_mode & 0o777 == 0o600
    clock[0] += 1
    files.on(printed(W0, b"newer\n"))
    files.close(report())
    out = io.BytesIO()
    GrowingLog(paths.log(W0), selection=LogSelection(since=clock[0])).write_rest(out)
    assert out.getvalue() == b"newer\n"


WINDOWS: list[tuple[dict[str, Any], str]] = [
    ({"since": 10}, "bar\nc\nd"),  # The line of "bar" is complete then.
    ({"since": 11}, "d"),
    ({"since": 12}, ""),
    ({"until": 10}, "a\nb"),
    ({"until": 11}, "a\nbar\nc\n"),
    ({"since": 3, "until": 10}, ""),
    ({"since": 1, "until": 11, "lines": 1}, "c\n"),
    ({"lines": 2}, "c\nd"),
]


@pytest.mark.parametrize(("window", "shown"), WINDOWS)
def test_windows(window: dict[str, Any], shown: str, tmp_path: Path):
    log, out = tmp_path / "worker-0.log", io.BytesIO()
    log.write_bytes(b"a\nbar\nc\nd")
    Path(index_of(str(log))).write_bytes(b"1 0 1\n2 2 1\n10 3 1\n11 8 1\n")
    GrowingLog(str(log), selection=LogSelection(**window)).write_rest(out)
    assert out.getvalue().decode() == shown


def test_offsets_of_parts_are_those_of_the_log(tmp_path: Path):
    log = tmp_path / "worker-0.log"
    Path(index_of(str(log))).write_bytes(b"5 2 1\n6 2 1\n7 4 1\n")
    times = LogTimes(str(log))
    times.refresh()
    assert [*times.parts(0, b"abcdef")] == [(5, b"ab"), (6, b"cd"), (7, b"ef")]
    for begin, end in pairwise((0, 1, 3, 5, 6)):
        assert b"".join(part for _, part in times.parts(begin, b"abcdef"[begin:end])) == b"abcdef"[begin:end]
