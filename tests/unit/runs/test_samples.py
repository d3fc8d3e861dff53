"""Samples of a run: what is read of a file that anyone may have written, steps per second and time left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.job import RunPaths
from launcher.runs.samples import Sample, SampleReader, seconds_left, steps_per_second


def line(at: float, **fields: Any) -> str:
    """A moment of one task, as the launcher writes it."""
    return json.dumps({"at": at, "tasks": {"worker/0": {"attempt": 1, **fields}}}) + "\n"


def test_a_file_is_read_as_it_grows_and_again_when_it_is_replaced(tmp_path: Path):
    paths = RunPaths(str(tmp_path))
    reader, file = SampleReader(paths), Path(paths.samples)
    assert not reader.read()
    file.write_text(line(1, cpu=0.5, memory=10) + line(2, step=3, metrics={"loss": 0.3})[:-5])
    assert reader.read()
    assert reader.series == {"worker/0": [Sample(1.0, 1, cpu=0.5, memory=10)]}
    assert not reader.read()
    with file.open("a") as end:
        end.write(line(2, step=3, metrics={"loss": 0.3})[-5:])
    assert reader.read()
    assert reader.series["worker/0"][1] == Sample(2.0, 1, step=3.0, metrics={"loss": 0.3})
    (tmp_path / "new").write_text(line(7))
    os.replace(tmp_path / "new", file)
    assert reader.read()
    assert reader.series == {"worker/0": [Sample(7.0, 1)]}
    file.unlink()
    os.mkfifo(file)
    assert not reader.read()


def test_only_the_end_of_a_file_may_be_wanted(tmp_path: Path):
    paths = RunPaths(str(tmp_path))
    Path(paths.samples).write_text("".join(map(line, range(1, 100))))
    reader = SampleReader(paths, max_bytes=180)
    assert reader.read()
    assert [sample.at for sample in reader.series["worker/0"]] == [97.0, 98.0, 99.0]
    with open(paths.samples, "a") as end:
        end.write(line(100))
    assert reader.read()
    assert reader.series["worker/0"][-1].at == 100.0


@pytest.mark.parametrize(
    "wrong",
    [
        "", "{", "7", "[]", '{"at": 2}', '{"at": 2, "tasks": 7}', '{"at": "2", "tasks": {}}', "[" * 100_000,
        '{"at": NaN, "tasks": {"worker/0": {"attempt": 1}}}', '{"at": 2, "tasks": {"worker/0": 7}}',
        '{"at": 2, "tasks": {"worker/0": {}}}', '{"at": 2, "tasks": {"../0\\u001b/x": {"attempt": 1}}}',
        '{"at": 2, "tasks": {"worker/0": {"attempt": true}}}', "\x00\xff",
    ],
)  # fmt: skip
def test_a_wrong_line_is_left_out(tmp_path: Path, wrong: str):
    paths = RunPaths(str(tmp_path))
    Path(paths.samples).write_text(line(1) + wrong + "\n" + line(3))
    reader = SampleReader(paths)
    assert reader.read()
    assert [sample.at for sample in reader.series["worker/0"]] == [1.0, 3.0]


def test_a_wrong_field_is_unknown(tmp_path: Path):
    paths = RunPaths(str(tmp_path))
    metrics = {"loss": 0.5, "<b>\x1b[31m": 1, "bad": "1", "worse": float("nan"), "l" * 99: 2}
    fields = {"cpu": -1, "memory": "x", "gpu": 101, "printed_at": float("inf"), "step": True}
    Path(paths.samples).write_text(line(1, **fields, total=1e400, gpu_memory=7, metrics=metrics))
    reader = SampleReader(paths)
    reader.read()
    shown = {"loss": 0.5, "<b>\\x1b[31m": 1.0, "l" * 64: 2.0}
    assert reader.series == {"worker/0": [Sample(1.0, 1, gpu_memory=7, metrics=shown)]}


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text() | st.just("tasks"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), max_size=5))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_makes_the_reader_fail(tmp_path: Path, lines: list[bytes]):
    paths = RunPaths(str(tmp_path))
    Path(paths.samples).write_bytes(b"\n".join(lines))
    SampleReader(paths).read()


def series(
    *steps: float | None, every: float = 2, total: float | None = None, attempt: int = 1
) -> list[Sample]:
    """Samples at equal times with these steps."""
    return [Sample(index * every, attempt, step=step, total=total) for index, step in enumerate(steps)]


@pytest.mark.parametrize(
    ("samples", "rate"),
    [
        ([], None),
        (series(None, None), None),
        (series(5), None),
        (series(5, 5), None),
        (series(0, 4, 8), 2.0),
        (series(None, 0, None, 8), 2.0),
        # Of the last minute only: the first one was slow.
        (series(*range(29), *range(29, 339, 10)), 5.0),
        # Of the four steps of its first change, half were done before the minute.
        ([*series(0, 4, every=80), *(Sample(80 + 10 * n, 1, step=4 + n) for n in range(1, 3))], 4 / 60),
        # Less than one step a minute.
        (series(1, 2, 3, every=120), 1 / 120),
        # It has printed nothing for two minutes, although a step took two seconds.
        (series(*range(30), *[29] * 60), 1 / 120),
        # A new epoch of 100 steps.
        (series(80, 90, 0, 10, total=100), 5.0),
        # The attempt before does not count.
        ([*series(70, 80), *series(None, None, 6, 8, attempt=2)], 1.0),
    ],
)
def test_steps_per_second(samples: list[Sample], rate: float | None):
    assert steps_per_second(samples) == (None if rate is None else pytest.approx(rate))


@pytest.mark.parametrize(
    ("samples", "left"),
    [
        ([], None),
        (series(0, 4), None),
        (series(0, 4, total=10), 3.0),
        (series(0, 10, total=10), 0.0),
        (series(0, 11, total=10), None),
    ],
)
def test_time_left(samples: list[Sample], left: float | None):
    assert seconds_left(samples) == (None if left is None else pytest.approx(left))


def test_steps_count_from_when_they_were_printed():
    samples = [Sample(2, 1, step=10, printed_at=1.0), Sample(4, 1, step=20, printed_at=3.5)]
    assert steps_per_second(samples) == pytest.approx(4.0)


def test_numbers_that_lead_to_no_time_and_no_speed(tmp_path: Path):
    """Steps that a task has made up neither end a viewer nor show a number of 300 digits."""
    for steps, times in (((1e-300, 2e-300), (1, 2)), ((1, 2), (1, 2)), ((-1e300, 1e300), (1, 1 + 2e-16))):
        samples = [Sample(at, 1, step=step, total=1e300) for step, at in zip(steps, times, strict=True)]
        assert seconds_left(samples) is None
    denormal = [Sample(0.0, 1, step=-1e300), Sample(5e-324, 1, step=1e300)]
    assert steps_per_second(denormal) is None


def test_no_more_is_read_than_the_launcher_writes(tmp_path: Path):
    """A task that has written more keeps busy neither viewers nor the launcher at its end."""
    paths = RunPaths(str(tmp_path))
    Path(paths.samples).write_text(line(1, step=1) * 100_000 + line(2, step=7))
    reader = SampleReader(paths)
    assert reader.read()
    read = reader.series["worker/0"]
    assert len(read) < 2_000_000 / len(line(1, step=1)) and read[-1].step == 7
    tasks = [{"task": f"worker/{number}"} for number in range(1000)]
    Path(paths.plan).write_text(json.dumps({"tasks": tasks}))
    reader = SampleReader(paths)
    assert reader.read() and len(reader.series["worker/0"]) > len(read)
