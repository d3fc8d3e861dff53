"""What options and a job file ask for together."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from launcher.cli import run
from launcher.cli.request import Request, understand
from launcher.errors import JobError

JOB = "command: train.py\nroles: {worker: 2, ps: 1}\n"


@pytest.fixture
def asked(tmp_path: Path):
    """What a job file with this text, and these words before and after its name, ask for."""

    def ask(text: str, before: list[str], after: list[str]) -> tuple[Request, argparse.Namespace]:
        file = tmp_path / "job.yaml"
        file.write_text(text)
        parser = argparse.ArgumentParser()
        run.add_arguments(parser)
        args = parser.parse_args([*before, str(file), *after])
        return understand(args), args

    return ask


def test_what_was_said_before_the_file_stays(asked):
    before = ["--workers=3", "--flags", "-x", "A=1", "--memory=ps=1g", "--docker=img", "--pull=never"]
    after = ["-x", "B=2", "--workers", "4", "--quiet"]
    request, args = asked(JOB, before, after)
    assert request.job.said_env == (("A", "1"), ("B", "2"))
    assert {role.name: role.count for role in request.job.roles} == {"worker": 4, "ps": 1}
    assert (request.job.flags, args.quiet, args.pull, args.memory) == (True, True, "never", [("ps", 1 << 30)])


@pytest.mark.parametrize(
    "text",
    [JOB + "hostz: [a]", JOB + "hosts: [{name: a, slots: x}]", JOB + "hosts: no-such-file.yaml"],
)
def test_hosts_that_can_not_be_read_make_no_option_wrong(asked, text: str):
    for more in ([], ["--docker", "img"]):
        with pytest.raises(JobError) as caught:
            asked(text, ["--lease", "30", *more], [])
        assert len(caught.value.faults) == 1, caught.value.faults


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train.py", "--workers", "2", "--hosts=lab.yaml"], ["--workers", "--hosts"]),
        (["--workers", "3", "train.py", "--workers", "2"], []),  # the program has one too
        (["--", "train.py", "--workers", "2"], []),
        (["train.py", "--epochs", "2"], []),
        (["-m", "train", "--ps", "1"], ["--ps"]),
    ],
)
def test_options_after_the_program_are_told(words: list[str], told: list[str]):
    notes = understand(parsed(*words)).notes
    assert [note.split()[0] for note in notes] == told


def test_drain_is_for_those_who_do_not_decide():
    request = understand(
        parsed("--chief", "--workers=2", "--ps=1", "--evaluator", "--drain", "1m", "train.py")
    )
    assert {role.name: role.drain for role in request.job.roles} == {
        "chief": None, "worker": 60.0, "ps": None, "evaluator": 60.0,
    }  # fmt: skip
    assert not request.notes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers=2", "--drain=1"], True),
        (["--chief", "--ps=1", "--drain=1"], True),
        (["--workers=2", "--evaluator", "--drain=worker=1"], True),
        (["--workers=2", "--evaluator", "--drain=1"], False),
        (["--workers=2", "--chief", "--drain=worker=1"], False),
    ],
)
def test_drain_that_nobody_needs_is_told(words: list[str], told: bool):
    notes = understand(parsed(*words, "train.py")).notes
    wanted = "--drain changes nothing here: it is for workers beside a chief, and for an evaluator"
    assert notes == ((wanted,) if told else ())


def test_drain_of_a_role():
    words = ["--chief", "--workers=2", "--ps=1", "--evaluator", "--drain=evaluator=1m", "--drain", "ps=2"]
    for more, workers in ([], None), (["--drain", "5"], 5.0):
        roles = understand(parsed(*words, *more, "train.py")).job.roles
        assert [role.drain for role in roles] == [None, workers, 2.0, 60.0]


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        (
            "soon",
            "--drain: 'soon' is no duration; expected seconds, or a number and s, m, h or d, as in 90 or 5m",
        ),
        ("ps=soon", "--drain ps=: 'soon' is no duration"),
        ("evaluator=5", "--drain evaluator=: there is no role 'evaluator'; expected one of ps, worker"),
        ("chief=5", "--drain chief=: the job is done when the chief is; expected one of ps, worker"),
    ],
)
def test_faults_of_drain(word: str, fault: str):
    with pytest.raises(JobError) as caught:
        understand(parsed("--chief", "--workers=1", "--ps=1", "--grace", "x", "--drain", word, "train.py"))
    grace, drain = map(str, caught.value.faults)
    assert grace.startswith("--grace: ") and drain.startswith(fault)


def test_what_a_file_says_of_drain_wins_role_by_role(asked):
    """Unless the option names the role. It is not for those that never end by themselves."""
    roles = (
        "{chief: 1, worker: {drain: 0}, reader: 1, evaluator: {drain: 5m}, ps: 1, board: {sidecar: true}, "
        "dispatcher: {service: true}, writer: {service: true, drain: 2}}"
    )
    request, _ = asked(f"command: train.py\nroles: {roles}\n", ["--drain=writer=3"], ["--drain=7"])
    assert {role.name: role.drain for role in request.job.roles} == {
        "chief": None, "worker": 0.0, "reader": 7.0, "evaluator": 300.0, "ps": None, "board": None,
        "dispatcher": None, "writer": 3.0,
    }  # fmt: skip


def test_a_pattern_carries_what_is_there(monkeypatch: pytest.MonkeyPatch):
    """But nothing that is each task's own, though it be set here, as in a task that launches."""
    for name in [name for name in os.environ if name.startswith(("TASK_", "BASH_F"))]:
        monkeypatch.delenv(name)
    for name in ("TASK_INDEX", "TASK_X", "BASH_FUNC_f%%"):
        monkeypatch.setenv(name, "1")
    request = understand(parsed("-x", "TASK_*", "-x", "BASH_F*", "-x", "NO_SUCH_*", "true"))
    assert dict(request.job.said_env) == {"TASK_X": "1", "BASH_FUNC_f%%": "1"}
    assert request.notes == ("-x NO_SUCH_*: no variable that is set here begins so",)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args(words)
