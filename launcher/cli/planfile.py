"""``plan.json``, and what a dry run shows of a plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher.job import OUTPUT_DIR, RELAY, Plan, RunPaths

#: Version of ``plan.json``.
PLAN_SCHEMA = 1


def write_plan(plan: Plan, paths: RunPaths, job: str) -> str:
    """Write ``plan.json``; what went wrong, for the user: a full disk does not stop the job."""
    from launcher.output.files import write_json

    try:
        write_json(paths.plan, plan_as_dict(plan, job))
    except OSError as error:
        return f"can't write {paths.plan}: {error.strerror}"
    return ""


def plan_as_dict(plan: Plan, job: str) -> dict[str, object]:
    """A plan for JSON. Of the environment only what we set ourselves: the rest may be secret."""
    tasks = [
        {
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
        for task in plan.tasks
    ]
    command = _shown_command(sys.argv)
    return {"schema": PLAN_SCHEMA, "job": job, "command": command, "tasks": tasks, "cluster": plan.cluster}


def _shown_command(words: Sequence[str]) -> list[str]:
    """The command line without the values that ``-x NAME=VALUE`` gives: they may be secret."""
    if not any(word.startswith("-x") for word in words):
        return list(words)
    from launcher.cli.masking import masked  # not on the way of a plain launch

    return masked(words)


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
