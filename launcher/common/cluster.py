"""What a task is told about its job: ClusterSpec, ``TF_CONFIG``, placeholders and the classic flags.

The agent completes the command and the environment of each task by `complete`, and `launcher.scheduler.plan`
does the same where the launcher has to know them. Agents import this module, so it must run with Python 3.8.
These placeholders in arguments and in the values of environment variables are replaced:

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
``{local_rank}`` ``{local_size}``    the same among the tasks of its host
``{node_rank}``                      the index of its host, from 0; hosts are in the order of their
                                     first tasks
``{first_address}``                  ``host:port`` of the task with rank 0, and the two halves of it
``{first_host}`` ``{first_port}``
``{task_address}``                   its own ``host:port``
``{task_host}`` ``{task_port}``      the two halves of it
``{attempt}``                        how often it was started, from 1
``{cluster_spec}`` ``{tf_config}``   JSON: the whole cluster, and this task's ``TF_CONFIG``
===================================  ==========================================================

Ranks are in the order of the table: chief, worker, ps, evaluator, other roles, sidecars. Tasks whose
addresses have the same host are on one host.

Other braces (JSON, ``{}``, awk, a shell's ``${rank}``) stay as they are. ``{{rank}}`` becomes the text
``{rank}``. Text that was filled in is not scanned for placeholders again.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from typing import Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from launcher.common.text import closest_match

#: Roles in the ``cluster`` of ``TF_CONFIG``. TensorFlow 2 refuses a cluster with any other type of task. It
#: allows an evaluator, but the documented form leaves it out
#: (https://www.tensorflow.org/guide/distributed_training, "Setting up TF_CONFIG";
#: ``_validate_cluster_spec`` in ``tensorflow/python/distribute/multi_worker_util.py``).
#: ``master`` is the chief of TensorFlow 1 (``TaskType.MASTER`` in ``tf.estimator``'s ``run_config.py``).
TF_CONFIG_ROLES = ("chief", "master", "worker", "ps")

#: The roles whose tasks train, and share the records of data files in this order.
TRAINING_ROLES = ("master", "chief", "worker")

#: Placeholders whose value differs between tasks.
TASK_PLACEHOLDERS = (
    "job_name", "task_index", "rank", "local_rank", "local_size", "node_rank", "task_address", "task_host",
    "task_port", "tf_config", "attempt",
)  # fmt: skip
#: Placeholders whose value is the same for all tasks, without those of roles, such as ``ps_hosts``.
JOB_PLACEHOLDERS = ("world_size", "cluster_spec", "first_address", "first_host", "first_port")

#: Matches ``{name}`` and ``{{name}}``, and also ``${`` of a shell, so it is skipped.
_BRACES = r"(?a)\$\{+|\{\{(?P<text>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}"

#: The placeholder for a name that other launchers use.
_FOREIGN_PLACEHOLDERS = {
    "task_id": "task_index",
    "local_world_size": "local_size",
    "master_addr": "first_host",
    "master_port": "first_port",
}


class ClusterSpec:
    """The addresses of all tasks of a job, from which the variables and placeholders of each task follow.

    Args:
        addresses: By role, the ``host:port`` of each of its tasks, by index. The roles are in the order of
            the table for users, with sidecars last.
        sidecars: Names of the roles that ``{world_size}`` does not count.
        lists: Whether values contain the addresses of all tasks. In a plan that a user reads, placeholders
            stand for these long lists.
    """

    def __init__(
        self, addresses: Mapping[str, Sequence[str]], sidecars: Iterable[str] = (), lists: bool = True
    ) -> None:
        """Compute ranks and the values of placeholders from the addresses.

        The rank of a task is its number among all tasks of the job, role by role in the order of
        ``addresses``.
        """
        self.addresses: Dict[str, Tuple[str, ...]] = {
            role: tuple(role_addresses) for role, role_addresses in addresses.items()
        }
        #: The value of ``CLUSTER_SPEC``.
        self.json = _compact(self.addresses)
        #: The value of ``cluster`` in ``TF_CONFIG``, which contains only the roles that TensorFlow accepts.
        self.tf_json = _compact({role: self.addresses[role] for role in TF_CONFIG_ROLES if role in addresses})
        # For a plan that a user reads, the names of the placeholders stand for the long lists.
        if not lists:
            self.json, self.tf_json = "{cluster_spec}", "{cluster}"
        #: By role, the rank of its first task.
        self._first_rank: Dict[str, int] = {}
        by_rank: List[str] = []
        for role, role_addresses in self.addresses.items():
            self._first_rank[role] = len(by_rank)
            by_rank += role_addresses
        #: By host, the ranks of its tasks in ascending order.
        self._ranks: Dict[str, List[int]] = {}
        for rank, address in enumerate(by_rank):
            host, _ = _host_and_port(address)
            self._ranks.setdefault(host, []).append(rank)
        #: By host, the value of ``{node_rank}``: hosts are counted in the order of their first tasks.
        self._nodes = {host: number for number, host in enumerate(self._ranks)}
        #: The number of tasks without sidecars. Because sidecars come last, it is also their first rank.
        self._world_size = len(by_rank) - sum(len(addresses.get(role, ())) for role in sidecars)
        # A cluster without tasks has empty values.
        first_address = by_rank[0] if by_rank else ""
        first_host, first_port = _host_and_port(first_address)
        #: The values of the placeholders that are the same for all tasks.
        self.values = {
            **role_placeholders(self.addresses),
            "world_size": str(self._world_size),
            "cluster_spec": self.json,
            "first_address": first_address,
            "first_host": first_host,
            "first_port": first_port,
        }
        # In a plan that a user reads, placeholders such as ``{worker_hosts}`` stand for long lists, too.
        if not lists:
            self.values.update((name, f"{{{name}}}") for name in self.values if name.endswith("_hosts"))

    def address(self, task: TaskId) -> str:
        """Return the ``host:port`` of one task."""
        return self.addresses[task.role][task.index]

    def values_of(self, task: TaskId, attempt: int) -> Dict[str, str]:
        """Return the values of all placeholders for one task, by their names without braces.

        Args:
            task: The task.
            attempt: How often it was started, including this time.
        """
        address, rank = self.address(task), self._first_rank[task.role] + task.index
        host, port = _host_and_port(address)
        ranks_of_host = self._ranks[host]
        return {
            **self.values,
            "job_name": task.role,
            "task_index": str(task.index),
            "rank": str(rank),
            "local_rank": str(bisect_left(ranks_of_host, rank)),
            # The ranks of sidecars, which do not count, come after those of all other tasks.
            "local_size": str(bisect_left(ranks_of_host, self._world_size)),
            "node_rank": str(self._nodes[host]),
            "task_address": address,
            "task_host": host,
            "task_port": port,
            "tf_config": self.tf_config(task),
            "attempt": str(attempt),
        }

    def tf_config(self, task: TaskId) -> str:
        """Return the ``TF_CONFIG`` of one task.

        Its ``task`` names the role of the task even if ``cluster`` does not contain that role.
        """
        task_json = _compact({"type": task.role, "index": task.index})
        return f'{{"cluster":{self.tf_json},"task":{task_json}}}'


def _host_and_port(address: str) -> Tuple[str, str]:
    """Return the host and the port of a ``host:port``. An IPv6 address loses its brackets."""
    host, _, port = address.rpartition(":")
    return (host[1:-1] if host.startswith("[") else host), port


def _compact(value: object) -> str:
    """Return JSON without spaces, because the kernel limits the size of environments."""
    return json.dumps(value, separators=(",", ":"))


def role_placeholders(addresses: Mapping[str, Sequence[str]]) -> Dict[str, str]:
    """Return the values of ``ROLE_hosts`` and ``num_ROLE`` for each role of a job.

    TensorFlow's own roles are always included, with empty lists and 0 if the job does not have them.

    Args:
        addresses: By role, the ``host:port`` of each of its tasks.
    """
    values = {}
    for role in (*TENSORFLOW_ROLES, *addresses):
        # The name of a placeholder has underscores where a role may have dashes.
        name, role_addresses = re.sub(r"\W", "_", role), addresses.get(role, ())
        values[f"{name}_hosts"] = ",".join(role_addresses)
        values[f"num_{name}"] = str(len(role_addresses))
    # A role with the name "workers" has this placeholder itself.
    return {"num_workers": values["num_worker"], **values}


def task_environment(cluster: ClusterSpec, task: TaskId, attempt: int) -> Dict[str, str]:
    """Return the environment variables that tell a task its role, index and attempt, and all addresses.

    The names ``JOB_NAME``, ``TASK_INDEX`` and ``CLUSTER_SPEC`` are those of TonY, another launcher.

    Args:
        cluster: The addresses of all tasks of the job.
        task: The task.
        attempt: How often it was started, including this time.
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
    texts: Iterable[str], cluster: ClusterSpec, task: TaskId, attempt: int = 1
) -> Tuple[str, ...]:
    """Return texts with the placeholders replaced by their values for one task.

    A placeholder is a known name in braces, such as ``{task_index}``. Double braces, as in
    ``{{task_index}}``, stand for the single ones as text. All other braces stay as they are.

    Args:
        texts: Arguments of a program, or values of environment variables.
        cluster: The addresses of all tasks of the job.
        task: The task.
        attempt: How often it was started, including this time.
    """
    texts = tuple(texts)
    # Most texts contain none, and the values need not be made for them.
    if not any("{" in text for text in texts):
        return texts
    values = cluster.values_of(task, attempt)

    def replacement(match: re.Match[str]) -> str:
        """Return the value of ``{name}``, ``{name}`` for ``{{name}}``, and any other braces as they are."""
        doubled = match["text"]  # The name in double braces. ``match["name"]`` is that in single ones.
        if doubled:
            # Even a misspelt placeholder loses its second braces, because `literal`, which protects text from
            # this function, adds them to one.
            is_placeholder = doubled in values or _guess_placeholder(doubled, values)
            return f"{{{doubled}}}" if is_placeholder else match[0]
        return values.get(match["name"], match[0])

    return tuple(re.sub(_BRACES, replacement, text) for text in texts)


