"""A job as it is exported: its tasks with their commands and variables, and what no exported form can do.

``launch export`` makes an `ExportedJob`, and the modules `compose`, `kubernetes` and `slurm` write it in
their forms. This module reads no file and asks no cluster. A value that is known only where the file is used
stays a marked name in the text.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml

from launcher.common.cluster import ClusterSpec, TaskId
from launcher.common.record import Record, replace
from launcher.common.text import escape_controls, plural_roles
from launcher.job import Host, JobSpec, Placement, Plan, Role, TaskPlan, deciding_roles
from launcher.scheduler.placement import place
from launcher.scheduler.plan import completed, make_plan

#: Stands before and after the name of a value that is known only when the task starts. No argument and no
#: variable contains a NUL byte, so the name is never mistaken for text of the user.
MARK = "\0"
#: The port on which every task listens where each task has an address of its own.
TASK_PORT = 2222
#: Variables that launch sets for each task unless the user does: Python then writes its output line by line,
#: and a traceback when it crashes.
_DEFAULT_VARIABLES = (("PYTHONUNBUFFERED", "1"), ("PYTHONFAULTHANDLER", "1"))
#: What a launcher does for a job, and a file cannot.
_LAUNCHER_ONLY = (
    "held ports", "restarts by the strategy", "--stall", "--drain", "--preload", "--sync", "--collect",
    "--tensorboard", "--output-dirs", "--output-to", "--on-end", "--on-event",
    "logs and a report of the tasks", "the first failure and its traceback",
)  # fmt: skip
#: The longest line of a comment, in characters.
_COMMENT_WIDTH = 100
#: Texts that need no quotes: every version of YAML reads them as texts.
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*[A-Za-z0-9]")


class ExportedRole(Record):
    """A role of an exported job, with its tasks and their ranks."""

    role: Role
    tasks: Sequence[TaskPlan]
    #: The rank of the first task of the role.
    first: int
    #: The rank after that of the last task of the role.
    end: int


class ExportedJob(Record):
    """A job that is ready to be written to a file: each task has a host, a command and variables."""

    #: The name of the job in the file, made by `export_name`.
    name: str
    spec: JobSpec
    placement: Placement
    plan: Plan
    #: The names of the variables whose values the user lets launch copy from its environment (``-x NAME``).
    #: The values may be secret, so they are not written to the file.
    copied_env: tuple[str, ...] = ()

    def roles(self) -> list[ExportedRole]:
        """Return the roles of the job in the order of ranks, each with its tasks.

        The rank of a task is its number among all tasks of the job. The ranks of a role follow one another.
        """
        role_by_name = {role.name: role for role in self.spec.roles}
        tasks_by_role: dict[str, list[TaskPlan]] = {}
        for task in self.plan.tasks:
            tasks_by_role.setdefault(task.task.role, []).append(task)
        roles, first = [], 0  # `first` is the rank of the next task.
        for name, tasks in tasks_by_role.items():
            roles.append(ExportedRole(role_by_name[name], tasks, first=first, end=first + len(tasks)))
            first += len(tasks)
        return roles

    def deciding_tasks(self) -> list[TaskId]:
        """Return the tasks whose ends decide when the job is done, such as the chief or all workers."""
        counts = deciding_roles(self.spec.roles, self.spec.policy.done_when)
        return [TaskId.of(name, index) for name, count in counts.items() for index in range(count)]

    def completed(self, task: TaskPlan) -> TaskPlan:
        """Return the plan of a task with its whole command line and its variables.

        Addresses and placeholders are filled in. Variables that are copied from the environment of launch are
        left out, because their values may be secret.
        """
        return self._with_variables(completed(task, ClusterSpec(self.plan.cluster, self.plan.sidecars)))

    def role_template(self, task: TaskPlan, known_later: Iterable[str]) -> TaskPlan:
        """Return one plan that serves all tasks of a role, because each learns its index when it starts.

        A value that is known only then is written as its name between two NUL bytes, in the command line and
        in the variables.

        Args:
            task: The plan of the first task of the role.
            known_later: The names of placeholders whose values are known when the task starts. The name
                ``cluster`` stands for the addresses in ``TF_CONFIG``.
        """
        cluster = _LaterCluster(self.plan, task.task, known_later)
        return self._with_variables(completed(replace(task, task=_AnyTask(task.task)), cluster))

    def _with_variables(self, task: TaskPlan) -> TaskPlan:
        """Return a task with the variables that launch sets by default.

        Variables that are copied from the environment of launch are left out, because they may be secret.
        """
        env = {name: value for name, value in task.env.items() if name not in self.copied_env}
        return replace(task, env={**dict(_DEFAULT_VARIABLES), **env})


def export_name(spec: JobSpec, text: str) -> str:
    """Return a name for an exported job: a letter, then lower-case letters, digits and dashes.

    Args:
        spec: The job. The name, that of a role and an index form a host name, which DNS limits to 63
            characters. So jobs with long names of roles get shorter names.
        text: Any text to make the name from, such as ``train_v2.py``.
    """
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-") or "job"
    if not name[0].isalpha():
        name = f"job-{name}"
    # Of the 63 characters, the dashes and an index of up to five digits need seven.
    max_length = max(1, 56 - max(len(role.name) for role in spec.roles))
    return name[:max_length].rstrip("-")


def export_plan(spec: JobSpec, hosts: Sequence[Host], port: int, name: str) -> ExportedJob:
    """Place the tasks of a job on hosts, and plan how each is started.

    Args:
        spec: The job, whose options were checked.
        hosts: The hosts to place the tasks on.
        port: The port of every task. In Compose and Kubernetes each task has an address of its own, so the
            ports do not clash. In a script for Slurm the port is replaced when the script runs.
        name: The name of the job, made by `export_name`.

    Raises:
        InputError: The tasks do not fit on the hosts. The error lists all faults.
    """
    placement = place(spec, tuple(hosts))
    plan = make_plan(spec, placement, dict.fromkeys((placed.task for placed in placement.tasks), port))
    return ExportedJob(name, spec=spec, placement=placement, plan=plan, copied_env=tuple(sorted(spec.copied)))


# ---------------------------------------------------------------------- values that are known later


class _AnyTask(TaskId):
    """Any task of a role: its index is a marked name, because the task learns it when it starts."""

    __slots__ = ()
    index = f"{MARK}task_index{MARK}"  # type: ignore[assignment]


class _LaterCluster(ClusterSpec):
    """The addresses and placeholders of a job for any task of a role, with marked names for unknown values.

    Args:
        plan: The plan of the job.
        task: A task of the role. Its values are used where they are the same for all tasks of the role.
        known_later: The names of placeholders whose values are known only when the task starts.
    """

    def __init__(self, plan: Plan, task: TaskId, known_later: Iterable[str]) -> None:
        """Compute the values as the base class does, then mark those that are known only later."""
        super().__init__(plan.cluster, plan.sidecars)
        #: The values of the placeholders for `task`.
        self._first = ClusterSpec(plan.cluster, plan.sidecars).values_of(task, attempt=1)
        #: The marked names of the values that are known only later, by the names of their placeholders.
        self._later = {name: f"{MARK}{name}{MARK}" for name in known_later}
        # What the base class has computed is replaced where it is known only later.
        self.json = self._later.get("cluster_spec", self.json)
        self.tf_json = self._later.get("cluster", self.tf_json)
        self.values.update({name: mark for name, mark in self._later.items() if name in self.values})

    def address(self, task: TaskId) -> str:
        """Return the marked name of the address, whatever the task: each of the role has another one."""
        return self._later["task_address"]

    def tf_config(self, task: TaskId) -> str:
        """Return the JSON of ``TF_CONFIG`` with marked names for the index, and for an unknown cluster."""
        kind = json.dumps(task.role)
        return f'{{"cluster":{self.tf_json},"task":{{"type":{kind},"index":{_AnyTask.index}}}}}'

    def values_of(self, task: TaskId, attempt: int) -> dict[str, str]:
        """Return the value of each placeholder, or its marked name if it is known only later.

        The values serve all tasks of the role. They are always those of the first attempt.
        """
        return {**self._first, **self.values, **self._later, "tf_config": self.tf_config(task)}


def fill_marks(text: str, quote: Callable[[str], str], reference: Callable[[str], str]) -> str:
    """Replace the marked names in a text by what a file writes for them, such as ``$TASK_INDEX``.

    Args:
        text: A text in which each name of a value that is known later stands between two `MARK` (NUL bytes).
        quote: Returns the text before, between or after the names as the file must write it.
        reference: Returns how the file refers to the value with a name.
    """
    # The text begins outside of the marks, so the parts with odd numbers are the names.
    parts = text.split(MARK)
    return "".join(reference(part) if number % 2 else quote(part) for number, part in enumerate(parts))


# ---------------------------------------------------------------------- comments


def heading(job: ExportedJob, form: str, left_out: str, usage: Iterable[str]) -> str:
    """Return the comments at the top of an exported file.

    Args:
        job: The job in the file.
        form: The form of the file, as ``launch export`` names it.
        left_out: What this form cannot do, though other forms can, with a comma after each.
        usage: Lines that say how the file is used.
    """
    tasks = plural_roles({exported.role.name: len(exported.tasks) for exported in job.roles()})
    lines = [f"Made by `launch export {form}`. It needs no launch. Tasks: {tasks}.", *usage]
    lines.append(f"Not in this file: {left_out}{', '.join(_LAUNCHER_ONLY)}.")
    comments = []
    for line in lines:
        is_command = line.startswith(" ")  # A command stays indented.
        comments += textwrap.wrap(escape_controls(line), _COMMENT_WIDTH, drop_whitespace=not is_command)
    return "".join(f"# {comment}\n" for comment in comments)


# ---------------------------------------------------------------------- YAML


class _Dumper(yaml.SafeDumper):
    """Writes YAML without aliases, and with quotes wherever a version of YAML might not read a text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that a value that occurs twice is written twice, without an alias."""
        return True


class Block(str):
    """The content of a file, which YAML shows line by line instead of in quotes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Return how a text is written: as a block, in quotes, or plainly if no reader can mistake it."""
    style: str | None = '"' if "\n" in text else "'"
    if isinstance(text, Block):
        style = "|"
    elif _PLAIN_TEXT.fullmatch(text):
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Block, _text)


def to_yaml(*values: Mapping[str, Any]) -> str:
    """Return a file of YAML with one document for each value."""
    return yaml.dump_all(values, Dumper=_Dumper, sort_keys=False, width=sys.maxsize, explicit_start=True)
