"""The Jobs of a launch, as manifests: a Job with one pod for each task; pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.errors import Fault
from launcher.job import Host, Role
from launcher.transports import bootstrap
from launcher.transports.kubernetes.options import KubernetesOptions
from launcher.transports.kubernetes.status import CONTAINER, HOST

#: Labels of all Jobs and pods: who made them, the run, the host. The annotation names the launcher process.
MANAGED_BY, NAME = "app.kubernetes.io/managed-by", "tf-launcher"
RUN, OWNER = "tf-launcher/run", "tf-launcher/owner"
#: The label of a launcher's Job and pod, in place of `RUN`: a launch removes all objects with its `RUN`.
LAUNCHER = "tf-launcher/launcher"
#: Seconds until a Job that has ended is removed by the cluster, if launch did not remove it.
_TTL = 300
#: Seconds after `start_timeout` for which a pod still waits for launch to connect.
_CONNECTING = 60
#: Seconds that a pod gets to end, in addition to those that its tasks get after SIGTERM.
_AFTER_GRACE = 10
_MEBIBYTE = 1 << 20
#: The longest name of an object; how many of its characters are kept for the number of the Job.
_LONGEST, _NUMBER = 63, 4
#: The home of tasks, which the agent makes. It is no volume: a kubelet takes longer to start a pod with one.
HOME = "/tmp/launch"
#: Memory limit of a launcher in a pod, in MiB; how much each task, which has a kubectl there, adds to it.
_LAUNCHER_MEMORY, _TASK_MEMORY = 256, 64
#: What a launcher's pod does not take from the user's template; what its container takes from it.
_OF_TASKS = ("initContainers", "containers")
_OF_LAUNCHER = ("env", "envFrom", "securityContext", "volumeMounts")
_PULL = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}
#: Fields that the user's template can't have, because launch sets them: of the pod; of its container.
_RESERVED = ("restartPolicy", "hostname", "subdomain")
_RESERVED_IN_CONTAINER = ("name", "image", "command", "args", "stdin", "stdinOnce", "tty", "imagePullPolicy")


def job_name(run: str, host: str, number: int) -> str:
    """The name of a Job, which is unique in its namespace.

    Args:
        run: the name of the launch.
        host: of the launch.
        number: of the Jobs of this host, from 1.
    """
    name = _short(f"launch-{run}-{host}".lower(), _LONGEST - _NUMBER)
    return name if number == 1 else f"{name}-{number}"


def _short(name: str, longest: int) -> str:
    """A name for an object; the end of one that is too long is a digest."""
    name = re.sub("[^a-z0-9-]", "-", name)
    if len(name) > longest:
        name = f"{name[: longest - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name.strip("-")


def labels(run: str, host: str = "") -> dict[str, str]:
    """The labels of the objects of a launch, or of one of its hosts."""
    return {MANAGED_BY: NAME, RUN: run, **({HOST: _short(host, _LONGEST)} if host else {})}


def selector(run: str = "", label: str = RUN) -> str:
    """Selects the objects of a launch, or of all launches; or those of launchers, by `LAUNCHER`."""
    return f"{MANAGED_BY}={NAME},{label}={run}" if run else f"{MANAGED_BY}={NAME},{label}"


def job_manifest(
    options: KubernetesOptions,
    run: str,
    host: Host,
    role: Role,
    python: str,
    user: str,
    grace: float,
    owner: str,
    number: int = 1,
    avoid: str = "",
) -> dict[str, Any]:
    """The Job of a host.

    Args:
        options: of the launch.
        run: its name.
        host: with one task of the role.
        role: of the task.
        python: the Python of the image that runs the agent.
        user: ``UID[:GID]`` of the tasks.
        grace: seconds from SIGTERM to SIGKILL of the tasks.
        owner: names the launcher process.
        number: of the Jobs of this host, from 1.
        avoid: a node that is lost; empty: none.
    """
    name, spec = job_name(run, host.name, number), pod_spec(options, role, user, grace)
    # Everything else is sent through the connection.
    spec["containers"][0]["command"] = bootstrap.waiting(
        python, name, int(options.start_timeout) + _CONNECTING
    )
    if avoid:
        there = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [avoid]}
        term = {"weight": 100, "preference": {"matchExpressions": [there]}}
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    own = labels(run, host.name)
    pod = with_templates({"metadata": {"labels": own}, "spec": spec}, options, role)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": pod["metadata"]["labels"],
            "annotations": {OWNER: owner},
        },
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",  # a pod counts as ended only when its processes have
            "ttlSecondsAfterFinished": _TTL,
            "template": pod,
        },
    }


def launcher_options(options: KubernetesOptions, tasks: int) -> KubernetesOptions:
    """The options of a launcher's pod, which has the token of its service account.

    Args:
        options: of the launch.
        tasks: how many the job has.

    Returns:
        Those of the launch, with limits of its own, and without what only tasks need.
    """
    spec = options.pod.get("spec", {})
    # A quota of the namespace may require limits of every pod.
    limits = {"memory": f"{_LAUNCHER_MEMORY + _TASK_MEMORY * tasks}Mi", "cpu": "1"}
    resources = {"limits": limits, "requests": {**limits, "cpu": "100m"}}
    (given,) = spec.get("containers", [{}])
    container = {name: value for name, value in given.items() if name in _OF_LAUNCHER}
    spec = {name: value for name, value in spec.items() if name not in _OF_TASKS}
    containers = [{**container, "resources": resources}]
    spec = {"automountServiceAccountToken": True, **spec, "containers": containers}
    return options._replace(pod={**options.pod, "spec": spec}, pods={})


def pod_spec(options: KubernetesOptions, role: Role, user: str, grace: float) -> dict[str, Any]:
    """The spec of a pod that the Pod Security level ``restricted`` admits, if its user is not root.

    Its one container has no command yet. See `job_manifest`.
    """
    uid, _, gid = user.partition(":")
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": int(uid)}
    if int(uid):
        security["runAsNonRoot"] = True
    if gid:
        security["runAsGroup"] = int(gid)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": role.image or options.image,
        "imagePullPolicy": _PULL[options.pull],
        "env": [{"name": "HOME", "value": HOME}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    limits: dict[str, str] = {}
    if role.cpus is not None:
        limits["cpu"] = f"{round(role.cpus * 1000)}m"
    if role.memory:
        limits["memory"] = quantity(role.memory[0])
    if role.gpus:
        limits["nvidia.com/gpu"] = str(role.gpus)
    if limits:
        container["resources"] = {"limits": limits}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": int(grace) + _AFTER_GRACE,
        "securityContext": security,
        "containers": [container],
    }


def with_templates(pod: Mapping[str, Any], options: KubernetesOptions, role: Role) -> dict[str, Any]:
    """A pod with the user's templates: that of all roles, then that of its own."""
    return merged(merged(pod, options.pod), options.pods.get(role.name, {}))


