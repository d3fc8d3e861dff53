"""``--dry-run``: the plan as it would be started: commands that can be copied, all else as comments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

from launcher.job import JobSpec, Placement, Plan, TaskPlan
from launcher.job_run.planfile import OWN_VARIABLES, plan_as_dict
from launcher.scheduler.plan import completed, make_plan
from launcher.text import printable

#: Ports of a dry run are examples: real ones are taken when the job starts.
_FIRST_PORT = 20_000


def show(job: JobSpec, placement: Placement, as_json: bool, files: Sequence[str]) -> int:
    """Print the plan, start nothing.

    Args:
        job, placement: what would run where.
        as_json: for programs.
        files: what would travel with it, line by line.

    Returns:
        The exit code, 0.
    """
    ports = {placed.task: _FIRST_PORT + number for number, placed in enumerate(placement.tasks)}
    plan = make_plan(job, placement, ports)
    if as_json:
        print(
            json.dumps(
                {
                    **plan_as_dict(plan, "dry-run"),
                    "example_ports": True,
                    "notes": placement.notes,
                    "luggage": files,
                },
                indent=1,
            )
        )
    else:
        print("\n".join(_lines(plan, [*placement.notes, *files])))
    return 0


def _lines(plan: Plan, notes: Sequence[str]) -> Iterator[str]:
    """A shell that is given all of them starts one task after the other."""
    yield "# Nothing is started. Ports are examples: real ones are taken, and held, when the job starts."
    yield from (f"# {printable(line)}" for note in notes for line in note.splitlines())
    yield ""
    yield "# ClusterSpec"
    for role, addresses in plan.cluster.items():
        yield f"#   {role}: {', '.join(addresses)}"
    for task in completed(plan):
        yield ""
        yield from _task_lines(task)


def _task_lines(task: TaskPlan) -> Iterator[str]:
    yield f"# {task.task} on {task.host}, {task.address}"
    if task.workdir is not None:
        yield f"  cd {_folder(task.workdir)} &&"
    names = [name for name in OWN_VARIABLES if name in task.env]
    for name in [*names, *sorted(task.env.keys() - set(OWN_VARIABLES))]:
        yield f"  {name}={_quoted(task.env[name])} \\"
    yield f"  {' '.join(map(_quoted, task.argv))}"


def _folder(path: str) -> str:
    """Quoted, but for the home that is the host's."""
    return f"~/{_quoted(path[2:])}" if path.startswith("~/") else _quoted(path)


def _quoted(word: str) -> str:
    """A word for a shell. What a terminal would obey is spelled out as bash, zsh and ksh read it."""
    if all(char.isprintable() or char in "\n\t" for char in word):
        return shlex.quote(word)
    return f"$'{''.join(map(_spelled, word))}'"


def _spelled(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