def complete(
    cluster: ClusterSpec,
    task: TaskId,
    args: Iterable[str],
    flags: bool,
    templates: Mapping[str, str],
    attempt: int = 1,
) -> Tuple[Tuple[str, ...], Dict[str, str]]:
    """Return the arguments and the environment variables of a task that depend on all tasks' addresses.

    Args:
        cluster: The addresses of all tasks of the job.
        task: The task.
        args: The arguments of its program, which may contain placeholders.
        flags: Whether the classic flags, such as ``--job_name``, follow the arguments.
        templates: Environment variables whose values may contain placeholders.
        attempt: How often the task was started, including this time.

    Returns:
        The arguments with the values of their placeholders, and the environment variables to add: templates
        with their values, and those of `task_environment`.
    """
    arguments = fill_placeholders(args, cluster, task, attempt)
    if flags:
        arguments += classic_flags(cluster, task)
    filled = fill_placeholders(templates.values(), cluster, task, attempt)
    return arguments, {**dict(zip(templates, filled)), **task_environment(cluster, task, attempt)}


def misspelt_placeholders(text: str, roles: Iterable[str]) -> Iterator[Tuple[str, str]]:
    """Yield the names in braces that look like misspelt placeholders.

    Args:
        text: An argument, or the value of an environment variable.
        roles: The names of the roles of the job, which have placeholders of their own.

    Yields:
        The name as it is written, and the name of the placeholder that it resembles.
    """
    known = {*TASK_PLACEHOLDERS, *JOB_PLACEHOLDERS, *role_placeholders(dict.fromkeys(roles, ()))}
    for match in re.finditer(_BRACES, text):
        # The name is None for doubled braces and for those of a shell.
        name = match["name"]
        guess = _guess_placeholder(name, sorted(known)) if name and name not in known else ""
        if guess:
            yield name, guess


