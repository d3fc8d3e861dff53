"""``-x`` and ``--drain``."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from launcher.common.errors import Fault, Note
from launcher.config.settings import COMMAND_LINE, Given, Settings
from launcher.config.table import DRAIN
from launcher.config.values import duration
from launcher.job import SERVICE_ROLES, JobSpec, Program, Role
from launcher.launch.job_spec import variables_of, with_drain

HERE = {"A": "1", "TASK_X": "x", "TASK_INDEX": "0", "BASH_FUNC_f%%": "f", "PWD": "/here"}


def test_variables():
    words = ["A", "B=2=3", "TASK_*", "BASH_F*", "PW*", "NO_SUCH_*"]
    variables, copied, found = variables_of(words, HERE)
    assert variables == {"A": "1", "B": "2=3", "TASK_X": "x", "BASH_FUNC_f%%": "f"}
    assert copied == {"A", "TASK_X", "BASH_FUNC_f%%"}
    (note,) = found
    assert isinstance(note, Note) and note.text.startswith("-x NO_SUCH_*: ")


def role(name: str, **more) -> Role:
    return Role(name, 1, Program.of(["a"]), **{"service": name in SERVICE_ROLES, **more})


def drain(words: str, *roles: Role) -> tuple[dict[str, float | None], list[str], list[str]]:
    times = [(role, duration(text)) for role, _, text in (word.rpartition("=") for word in words.split())]
    settings = Settings({DRAIN.name: [Given(times, "--drain", COMMAND_LINE)]})
    spec, found = with_drain(JobSpec(roles), settings)
    faults = [str(each) for each in found if isinstance(each, Fault)]
    notes = [each.text for each in found if isinstance(each, Note)]
    return {role.name: role.drain for role in spec.roles if role.drain is not None}, faults, notes


CHIEF, WORKER, PS, EVALUATOR = (role(name) for name in ("chief", "worker", "ps", "evaluator"))
BOARD = role("board", sidecar=True, service=True)
NOTE = "--drain has no effect: it is for workers beside a chief, and for an evaluator"


@pytest.mark.parametrize(
    ("words", "roles", "times", "notes"),
    [
        ("1m", (CHIEF, WORKER, PS, EVALUATOR, BOARD), {"worker": 60, "evaluator": 60}, []),
        ("5 evaluator=1m ps=2", (CHIEF, WORKER, PS, EVALUATOR), {"worker": 5, "ps": 2, "evaluator": 60}, []),
        # a file wins against the option for all, the option for the role wins against the file
        ("7 z=3", (CHIEF, role("x", drain=0), role("y", service=True), role("z", drain=2)), {"x": 0, "z": 3}, []),
        ("1", (WORKER,), {"worker": 1}, [NOTE]),
        ("1", (CHIEF, PS), {}, [NOTE]),
        ("worker=1", (WORKER, EVALUATOR), {"worker": 1}, [NOTE]),
        ("1", (WORKER, EVALUATOR), {"worker": 1, "evaluator": 1}, []),
    ],
)  # fmt: skip
def test_drain(words: str, roles: tuple[Role, ...], times: dict[str, float], notes: list[str]):
    assert drain(words, *roles) == (times, [], notes)


@pytest.mark.parametrize("name", ["evaluator", "chief", "board"])
def test_faults_of_drain(name: str):
    (fault,) = drain(f"{name}=5", CHIEF, WORKER, PS, BOARD)[1]
    assert fault.startswith(f"--drain {name}=: '{name}'") and fault.endswith("ROLE=S with ps, worker")
