"""The addresses of a job's tasks, as tasks get them: ClusterSpec, ``TF_CONFIG``, placeholders, classic flags.

Agents import this module: Python 3.8, the standard library, `launcher.task_id` and `launcher.text` only.

===================================  ==========================================================
``{ps_hosts}`` ``{worker_hosts}``    addresses of all tasks of a role, ``host:port,host:port``;
``{chief_hosts}``                    empty if the job has none
``{evaluator_hosts}``
``{ROLE_hosts}``                     the same for a role of your own (its dashes as ``_``)
``{num_ps}`` ``{num_workers}``       how many tasks a role has (``{num_worker}`` is the same)
``{num_chief}`` ``{num_evaluator}``
``{num_ROLE}``                       the same for a role of your own
``{job_name}`` ``{task_index}``      this task's role, and its index in it, from 0
``{rank}`` ``{world_size}``          its index among all tasks, from 0, and the number of tasks
                                     without sidecars
``{task_address}``                   its own ``host:port``
``{task_host}`` ``{task_port}``      the two halves of it
``{attempt}``                        the number of its start: 1, and one more with each restart
``{cluster_spec}`` ``{tf_config}``   JSON: the whole cluster, and this task's ``TF_CONFIG``
===================================  ==========================================================

Other braces (JSON, ``{}``, awk, a shell's ``${rank}``) stay as they are. ``{{rank}}`` becomes the text
``{rank}``. Values that are filled in are not scanned for placeholders.
"""

from __future__ import annotations

import json
import re
from typing import Dict, Iterable, Iterator, Mapping, Sequence, Tuple

from launcher.task_id import TENSORFLOW_ROLES, TaskId
from launcher.text import nearest

#: Roles in the ``cluster`` of ``TF_CONFIG``. TensorFlow 2 refuses a cluster with any other type of task; it
#: allows an evaluator, but the documented form leaves it out
#: (https://www.tensorflow.org/guide/distributed_training, "Setting up TF_CONFIG";
#: ``_validate_cluster_spec`` in ``tensorflow/python/distribute/multi_worker_util.py``).
#: ``master`` is the chief of TensorFlow 1 (``TaskType.MASTER`` in ``tf.estimator``'s ``run_config.py``).
TF_CONFIG_ROLES = ("chief", "master", "worker", "ps")

#: Placeholders with another value for each task; with the same value for all; those of roles are not here.
TASK_PLACEHOLDERS = (
    "job_name", "task_index", "rank", "task_address", "task_host", "task_port", "tf_config", "attempt",
)  # fmt: skip
JOB_PLACEHOLDERS = ("world_size", "cluster_spec")

#: ``${`` of a shell, skipped; ``{{name}}``; ``{name}``.
_BRACES = r"(?a)\$\{+|\{\{(?P<text>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}"

#: Names of other launchers for our placeholders.
_OTHER_NAMES = {"task_id": "task_index"}


class ClusterSpec:
    """The addresses of all tasks, and the values that are the same for all tasks.

    Args:
        addresses: role -> ``host:port`` of each of its tasks by index; roles in the order of the table,
            sidecars last.
        sidecars: names of roles that ``{world_size}`` does not count.
    """

    def __init__(self, addresses: Mapping[str, Sequence[str]], sidecars: Iterable[str] = ()) -> None:
        self.addresses: Dict[str, Tuple[str, ...]] = {
            role: tuple(role_addresses) for role, role_addresses in addresses.items()
        }
        self.json = _compact(self.addresses)
        self.tf_json = _compact({role: self.addresses[role] for role in TF_CONFIG_ROLES if role in addresses})
        self._first_rank: Dict[str, int] = {}
        total = 0
        for role, role_addresses in self.addresses.items():
            self._first_rank[role] = total
            total += len(role_addresses)
        world_size = total - sum(len(addresses.get(role, ())) for role in sidecars)
        self.values = {
            **role_placeholders(self.addresses),
            "world_size": str(world_size),
            "cluster_spec": self.json,
        }

    def address(self, task: TaskId) -> str:
        """``host:port`` of one task."""
        return self.addresses[task.role][task.index]

    def rank(self, task: TaskId) -> int:
        """The index of a task among all tasks, from 0."""
        return self._first_rank[task.role] + task.index

    def tf_config(self, task: TaskId) -> str:
        """``TF_CONFIG`` of one task; ``task`` has its role, also one that is not in ``cluster``."""
        own = _compact({"type": task.role, "index": task.index})
        return f'{{"cluster":{self.tf_json},"task":{own}}}'


