"""Samples of a job: what the thread writes of measurements and logs, and how the file stays small."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.common.cluster import TaskId
from launcher.common.events import Measured
from launcher.job import RunPaths
from launcher.launch.sample_writer import Measurement, SampleWriter, thinned
from launcher.runs.samples import Sample, SampleReader

TASK = TaskId("worker/0")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "logs").mkdir()
    return RunPaths(str(tmp_path))


def measurement(at: float, attempt: int = 1, cpu: float | None = None, **more: Any) -> Measurement:
    """A measurement of one task on a host of four CPUs."""
    cpu_s = {} if cpu is None else {TASK: cpu}
    others = {name: {TASK: value} for name, value in more.items()}
    return Measurement(Measured("node1", at, {TASK: 100}, cpu_s, **others), {TASK: attempt}, cpus=4)


def read(paths: RunPaths) -> list[Sample]:
    reader = SampleReader(paths)
    reader.read()
    return reader.series[TASK]


def test_cores_in_use(paths: RunPaths):
    """The first sample of an attempt tells none, and no other one more than there are."""
    writer = SampleWriter(paths, 1, None)
    for values in (
        (10, 1, 2e5), (12, 1, 2e5 + 3), (14, 1, 1), (16, 1, 1e5), (18, 2, 3), (20, 2, 4), (22, 2, None),
    ):  # fmt: skip
        writer.write([measurement(*values)])
    assert [sample.cpu for sample in read(paths)] == [None, 1.5, 0.0, 4.0, None, 0.5, None]
    assert [sample.attempt for sample in read(paths)] == [1, 1, 1, 1, 2, 2, 2]


def test_progress_is_read_when_a_log_has_changed(paths: RunPaths):
    writer, log = SampleWriter(paths, 1, "step (?P<step>[0-9]+)"), Path(paths.log(TASK))
    writer.write([measurement(1, gpu=50.0, gpu_memory=7)])
    log.write_text("step 1\nstep 2\n")
    os.utime(log, (5, 5))
    writer.write([measurement(3)])
    log.write_text("no more\n")
    writer.write([measurement(5)])
    log.unlink()
    os.mkfifo(log)
    writer.write([measurement(7, attempt=2)])
    first, second, third, last = read(paths)
    assert (first.step, first.printed_at, first.gpu, first.gpu_memory) == (None, None, 50.0, 7)
    assert (second.step, second.printed_at, second.gpu) == (2.0, 5.0, None)
    assert third.step == 2.0 and third.printed_at is not None and third.printed_at > 5
    assert last.step is None


def test_the_last_steps_of_a_job(paths: RunPaths):
    """They are written when the job ends, once."""
    writer, log = SampleWriter(paths, 1, r"step (?P<step>\d+) loss (?P<loss>\S+)"), Path(paths.log(TASK))
    log.write_text("step 1 loss 2.0\n")
    writer.write([measurement(1)])
    for _ in range(2):
        log.write_text("step 1 loss 2.0\nstep 3 loss 0.5\n")
        os.utime(log, (2e9, 2e9))  # Another clock.
        writer.write_last({TASK: 1})
    first, last = read(paths)
    assert (first.step, last.step, last.metrics) == (1.0, 3.0, {"loss": 0.5})
    assert last.at - first.at < 60


def line(at: float, tasks: Mapping[str, Any]) -> bytes:
    return json.dumps({"at": at, "tasks": tasks}).encode()


def test_a_long_time_is_drawn_evenly(paths: RunPaths):
    """Of hosts that answer in turn, each stays, whatever their turn has in common with the spans of time."""
    lines = []
    for at in range(20_000):
        lines.append(line(at, {f"worker/{at % 10}": {"attempt": 1, "memory": 100_000_000 + at}}))
        if len(lines) * 70 > 100_000:
            lines = thinned(lines, 100_000)
    moments = [json.loads(each) for each in lines]
    times = [moment["at"] for moment in moments]
    assert times == sorted(times) and times[-1] == 19_999
    early = [at for at in times if at < 10_000]
    gaps = [after - before for before, after in zip([0, *early], early, strict=False)]
    assert len(early) > 10 and max(gaps) < 2000
    assert {task for moment in moments[:5] for task in moment["tasks"]} == {f"worker/{n}" for n in range(10)}


def test_the_file_stays_small_whatever_tasks_write_into_it(paths: RunPaths, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("launcher.runs.samples._MAX_BYTES", 10_000)
    writer, file = SampleWriter(paths, 1, None), Path(paths.samples)
    for at in range(1000):
        writer.write([measurement(at + 1, cpu=at)])
        if at == 500:
            file.write_bytes(b"\xff{\n" * 100 + line(1, {"x" * 9000: {}}) + b"\n")
        assert file.stat().st_size <= 15_000
    assert len(read(paths)) > 30
    with file.open("ab") as end:
        end.truncate(1 << 30)
    writer.write([measurement(2000)])
    assert file.stat().st_size < 1000 and len(read(paths)) == 1
    file.unlink()
    file.symlink_to(paths.root + "/elsewhere")
    with pytest.raises(OSError):
        writer.write([measurement(2001)])
    assert not Path(paths.root, "elsewhere").exists()
    file.unlink()
    writer.write([measurement(2002)])
    assert len(read(paths)) == 1
