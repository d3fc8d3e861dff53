"""A job as it is exported: its tasks with their commands and variables, and what no exported form can do.

The three forms of ``launch export`` share it. It is pure: what is known only where the file is used stays a
placeholder.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import yaml

from launcher.common.cluster import ClusterSpec, TaskId
from launcher.common.record import Record, replace
from launcher.common.text import escape_controls, plural_roles
from launcher.job import Host, JobSpec, Placement, Plan, Role, TaskPlan, deciding_roles
from launcher.scheduler.placement import place
from launcher.scheduler.plan import completed, make_plan

#: The beginning and the end of a name in a text: of a value that is known when the task starts. No argument
#: and no variable contains it.
MARK = "\0"
#: The port of each task where each has an address of its own.
TASK_PORT = 2222
#: Variables that launch gives each task unless the user sets them: output comes line by line.
_DEFAULT_VARIABLES = (("PYTHONUNBUFFERED", "1"), ("PYTHONFAULTHANDLER", "1"))
#: What only a launcher can do.
_LAUNCHER_ONLY = (
    "held ports", "restarts by the strategy", "--stall", "--drain", "--preload", "--sync", "--collect",
    "--tensorboard", "--output-dirs", "logs and a report of the tasks", "the first failure and its traceback",
)  # fmt: skip
#: Characters of a line of comments.
_COMMENT_WIDTH = 100
#: Texts that every reader of YAML takes for the same text without quotes.
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*[A-Za-z0-9]")


class Part(Record):
    """A role of an exported job."""

    role: Role
    tasks: Sequence[TaskPlan]
    #: The rank of its first task, and the first one after its last task.
    first: int
    end: int


class Exported(Record):
    """A job, placed and planned."""

    #: Of the job: letters, digits and dashes.
    name: str
    spec: JobSpec
    placement: Placement
    plan: Plan
    #: Names of variables that are copies of launch's own: their values may be secret.
    copied: tuple[str, ...] = ()

    def parts(self) -> list[Part]:
        """Return the roles in the order of the table, with their tasks."""
        roles = {role.name: role for role in self.spec.roles}
        tasks: dict[str, list[TaskPlan]] = {}
        for task in self.plan.tasks:
            tasks.setdefault(task.task.role, []).append(task)
        ends = accumulate(map(len, tasks.values()))
        return [
            Part(roles[name], tasks=found, first=end - len(found), end=end)
            for (name, found), end in zip(tasks.items(), ends, strict=True)
        ]

    def deciding(self) -> list[TaskId]:
        """Return the tasks that decide when the job is done."""
        counts = deciding_roles(self.spec.roles, self.spec.policy.done_when)
        return [TaskId.of(name, index) for name, count in counts.items() for index in range(count)]

    def completed(self, task: TaskPlan) -> TaskPlan:
        """Return a task with all its arguments and variables, but no value of `copied`."""
        return self._own(completed(task, ClusterSpec(self.plan.cluster, self.plan.sidecars)))

    def of_role(self, task: TaskPlan, known_later: Iterable[str]) -> TaskPlan:
        """Return a task of a role whose index is known when it starts, see `MARK`.

        Args:
            task: The first one of its role.
            known_later: The placeholders whose values are known then; ``cluster`` is that in ``TF_CONFIG``.
        """
        cluster = _LaterCluster(self.plan, task.task, known_later)
        return self._own(completed(replace(task, task=_AnyTask(task.task)), cluster))

    def _own(self, task: TaskPlan) -> TaskPlan:
        env = {name: value for name, value in task.env.items() if name not in self.copied}
        return replace(task, env={**dict(_DEFAULT_VARIABLES), **env})


def label(spec: JobSpec, name: str) -> str:
    """Return the name of an exported job: small letters, digits and dashes.

    Args:
        spec: With the name of a role and an index it is the name of a host: at most 63 characters.
        name: Any text.
    """
    made = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "job"
    most = max(1, 56 - max(len(role.name) for role in spec.roles))
    return (made if made[0].isalpha() else f"job-{made}")[:most].rstrip("-")


def exported(spec: JobSpec, hosts: Sequence[Host], port: int, name: str) -> Exported:
    """Place and plan a job.

    Args:
        spec: Checked.
        hosts: Of its tasks.
        port: Of all tasks.
        name: By `label`.

    Raises:
        InputError: With all faults.
    """
    placement = place(spec, tuple(hosts))
    plan = make_plan(spec, placement, dict.fromkeys((placed.task for placed in placement.tasks), port))
    return Exported(name, spec=spec, placement=placement, plan=plan, copied=tuple(sorted(spec.copied)))


# ---------------------------------------------------------------------- values that are known later


class _AnyTask(TaskId):
    """A task of a role."""

    __slots__ = ()
    index = f"{MARK}task_index{MARK}"  # type: ignore[assignment]


class _LaterCluster(ClusterSpec):
    """The addresses of a job as a task sees them that is not known yet.

    Args:
        plan: Of the job.
        task: One of its role.
        later: See `Exported.of_role`.
    """

    def __init__(self, plan: Plan, task: TaskId, later: Iterable[str]) -> None:
        super().__init__(plan.cluster, plan.sidecars)
        self._first = ClusterSpec(plan.cluster, plan.sidecars).values_of(task, attempt=1)
        self._later = {name: f"{MARK}{name}{MARK}" for name in later}
        self.json = self._later.get("cluster_spec", self.json)
        self.tf_json = self._later.get("cluster", self.tf_json)
        self.values.update({name: mark for name, mark in self._later.items() if name in self.values})

    def address(self, task: TaskId) -> str:
        return self._later["task_address"]

    def tf_config(self, task: TaskId) -> str:
        kind = json.dumps(task.role)
        return f'{{"cluster":{self.tf_json},"task":{{"type":{kind},"index":{_AnyTask.index}}}}}'

    def values_of(self, task: TaskId, attempt: int) -> dict[str, str]:
        return {**self._first, **self.values, **self._later, "tf_config": self.tf_config(task)}


def filled(text: str, known: Callable[[str], str], value: Callable[[str], str]) -> str:
    """Return a text whose parts are written in the form of a file.

    Args:
        text: With names in `MARK`.
        known: Writes what is known.
        value: Writes the value with a name.
    """
    parts = text.split(MARK)
    return "".join(value(part) if number % 2 else known(part) for number, part in enumerate(parts))


# ---------------------------------------------------------------------- comments


def heading(job: Exported, form: str, left_out: str, lines: Iterable[str]) -> str:
    """Return the comments at the top of a file.

    Args:
        job: Of the file.
        form: The argument of ``launch export``.
        left_out: What this form cannot do, though other forms can.
        lines: How the file is used.
    """
    tasks = plural_roles({part.role.name: len(part.tasks) for part in job.parts()})
    found = [f"Made by `launch export {form}`. It needs no launch. Tasks: {tasks}.", *lines]
    found.append(f"Not in this file: {left_out}{', '.join(_LAUNCHER_ONLY)}.")
    wrapped = (
        textwrap.wrap(escape_controls(line), _COMMENT_WIDTH, drop_whitespace=line[:1] != " ")
        for line in found
    )
    return "".join(f"# {line}\n" for line in chain.from_iterable(wrapped))


# ---------------------------------------------------------------------- YAML


class _Dumper(yaml.SafeDumper):
    """Writes texts so that every version of YAML reads the same ones, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Block(str):
    """The text of a file, which is shown as it is."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if isinstance(text, Block) else '"' if "\n" in text else "'"
    plain = style == "'" and _PLAIN_TEXT.fullmatch(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Block, _text)


def documents(*values: Mapping[str, Any]) -> str:
    """Documents of YAML."""
    return yaml.dump_all(values, Dumper=_Dumper, sort_keys=False, width=sys.maxsize, explicit_start=True)
