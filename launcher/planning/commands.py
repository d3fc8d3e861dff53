"""What each task runs: its command, with the placeholders filled in.

===================================  ==========================================================
``{ps_hosts}`` ``{worker_hosts}``    addresses of all tasks of a role, ``host:port,host:port``;
``{chief_hosts}``                    empty if the job has none
``{evaluator_hosts}``
``{ROLE_hosts}``                     the same for a role of your own (its dashes as ``_``)
``{num_ps}`` ``{num_workers}``       how many tasks a role has (``{num_worker}`` is the same)
``{num_chief}`` ``{num_evaluator}``
``{num_ROLE}``                       the same for a role of your own
``{job_name}`` ``{task_index}``      this task's role, and its index in it, from 0
``{rank}`` ``{world_size}``          its index among all tasks, from 0, and how many those are,
                                     sidecars aside
``{task_address}``                   its own ``host:port``
``{task_host}`` ``{task_port}``      the two halves of it
``{cluster_spec}`` ``{tf_config}``   JSON: the whole cluster, and this task's ``TF_CONFIG``
===================================  ==========================================================

Other braces (JSON, ``{}``, awk, a shell's ``${rank}``) are left alone, unless they hold a near
miss of these names: that is an error. ``{{rank}}`` stands for the text ``{rank}``. What is filled
in is not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from launcher.errors import Fault, JobError
from launcher.job import TENSORFLOW_ROLES, JobSpec, Placed, Program, ProgramKind
from launcher.planning.cluster import Cluster
from launcher.planning.wording import nearest

#: Placeholders whose value is the task's own.
OF_TASK = frozenset(("job_name", "task_index", "rank", "task_address", "task_host", "task_port", "tf_config"))
#: Placeholders whose value is the same for all tasks, next to those of the roles.
OF_JOB = frozenset(("world_size", "cluster_spec"))

#: What a shell opens with ``${``, skipped; ``{{name}}``; ``{name}``.
_BRACES = re.compile(r"\$\{+|\{\{(?P<text>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}", re.ASCII)

#: From here on a name in braces is a typing error of ours, not text of somebody else's.
_NEAR = 0.8


def role_values(roles: Iterable[str], cluster: Cluster) -> dict[str, str]:
    """The placeholders that tell of roles, and their values.

    Args:
        roles: names of the job's roles; TensorFlow's own are always known.
        cluster: addresses by role; a role that is missing has no tasks.
    """
    values = {}
    for role in (*TENSORFLOW_ROLES, *roles):
        name, addresses = re.sub(r"\W", "_", role), cluster.get(role, ())
        values[f"{name}_hosts"] = ",".join(addresses)
        values[f"num_{name}"] = str(len(addresses))
    return {"num_workers": values["num_worker"], **values}


def filled(argument: str, values: Mapping[str, str]) -> str:
    """An argument with its placeholders replaced, in one pass.

    Args:
        argument: what the user wrote.
        values: what every known placeholder stands for.
    """

    def value(match: re.Match[str]) -> str:
        if text := match["text"]:
            ours = text in values or nearest(text, values, _NEAR)
            return f"{{{text}}}" if ours else match[0]
        return values.get(match["name"], match[0])

    return _BRACES.sub(value, argument) if "{" in argument else argument


def check_program_args(job: JobSpec) -> None:
    """Find misspelt placeholders before anything is started.

    Raises:
        JobError: with a fault for each name in braces that is nearly, but not quite, a known one.
    """
    known = [*OF_TASK, *OF_JOB, *role_values((role.name for role in job.roles), {})]
    found: dict[str, Fault] = {}
    for role in job.roles:
        for argument in role.program.args:
            for name, meant in _near_misses(argument, sorted(known)):
                fault = _misspelt(role.program_source or role.source, argument, name, meant)
                found.setdefault(fault.what, fault)
    if found:
        raise JobError(found.values())


def _near_misses(argument: str, known: list[str]) -> list[tuple[str, str]]:
    """The unknown names in braces, each with the known name it is near to."""
    names = [match["name"] for match in _BRACES.finditer(argument) if match["name"]]
    guesses = [(name, nearest(name, known, _NEAR)) for name in names if name not in known]
    return [(name, guess) for name, guess in guesses if guess]


def _misspelt(source: str, argument: str, name: str, meant: str) -> Fault:
    what = f"argument {argument!r}: there is no placeholder {{{name}}}"
    return Fault(source, what, f"did you mean {{{meant}}}? ({{{{{name}}}}} stands for the text itself)")


def command(program: Program, python: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """The words that start a program.

    Args:
        program: what the role runs.
        python: the interpreter of scripts, modules and code.
        values: what every known placeholder stands for.
    """
    starter: dict[ProgramKind, tuple[str, ...]] = {
        ProgramKind.SCRIPT: (python, program.name),
        ProgramKind.MODULE: (python, "-m", program.name),
        ProgramKind.CODE: (python, "-c", program.name),
        ProgramKind.EXECUTABLE: (program.name,),
    }
    return (*starter[program.kind], *(filled(argument, values) for argument in program.args))


def classic_flags(placed: Placed, cluster: Cluster) -> tuple[str, ...]:
    """The flags that programs for TensorFlow 1 take, as its "Distributed TensorFlow" guide wrote them.

    A program often has no ``--chief_hosts``, so that is only there when the job has a chief.
    """
    roles = ("ps", "worker", "chief") if "chief" in cluster else ("ps", "worker")
    hosts = [f"--{role}_hosts={','.join(cluster.get(role, ()))}" for role in roles]
    return (*hosts, f"--job_name={placed.task.role}", f"--task_index={placed.task.index}")
