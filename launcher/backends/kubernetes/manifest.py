"""Makes the manifests of the Jobs of a launch: a Job with one pod for each task.

Nothing here asks the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.backends import bootstrap
from launcher.backends.kubernetes.names import OWNER_ANNOTATION, job_name, labels
from launcher.backends.kubernetes.options import KubernetesOptions, user_of
from launcher.backends.kubernetes.status import TASK_CONTAINER
from launcher.backends.kubernetes.template import merged
from launcher.common.record import replace
from launcher.job import Host, Role

#: After this time the cluster removes a Job that has ended, if launch did not remove it.
_TTL_SECONDS = 300
#: The time after `start_timeout` for which a pod still waits for launch to connect.
_CONNECT_SECONDS = 60
#: The time that a pod gets to end, in addition to the time that its tasks get after SIGTERM.
_AFTER_GRACE_SECONDS = 10
_MEBIBYTE = 1 << 20
#: The home folder of tasks, which the main process creates. Without volumes, a kubelet starts a pod sooner.
HOME = "/tmp/launch"
#: The memory limit of a launcher in a pod without tasks.
_LAUNCHER_MEMORY_MEBIBYTES = 256
#: How much each task adds to that limit, because it needs a kubectl in the launcher's pod.
_TASK_MEMORY_MEBIBYTES = 64
#: The fields of the user's pod template that do not apply to a launcher's pod.
_TASK_FIELDS = ("initContainers", "containers")
#: The fields of the container in the user's pod template that apply to a launcher's container.
_LAUNCHER_FIELDS = ("env", "envFrom", "securityContext", "volumeMounts")
_PULL_POLICIES = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}


def job_manifest(  # noqa: PLR0913 - each is a part of the manifest
    options: KubernetesOptions,
    run: str,
    host: Host,
    role: Role,
    python: str,
    grace: float,
    owner: str,
    number: int = 1,
    avoid: str = "",
) -> dict[str, Any]:
    """Return the manifest of the Job of a host.

    Args:
        options: The options of the launch.
        run: The name of the run.
        host: The host, which runs one task of the role.
        role: The role of the task.
        python: The Python of the image that runs the agent.
        grace: The seconds from SIGTERM to SIGKILL of the task.
        owner: A text that names the launcher process.
        number: The number of the Job among those of this host, from 1.
        avoid: The name of a lost node, which the pod should avoid. Empty if there is none.
    """
    name, spec = job_name(run, host.name, number), pod_spec(options, role, user_of(options), grace)
    # The command waits for a connection, which brings the modules and the arguments of the agent. It listens
    # on a socket that has the name of the Job.
    wait_seconds = int(options.start_timeout) + _CONNECT_SECONDS
    spec["containers"][0]["command"] = bootstrap.waiting_command(python, name, wait_seconds, HOME)
    if avoid:
        # This does not forbid the lost node, so that the pod can run if there is no other one.
        other_node = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [avoid]}
        term = {"weight": 100, "preference": {"matchExpressions": [other_node]}}
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = {"metadata": {"labels": labels(run, host.name)}, "spec": spec}
    pod = with_templates(pod, options, role)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": pod["metadata"]["labels"],
            "annotations": {OWNER_ANNOTATION: owner},
        },
        "spec": {
            # The Job makes one pod only. In place of a lost pod, launch makes a new Job.
            "backoffLimit": 0,
            # With this policy the cluster counts a pod as ended only when its processes have ended.
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": _TTL_SECONDS,
            "template": pod,
        },
    }


def launcher_options(options: KubernetesOptions, tasks: int) -> KubernetesOptions:
    """Return the options of the pod in which a launcher runs, made from those of its launch.

    The pod gets the token of its service account, because the launcher makes the pods of the tasks. Of the
    user's pod template it gets what is not only for tasks. Its limits are its own.

    Args:
        options: The options of the launch.
        tasks: The number of tasks of the job.
    """
    user_spec = options.pod.get("spec", {})
    # A template with several containers was refused.
    (user_container,) = user_spec.get("containers", [{}])
    # A quota of the namespace may require limits of every pod.
    limits = {"memory": f"{_LAUNCHER_MEMORY_MEBIBYTES + _TASK_MEMORY_MEBIBYTES * tasks}Mi", "cpu": "1"}
    container = {name: value for name, value in user_container.items() if name in _LAUNCHER_FIELDS}
    container["resources"] = {"limits": limits, "requests": {**limits, "cpu": "100m"}}
    spec = {name: value for name, value in user_spec.items() if name not in _TASK_FIELDS}
    spec = {"automountServiceAccountToken": True, **spec, "containers": [container]}
    pod = {**options.pod, "spec": spec}
    # The templates for single roles and the limits of tasks are left out.
    return replace(options, pod=pod, pods={}, memory=(), cpus=(), gpus=None)


def pod_spec(options: KubernetesOptions, role: Role, user: str, grace: float) -> dict[str, Any]:
    """Return the spec of a pod that the Pod Security level ``restricted`` admits, unless its user is root.

    Its only container has no command yet, which `job_manifest` adds.

    Args:
        options: The options of the launch.
        role: The role of the task, with its limits.
        user: The user of the task, as ``UID`` or ``UID:GID``.
        grace: The seconds from SIGTERM to SIGKILL of the task.
    """
    uid, _, gid = user.partition(":")
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": int(uid)}
    if int(uid):  # The user is not root.
        security["runAsNonRoot"] = True
    if gid:
        security["runAsGroup"] = int(gid)
    container: dict[str, Any] = {
        "name": TASK_CONTAINER,
        "image": role.image or options.image,
        "imagePullPolicy": _PULL_POLICIES[options.pull],
        "env": [{"name": "HOME", "value": HOME}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    limits: dict[str, str] = {}
    if role.cpus is not None:
        limits["cpu"] = f"{round(role.cpus * 1000)}m"
    if role.memory is not None:
        limits["memory"] = quantity(role.memory)
    if role.gpus:
        limits["nvidia.com/gpu"] = str(role.gpus)
    if limits:
        container["resources"] = {"limits": limits}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": int(grace) + _AFTER_GRACE_SECONDS,
        "securityContext": security,
        "containers": [container],
    }


def with_templates(pod: Mapping[str, Any], options: KubernetesOptions, role: Role) -> dict[str, Any]:
    """Return a pod with the user's templates merged into it: that of all roles, then that of its role."""
    return merged(merged(pod, options.pod), options.pods.get(role.name, {}))


def quantity(size: int) -> str:
    """Return a number of bytes as Kubernetes writes it: in MiB (``512Mi``) if that is exact."""
    return str(size) if size % _MEBIBYTE else f"{size // _MEBIBYTE}Mi"
