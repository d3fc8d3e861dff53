"""What is said when several tasks write to one folder."""

from __future__ import annotations

import pytest

from launcher.job import TaskId
from launcher.luggage.requests import parse_collects
from launcher.luggage.sharing import sharing_remark

ROLES = {"ps": 1, "worker": 4}
TWO = [("worker/0", "n1", "/w"), ("worker/1", "n1", "/w"), ("worker/2", "n2", "/w")]


def remark(collects: list[str], tasks: list[tuple[str, str, str]]) -> str:
    def filled(path: str, task: TaskId) -> str:
        return path.replace("{job_name}", task.role).replace("{task_index}", str(task.index))

    named = [(TaskId(task), host, folder) for task, host, folder in tasks]
    return sharing_remark(parse_collects(collects, ROLES), named, filled)


def test_two_on_one_host():
    assert remark(["model"], TWO) == (
        "--collect: worker/0, worker/1 share the folder on n1: "
        "results of the same name are the same file; use {task_index} in the path"
    )


def test_two_on_several_hosts():
    four = [*TWO, ("worker/3", "n2", "/w")]
    assert " share the folder on n1 (and so on, on 1 more host): " in remark(["model", "log"], four)


def test_two_of_different_roles():
    both = [("ps/0", "n1", "/w"), ("worker/0", "n1", "/w")]
    assert remark(["out-{task_index}"], both).endswith("use {job_name} and {task_index} in the path")


@pytest.mark.parametrize(
    ("collects", "tasks"),
    [
        ([], TWO),
        (["out-{task_index}"], TWO),
        (["worker/0=model", "worker/2=model"], TWO),
        (["model"], [("worker/0", "n1", "/w"), ("worker/1", "n1", "/other")]),
        (["model", "model"], TWO[1:]),
    ],
)
def test_nothing_is_shared(collects: list[str], tasks: list[tuple[str, str, str]]):
    assert remark(collects, tasks) == ""