def literal(text: str, roles: Iterable[str]) -> str:
    """Return a text with doubled braces, so that `fill_placeholders` turns it into ``text`` again.

    Args:
        text: The text that a task must receive as it is.
        roles: The names of all roles that the job may have.
    """
    known = {*TASK_PLACEHOLDERS, *JOB_PLACEHOLDERS, *role_placeholders(dict.fromkeys(roles, ()))}

    def escaped(match: re.Match[str]) -> str:
        """Return a placeholder, or a misspelt one, with braces around it. Other braces stay as they are."""
        name = match["text"] or match["name"]  # In double braces, or in single ones.
        is_placeholder = name and (name in known or _guess_placeholder(name, sorted(known)))
        return f"{{{match[0]}}}" if is_placeholder else match[0]

    return re.sub(_BRACES, escaped, text)


def _guess_placeholder(name: str, known: Iterable[str]) -> str:
    """Return the placeholder that the user probably meant by an unknown name.

    Args:
        name: The name, which may be misspelt, or that of a placeholder of another launcher.
        known: The names of all placeholders.

    Returns:
        The name of the placeholder. It is empty if none is similar.
    """
    return closest_match(name, known) or _FOREIGN_PLACEHOLDERS.get(name, "")


def classic_flags(cluster: ClusterSpec, task: TaskId) -> Tuple[str, ...]:
    """Return the flags of programs for TensorFlow 1, as in its "Distributed TensorFlow" guide.

    They are ``--ps_hosts``, ``--worker_hosts``, ``--job_name`` and ``--task_index``. Many programs do not
    define ``--chief_hosts``, so it is added only if the job has a chief. ``--ps_hosts`` is empty in a job
    without a ps.
    """
    roles = ("ps", "worker", "chief") if "chief" in cluster.addresses else ("ps", "worker")
    hosts = [f"--{role}_hosts={cluster.values[f'{role}_hosts']}" for role in roles]
    return (*hosts, f"--job_name={task.role}", f"--task_index={task.index}")


