"""Shows the plan of a job, as ``plan.json`` and for ``--dry-run``.

The orchestrator and the session call it. The values of the user's variables may be secret: they are never in
``plan.json``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence

from launcher import __version__, backends
from launcher.common.cluster import ClusterSpec
from launcher.common.text import escape_controls, join_names, shortened
from launcher.config import table
from launcher.config.settings import Settings, SourceKind
from launcher.job import OUTPUT_DIR_VARIABLE, RELAY_VARIABLE, JobSpec, Placement, Plan, Policy, TaskPlan
from launcher.scheduler.plan import completed, make_plan

#: The version of the form of ``plan.json``.
PLAN_SCHEMA = 1

#: The folder of the metadata of TensorFlow, in that of installed packages.
_TENSORFLOW_PATTERN = r"tensorflow(?:_cpu|_intel)?-(\d[^-]*)\.dist-info"

#: The first port of a dry run, whose ports are examples.
_FIRST_PORT = 20_000

#: A dry run of more tasks than this shows one command for all tasks that are alike.
_MAX_TASKS_IN_FULL = 20
#: It also cuts words at this number of characters.
_MAX_WORD_CHARACTERS = 200
#: Variables in which tasks that are alike differ.
_DIFFERING_VARIABLES = ("CUDA_VISIBLE_DEVICES", OUTPUT_DIR_VARIABLE, RELAY_VARIABLE)
#: Variables that launch sets, in the order in which a dry run shows them.
OWN_VARIABLES = ("JOB_NAME", "TASK_INDEX", "TASK_ADDRESS", "TF_CONFIG", "CLUSTER_SPEC", *_DIFFERING_VARIABLES)
#: Variables in ``plan.json``.
_TASK_VARIABLES = ("JOB_NAME", "TASK_INDEX", "TASK_ADDRESS", *_DIFFERING_VARIABLES)


def plan_as_dict(plan: Plan, run_name: str, command: Sequence[str], policy: Policy) -> dict[str, object]:
    """Return the content of ``plan.json``.

    It contains only the variables that launch sets, because others may be secret. It contains the addresses
    of all tasks once; in commands they are placeholders.

    Args:
        plan: The plan of the job.
        run_name: The name of the run.
        command: The command line of ``launch``, without values that may be secret.
        policy: How often failed tasks may start again, and how long the job may take.
    """
    # Without lists it has placeholders for them, as in ``{worker_hosts}``.
    cluster = ClusterSpec(plan.cluster, plan.sidecars, lists=False)
    tasks = [_task_as_dict(completed(task, cluster)) for task in plan.tasks]
    head = {"schema": PLAN_SCHEMA, "job": run_name, "command": command}
    head |= {"restarts": policy.restarts, "timeout": policy.timeout, "versions": _versions(plan)}
    return {**head, "tasks": tasks, "cluster": plan.cluster, "tensorboard": plan.tensorboard}


def _versions(plan: Plan) -> dict[str, str]:
    """Return the versions of launch and its Python, and that of TensorFlow if tasks run with this Python."""
    versions = {"launch": __version__, "python": sys.version.split()[0]}
    if any(task.argv[0] == sys.executable and task.venv is None for task in plan.tasks):
        for folder in sys.path:
            # The name of one of its entries contains the version, so TensorFlow need not be imported.
            if folder.endswith("-packages") and os.path.isdir(folder):
                for name in os.listdir(folder):
                    if match := re.fullmatch(_TENSORFLOW_PATTERN, name):
                        versions["tensorflow"] = match[1]
    return versions


def _task_as_dict(task: TaskPlan) -> dict[str, object]:
    """Return the entry of a task in ``plan.json``, with only those variables that launch sets."""
    names = ("task", "host", "address", "port", "argv", "workdir", "venv", "gpus")
    env = {name: task.env[name] for name in _TASK_VARIABLES if name in task.env}
    return {**{name: getattr(task, name) for name in names}, "env": env}


def defaults_in_effect(settings: Settings) -> Iterator[str]:
    """Yield a note on each setting of a project file that nothing replaces. A section gets one note."""
    names = {row.name: row.name for row in table.ROWS}
    # The other rows of a section belong to the row that heads it, and are not shown.
    names.update({section.head.name: section.name for section in backends.sections()})
    for name, given in settings.given_in(SourceKind.PROJECT_FILE):
        if name in names:
            yield f"default: {names[name]}={given.text} ({given.source})"


def show_plan(
    spec: JobSpec, placement: Placement, files: Sequence[str], *, as_json: bool, command: Sequence[str]
) -> int:
    """Print the plan as commands that can be copied, and everything else as comments.

    Args:
        spec: The job.
        placement: The tasks, each with its host.
        files: Lines about the files that would be copied.
        as_json: Whether to print JSON instead.
        command: The command line of ``launch``, without values that may be secret.

    Returns:
        The exit code, 0.
    """
    ports = {placed.task: _FIRST_PORT + number for number, placed in enumerate(placement.tasks)}
    plan = make_plan(spec, placement, ports)
    if as_json:
        more = {"example_ports": True, "notes": placement.notes, "files": files}
        fields = plan_as_dict(plan, "dry-run", command, spec.policy)
        print(json.dumps({**fields, **more}, indent=1))
    else:
        print("\n".join(_lines(plan, [*placement.notes, *files])))
    return 0


def _lines(plan: Plan, notes: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a dry run. As a shell script, those of a small job start one task after the other.

    Args:
        plan: The plan, with example ports.
        notes: Notes for the user.
    """
    yield "# Nothing is started. The ports are examples: the hosts choose and hold ports when the job starts."
    yield from (f"# {escape_controls(line)}" for note in notes for line in note.splitlines())
    is_abridged = len(plan.tasks) > _MAX_TASKS_IN_FULL
    if is_abridged:
        yield f"# {len(plan.tasks):,} tasks: the first of those that are alike has the command, and long"
        yield "# values are cut (…); `--dry-run --json` shows all."
    yield ""
    yield "# ClusterSpec"
    for role, addresses in plan.cluster.items():
        yield f"#   {role}: {join_names(addresses, _MAX_TASKS_IN_FULL if is_abridged else len(addresses))}"
    shown_kinds: set[object] = set()
    cluster = ClusterSpec(plan.cluster, plan.sidecars)
    for task in plan.tasks:
        kind = _kind_of(task)
        if is_abridged and kind in shown_kinds:
            variables = [f"{name}={task.env[name]}" for name in _DIFFERING_VARIABLES if name in task.env]
            yield f"# {', '.join([f'{task.task} on {task.host}', task.address, *variables])}"
            continue
        shown_kinds.add(kind)
        yield ""
        max_characters = _MAX_WORD_CHARACTERS if is_abridged else sys.maxsize
        for line in _task_lines(completed(task, cluster), max_characters):
            # A command with words that are cut must not be run, so it is a comment.
            yield "#" + line.removeprefix("#").replace("\n", "\n#") if is_abridged else line


