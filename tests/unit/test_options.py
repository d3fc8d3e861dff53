"""What a program asks of a launch, as a command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.api.options import Program, Settings, settings_faults
from launcher.job import TaskId
from launcher.output.jsonl import report_as_dict
from launcher.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState, report_from_json

W0 = TaskId("worker/0")


@pytest.mark.parametrize(
    ("program", "words", "roles"),
    [
        (Program(["true"]), "", {"worker": {"command": ["true"]}}),
        (
            Program(["-m", "package.train", "-v"], workers=0, chief=True),
            "",
            {
                "chief": {"command": ["-m", "package.train", "-v"], "count": 1},
                "worker": {"command": ["-m", "package.train", "-v"], "count": 0},
            },
        ),
        (Program(["job.yaml"], workers=3), "-- job.yaml", {"worker": {"count": 3}}),
        (Program(["job.yaml"], roles={"reader": 2}), "-- job.yaml", {"reader": {"count": 2}}),
        (
            Program(["run"], workers=1, roles={"reader": {"count": 2, "command": "read"}}),
            "",
            {"worker": {"command": ["run"], "count": 1}, "reader": {"command": "read", "count": 2}},
        ),
    ],
    ids=str,
)
def test_programs(program: Program, words: str, roles: dict[str, Any]):
    assert program.command_line() == (words.split(), roles)


def test_settings_have_no_value_of_the_environment():
    settings = Settings("lab.yaml", "x/y:1", env={"KEY": "secret"}, grace=2.5, flags=True, options=["--json"])
    words = "--json --flags -x KEY --hosts lab.yaml --docker x/y:1 --grace 2.5"
    assert settings.words() == words.split()
    assert settings.environ()["KEY"] == "secret"


def test_all_faults_of_settings_at_once():
    given: Any = {"env": {"N": 1}, "gpus": -1, "options": "--json"}
    assert [str(fault) for fault in settings_faults("run", Settings(**given))] == [
        "run: gpus=-1; expected a whole number, 0 or more",
        "run: env: 'N' is 1; expected texts: 'N': '1'",
        "run: options='--json'; expected a list of texts: options=['--json']",
    ]


@pytest.mark.parametrize("failure", [None, Failure(Reason.SIGNAL, W0, "node1", 2.0, "killed", "more memory")])
def test_a_report_comes_back_as_it_was(failure: Failure | None):
    status = ExitStatus(None, 9)
    first = (W0, "node1", "node1:4000", 4000, TaskState.FAILED, Reason.SIGNAL, status, "killed", 1, 4711)
    task = TaskReport(*first, 1.0, 2.0, 1 << 20, 0.5, 1, (7, 8))
    report = Report("a-job", 137, 1.0, 3.0, (task,), failure, "/run")
    line = json.dumps({"event": "Report", **report_as_dict(report), "a field of tomorrow": 1})
    assert report_from_json(json.loads(line)) == report
