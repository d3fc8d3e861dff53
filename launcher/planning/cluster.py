"""Who else is there: the ClusterSpec, and TensorFlow's ``TF_CONFIG``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.job import Placement, TaskId

#: Role name -> the address of each of its tasks, by index.
Cluster = dict[str, tuple[str, ...]]

#: What ``TF_CONFIG`` may name as a part of the cluster. Any other type, a user's role or the
#: ``master`` of TensorFlow 1, makes TensorFlow 2 refuse all of it; an evaluator is allowed, but
#: it stands beside the cluster and the documented form leaves it out
#: (https://www.tensorflow.org/guide/distributed_training, "Setting up TF_CONFIG";
#: ``_validate_cluster_spec`` in ``tensorflow/python/distribute/multi_worker_util.py``).
TF_CONFIG_CLUSTER = ("chief", "worker", "ps")


def cluster_of(placement: Placement, ports: Mapping[TaskId, int]) -> Cluster:
    """The addresses of all tasks by role, roles and indexes in the order of the table.

    Raises:
        KeyError: a task has no port.
    """
    found: dict[str, list[str]] = {}
    for placed in placement.tasks:
        found.setdefault(placed.task.role, []).append(placed.host.at(ports[placed.task]))
    return {role: tuple(addresses) for role, addresses in found.items()}


def tf_cluster(cluster: Cluster) -> Cluster:
    """The part of the cluster that ``TF_CONFIG`` names."""
    return {role: cluster[role] for role in TF_CONFIG_CLUSTER if role in cluster}


def compact(value: object) -> str:
    """JSON without spaces: it goes into environments, where the kernel counts bytes."""
    return json.dumps(value, separators=(",", ":"))


def tf_config(cluster_json: str, task: TaskId) -> str:
    """``TF_CONFIG`` of one task (https://www.tensorflow.org/guide/distributed_training, "TF_CONFIG").

    Args:
        cluster_json: `tf_cluster` as JSON, made once for all tasks: it is nearly all of the text.
        task: named by its real role, also if that is an evaluator or a role of the user's.
    """
    return f'{{"cluster":{cluster_json},"task":{compact({"type": task.role, "index": task.index})}}}'
