"""``plan.json``: what was started where."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher.job import OUTPUT_DIR, RELAY, Plan, RunPaths, TaskPlan
from launcher.output.files import write_json
from launcher.scheduler.plan import completed

#: Version of ``plan.json``.
PLAN_SCHEMA = 1

#: Variables of a task that are ours, in the order shown.
OWN_VARIABLES = (
    "JOB_NAME",
    "TASK_INDEX",
    "TASK_ADDRESS",
    "TF_CONFIG",
    "CLUSTER_SPEC",
    "CUDA_VISIBLE_DEVICES",
    OUTPUT_DIR,
    RELAY,
)


def write_plan(plan: Plan, paths: RunPaths, job: str) -> None:
    """Write ``plan.json``.

    Raises:
        OSError: it can't be written.
    """
    fields = plan_as_dict(plan._replace(tasks=()), job)
    write_json(paths.plan, {**fields, "tasks": map(_task_as_dict, completed(plan))})


def plan_as_dict(plan: Plan, job: str) -> dict[str, object]:
    """A plan for JSON. Of the environment only what we set ourselves: the rest may be secret."""
    tasks = [_task_as_dict(task) for task in completed(plan)]
    command = _without_values(sys.argv)
    return {"schema": PLAN_SCHEMA, "job": job, "command": command, "tasks": tasks, "cluster": plan.cluster}


def _task_as_dict(task: TaskPlan) -> dict[str, object]:
    return {
        "task": task.task,
        "host": task.host,
        "address": task.address,
        "port": task.port,
        "argv": task.argv,
        "workdir": task.workdir,
        "venv": task.venv,
        "gpus": task.gpus,
        "env": {name: task.env[name] for name in OWN_VARIABLES if name in task.env},
    }


def _without_values(words: Sequence[str]) -> list[str]:
    """The command line without the values of ``-x NAME=VALUE``: they may be secret."""
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        name, equals, _ = word.partition("=")
        secret = equals and (before == "-x" or word.startswith("-x"))
        shown.append(f"{name}=..." if secret else word)
    return shown