def _kind_of(task: TaskPlan) -> object:
    """Return a value that is equal for tasks that differ only in index, host, port and the like.

    Args:
        task: A task whose agent has not completed its arguments and variables.
    """
    env = tuple((name, value) for name, value in task.env.items() if name not in _DIFFERING_VARIABLES)
    templates = tuple(task.templates.items())
    return task.task.role, task.argv, task.args, task.flags, task.workdir, task.venv, env, templates


def _task_lines(task: TaskPlan, max_characters: int) -> Iterator[str]:
    """Yield the command of a task as lines for a shell, after a comment about the task.

    Args:
        task: The task, as its agent completes it.
        max_characters: The length from which words are cut, and end with an ellipsis.
    """

    def quoted(text: str) -> str:
        """Return a word for a shell, which is cut if it is too long."""
        return _shell_quoted(shortened(text, max_characters))

    environment = "" if task.venv is None else f", in the environment {escape_controls(task.venv)}"
    yield f"# {task.task} on {task.host}, {task.address}{environment}"
    if task.workdir is not None:
        yield f"  cd {_folder(task.workdir)} &&"
    names = [name for name in OWN_VARIABLES if name in task.env]
    for name in [*names, *sorted(task.env.keys() - set(OWN_VARIABLES))]:
        yield f"  {name}={quoted(task.env[name])} \\"
    yield f"  {' '.join(map(quoted, task.argv))}"


def _folder(path: str) -> str:
    """Return a folder for a shell. It is quoted except for ``~/``, which means the home on the host."""
    return f"~/{_shell_quoted(path[2:])}" if path.startswith("~/") else _shell_quoted(path)


def _shell_quoted(text: str) -> str:
    """Return a text quoted for a shell. Control characters become escapes, as bash, zsh and ksh read them."""
    if all(char.isprintable() or char in "\n\t" for char in text):
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(char: str) -> str:
    """Return a character as it is written within ``$'...'``, where octal numbers stand for bytes."""
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
