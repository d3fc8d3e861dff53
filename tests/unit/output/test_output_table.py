from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import ExitStatus, Failure, Reason, TaskState
from launcher.output.table import path_line, result_table, verdict
from tests.unit.output.output_samples import failed, report, task_report

STOPPED: dict[str, Any] = {
    "state": TaskState.STOPPED,
    "reason": Reason.STOPPED,
    "status": ExitStatus(signal=15),
}
FAILURE = Failure(Reason.EXIT, task=TaskId("worker/1"), host="node2", at=111.0, text="worker/1: exit code 7")


@pytest.mark.promise("the table")
def test_all_well(snapshot: SnapshotAssertion):
    ended = report(task_report("worker/0"), task_report("ps/0", port=40001, **STOPPED))
    assert result_table(ended) == snapshot


KILLED: dict[str, Any] = {
    "state": TaskState.FAILED, "reason": Reason.OUT_OF_MEMORY, "status": ExitStatus(signal=9)
}  # fmt: skip
NEVER: dict[str, Any] = {
    "state": TaskState.CANCELLED, "status": ExitStatus(), "port": None, "started_at": None, "peak_rss": None
}  # fmt: skip


def test_a_failure(snapshot: SnapshotAssertion):
    tasks = [task_report("worker/0", **KILLED), failed("worker/1", host="node2")]
    tasks += [task_report("worker/2", "node2", **NEVER)]
    assert result_table(report(*tasks, failure=FAILURE, exit_code=7)) == snapshot


def test_many_that_failed_have_rows_the_first_first():
    tasks = [task_report(f"worker/{n}", **STOPPED) for n in range(490)]
    tasks += [failed(f"worker/{n}") for n in range(490, 540)]
    failure = replace(FAILURE, task=TaskId("worker/539"))
    ended = report(*tasks, task_report("ps/0", **STOPPED), failure=failure, exit_code=7)
    lines = result_table(ended).splitlines()
    assert lines[1].startswith("worker/539") and lines[1].endswith("<- first")
    assert lines[3].split()[0] == "worker/491"
    assert lines[41:44] == [
        "10 tasks of worker: failed (12s, up to 12 MB)",
        "490 tasks of worker: stopped (12s, up to 12 MB)",
        "1 task of ps: stopped (12s, up to 12 MB)",
    ]


@pytest.mark.parametrize(
    ("code", "fields", "told"),
    [
        (130, {"reason": Reason.INTERRUPTED, "text": "stopped by Ctrl-C"}, "Ctrl-C"),
        (124, {"reason": Reason.TIMEOUT, "at": 105.0, "text": "it took longer"}, "5.0s"),
        (124, {"reason": Reason.TIMEOUT, "at": 126.2, "limit": "25s"}, "25s"),
        (125, {"reason": Reason.HOST_LOST, "host": "node2", "text": "the connection ended"}, "node2"),
        (125, {"reason": Reason.LAUNCHER, "text": "broken"}, "failed"),
    ],
)
def test_the_verdict(code: int, fields: dict[str, Any], told: str, snapshot: SnapshotAssertion):
    failure = Failure(**{"task": None, "host": None, "at": 1.0, "text": "", **fields})
    line = verdict(report(failure=failure, exit_code=code))
    assert f"exit code {code}" in line and told in line
    assert line == snapshot


@pytest.mark.parametrize(
    ("failure", "folder", "told"),
    [
        (None, "/home/me/runs/1", "logs: ~/runs/1\n"),
        (None, "/home/mean/runs/1", "logs: /home/mean/runs/1\n"),
        (None, "/runs/\x1b]0;x\x07", "logs: /runs/\\x1b]0;x\\x07\n"),
        (None, "", ""),
        (FAILURE, "/home/me/runs/1", "log: ~/runs/1/logs/worker-1.log\n"),
        (replace(FAILURE, task=TaskId("worker/2")), "/runs/1", "logs: /runs/1\n"),
        (replace(FAILURE, task=None), "/runs/1", "logs: /runs/1\n"),
    ],
)
def test_the_path_that_matters(
    monkeypatch: pytest.MonkeyPatch, failure: Failure | None, folder: str, told: str
):
    """The log of the task that failed first. A task that never started has none."""
    monkeypatch.setenv("HOME", "/home/me")
    tasks = (failed("worker/1"), task_report("worker/2", **NEVER))
    assert path_line(report(*tasks, failure=failure, run_dir=folder)) == told


def test_a_report_in_a_notebook():
    """Bounded, whatever the job."""
    failure = replace(FAILURE, text="worker/7 failed on <b>: " + "x" * 9000)
    many = report(*(failed(f"worker/{n}", host="<b>") for n in range(500)), failure=failure, exit_code=7)
    assert len(repr(many)) < 500 and "\n" not in repr(many)
    assert repr(many).startswith(
        "<Report of mnist: exit code 7 after 12s, tasks: 500 failed; worker/7 failed on <b>"
    )
    shown = many._repr_html_()
    assert shown.count("<tr>") == 102 and "<td>400 more</td>" in shown and "<b>" not in shown
    row = "<td>worker/0</td><td>&lt;b&gt;</td><td>failed</td><td>exit code 7</td><td>12s</td>"
    assert f"<tr>{row}</tr>" in shown