#: The environment variable that marks every process of a task. Its value is ``RUN:ROLE/INDEX``.
TASK_MARK = "TF_LAUNCHER_TASK"
#: The task types of TensorFlow 2 (``tensorflow/python/distribute/multi_worker_util.py``). Any other role is
#: the user's own.
TENSORFLOW_ROLES = ("chief", "worker", "ps", "evaluator")


def is_task_name(text: str) -> bool:
    """Return whether a text has the form of the name of a task, and can be printed."""
    role, _, index = text.rpartition("/")
    return bool(role) and role.isprintable() and index.isdecimal() and index.isascii() and len(index) < 10


class TaskId(str):
    """The name of one task, ``role/index``, such as ``worker/0``.

    It is a string, so that messages, JSON and file names contain it without conversion. It is the short form
    of TensorFlow's ``/job:worker/task:0``.
    """

    __slots__ = ()

    @classmethod
    def of(cls, role: str, index: int) -> TaskId:
        """Return the name of a task.

        Args:
            role: The name of its role, such as ``worker``.
            index: The index of the task within the role, from 0.
        """
        return cls(f"{role}/{index}")

    @property
    def role(self) -> str:
        """The name of the role: ``worker`` for ``worker/0``."""
        return self.rpartition("/")[0]

    @property
    def index(self) -> int:  # type: ignore[override]  # nobody searches in the name of a task by str.index
        """The index within the role, from 0."""
        return int(self.rpartition("/")[2])

    @property
    def file_stem(self) -> str:
        """The name with a dash, ``worker-0``, as in the names of files and folders of the task."""
        return self.replace("/", "-")

    def is_own_host(self, host: str) -> bool:
        """Return whether a host was made for this task alone, which its name shows.

        The container or pod of ``worker/0`` is a host with the name ``worker-0``.

        Args:
            host: The name of a host.
        """
        return host == self.file_stem.replace("_", "-").lower()