def quantity(size: int) -> str:
    """Bytes of memory as Kubernetes has them."""
    return str(size) if size % _MEBIBYTE else f"{size // _MEBIBYTE}Mi"


def merged(ours: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Our mapping with the user's merged into it: items of lists follow ours, and ``null`` removes a field.

    An item of ``env`` or ``volumes`` replaces ours of that name. The user's container is merged into ours.
    """
    found = dict(ours)
    for name, value in template.items():
        mine = found.get(name)
        if value is None:
            found.pop(name, None)
        elif isinstance(mine, dict) and isinstance(value, dict):
            found[name] = merged(mine, value)
        elif name == "containers" and isinstance(mine, list):
            found[name] = [merged(mine[0], value[0])]
        elif isinstance(mine, list) and isinstance(value, list):
            names = [item["name"] for item in value if isinstance(item, dict) and "name" in item]
            kept = [item for item in mine if not (isinstance(item, dict) and item.get("name") in names)]
            found[name] = [*kept, *value] if name in ("env", "volumes") else [*mine, *value]
        else:
            found[name] = value
    return found


def template_faults(template: Any) -> Iterator[str]:
    """What is wrong with the ``pod:`` of a job file, for the user. The API server checks everything else."""
    if not isinstance(template, dict) or template.keys() - {"metadata", "spec"}:
        yield "expected a pod template, with metadata: or spec:"
        return
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        yield "expected mappings below metadata: and spec:"
        return
    if not _are_mappings(metadata, "labels", "annotations") or not _are_lists(spec, "containers", "volumes"):
        yield "expected mappings of labels: and annotations:, and lists of containers: and volumes:"
        return
    for name in (MANAGED_BY, RUN, HOST, LAUNCHER):
        if name in metadata.get("labels", {}):
            yield f"expected no label {name}: launch sets it"
    containers: Sequence[Any] = spec.get("containers", [{}])
    if len(containers) != 1 or not isinstance(containers[0], dict):
        yield "expected one item below containers:, the container of the task; others go to initContainers:"
        return
    resources = containers[0].get("resources") or {}
    if not isinstance(resources, dict) or not isinstance(resources.get("limits") or {}, dict):
        yield "expected mappings of resources: and limits:"
    for where, names in ((spec, _RESERVED), (containers[0], _RESERVED_IN_CONTAINER)):
        for name in names:
            if name in where and (name, where[name]) not in (("restartPolicy", "Never"), ("name", CONTAINER)):
                yield f"expected no {name}: launch sets it"


def _are_mappings(where: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(where.get(name, {}), dict) for name in names)


def _are_lists(where: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(where.get(name, []), list) for name in names)


def faults_of(options: KubernetesOptions) -> Iterator[Fault]:
    """Faults of options that together make no manifest."""
    if options.user is not None and not re.fullmatch("[0-9]{1,9}(:[0-9]{1,9})?", options.user):
        yield Fault("--user", f"{options.user!r} is a name", "expected UID or UID:GID for --kubernetes")