def _compact(value: object) -> str:
    """JSON without spaces: the kernel limits the size of environments."""
    return json.dumps(value, separators=(",", ":"))


def role_placeholders(addresses: Mapping[str, Sequence[str]]) -> Dict[str, str]:
    """The placeholders of roles and their values, always including TensorFlow's own roles."""
    values = {}
    for role in (*TENSORFLOW_ROLES, *addresses):
        name, role_addresses = re.sub(r"\W", "_", role), addresses.get(role, ())
        values[f"{name}_hosts"] = ",".join(role_addresses)
        values[f"num_{name}"] = str(len(role_addresses))
    return {"num_workers": values["num_worker"], **values}


def task_environment(cluster: ClusterSpec, task: TaskId, attempt: int) -> Dict[str, str]:
    """The variables with the role, the index and the attempt of a task and the addresses of all tasks.

    ``JOB_NAME``, ``TASK_INDEX`` and ``CLUSTER_SPEC`` are named as TonY names them.
    """
    return {
        "TF_CONFIG": cluster.tf_config(task),
        "JOB_NAME": task.role,
        "TASK_INDEX": str(task.index),
        "CLUSTER_SPEC": cluster.json,
        "TASK_ADDRESS": cluster.address(task),
        "LAUNCH_ATTEMPT": str(attempt),
    }


def fill_placeholders(
    arguments: Iterable[str], cluster: ClusterSpec, task: TaskId, attempt: int = 1
) -> Tuple[str, ...]:
    """A program's arguments with the placeholders replaced, each argument in one pass."""
    arguments = tuple(arguments)
    if not any("{" in argument for argument in arguments):
        return arguments
    address = cluster.address(task)
    host, _, port = address.rpartition(":")
    values = {
        **cluster.values,
        "job_name": task.role,
        "task_index": str(task.index),
        "rank": str(cluster.rank(task)),
        "task_address": address,
        "task_host": host[1:-1] if host.startswith("[") else host,
        "task_port": port,
        "tf_config": cluster.tf_config(task),
        "attempt": str(attempt),
    }

    def value(match: re.Match[str]) -> str:
        text = match["text"]
        if text:
            ours = text in values or _meant(text, values)
            return f"{{{text}}}" if ours else match[0]
        return values.get(match["name"], match[0])

    return tuple(re.sub(_BRACES, value, argument) for argument in arguments)


def complete(
    cluster: ClusterSpec, task: TaskId, args: Iterable[str], flags: bool, attempt: int = 1
) -> Tuple[Tuple[str, ...], Dict[str, str]]:
    """The arguments and the environment of a task that depend on the ClusterSpec.

    Args:
        cluster: of the job.
        task: of the job.
        args: of its program, perhaps with placeholders.
        flags: whether the classic flags follow them.
        attempt: the number of its start, from 1.
    """
    arguments = fill_placeholders(args, cluster, task, attempt)
    if flags:
        arguments += classic_flags(cluster, task)
    return arguments, task_environment(cluster, task, attempt)


def misspelt_placeholders(argument: str, roles: Iterable[str]) -> Iterator[Tuple[str, str]]:
    """Unknown names in braces that are similar to a placeholder, each with that placeholder.

    Args:
        argument: of a program.
        roles: the names of the job's roles.
    """
    known = {*TASK_PLACEHOLDERS, *JOB_PLACEHOLDERS, *role_placeholders(dict.fromkeys(roles, ()))}
    for match in re.finditer(_BRACES, argument):
        name = match["name"]
        meant = _meant(name, sorted(known)) if name and name not in known else ""
        if meant:
            yield name, meant


def _meant(name: str, known: Iterable[str]) -> str:
    """The placeholder that a similar name stands for; empty: none."""
    return nearest(name, known) or _OTHER_NAMES.get(name, "")


def classic_flags(cluster: ClusterSpec, task: TaskId) -> Tuple[str, ...]:
    """The flags of programs for TensorFlow 1, as in its "Distributed TensorFlow" guide.

    Many programs do not define ``--chief_hosts``, so it is added only if the job has a chief.
    """
    roles = ("ps", "worker", "chief") if "chief" in cluster.addresses else ("ps", "worker")
    hosts = [f"--{role}_hosts={','.join(cluster.addresses.get(role, ()))}" for role in roles]
    return (*hosts, f"--job_name={task.role}", f"--task_index={task.index}")
