"""What a program asks of a launch, as a command line."""

from __future__ import annotations

import json

import pytest

from launcher.api.run import Options, option_arguments
from launcher.output.jsonl import record_as_dict
from launcher.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState, report_from_json
from launcher.task_id import TaskId

W0 = TaskId("worker/0")


def test_options_on_the_command_line_have_no_value_of_the_environment():
    options: Options = {"hosts": "lab.yaml", "docker": "x/y:1", "env": {"KEY": "secret"}, "timeout": None}
    options |= {"grace": 2.5, "flags": True, "options": ["--json"]}
    words = "--json --flags -x KEY --hosts lab.yaml --docker x/y:1 --grace 2.5"
    assert option_arguments(options) == words.split()


@pytest.mark.parametrize("failure", [None, Failure(Reason.SIGNAL, W0, "node1", 2.0, "killed", "more memory")])
def test_a_report_comes_back_as_it_was(failure: Failure | None):
    status = ExitStatus(None, 9)
    first = (W0, "node1", "node1:4000", 4000, TaskState.FAILED, Reason.SIGNAL, status, "killed", 1, 4711)
    task = TaskReport(*first, 1.0, 2.0, 1 << 20, 0.5, 1, (7, 8))
    report = Report("a-job", 137, 1.0, 3.0, (task,), failure, "/run")
    line = json.dumps({"event": "Report", **record_as_dict(report), "a field of tomorrow": 1})
    assert report_from_json(json.loads(line)) == report
