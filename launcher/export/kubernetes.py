"""A job as manifests of Kubernetes: an Indexed Job for each role, a Service for their names, a ConfigMap."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.errors import Fault, JobError
from launcher.export.exported import MARK, Block, Exported, documents, filled, heading
from launcher.job import OnFailure, Role, TaskPlan
from launcher.record import Record
from launcher.text import listed
from launcher.transports.kubernetes.manifest import HOME, pod_spec, with_templates
from launcher.transports.kubernetes.options import KubernetesOptions

#: The port of each task: each has an address of its own.
PORT = 2222
#: What it says, by `launcher.export.exported.settings_of`.
SAID = ("on_failure: continue", "timeout", "grace", "restarts")
#: Bytes of the files of a ConfigMap; with names and quotes it may have 1 MiB.
MOST_BYTES = 900_000
#: Roles that Jobs can be named by.
_ROLE = re.compile("[A-Za-z]([A-Za-z0-9_-]{0,38}[A-Za-z0-9])?")
#: Placeholders that are the index in the first role.
_RANKS = ("rank", "node_rank")
#: What each container runs first.
#: Where the ConfigMap is.
_CONFIG = "/launch-config"
_START = """\
# Copies the files of the ConfigMap, waits for the names of all tasks, then becomes the program.
import json, os, shutil, socket, sys, time

files = "/launch-config/files"
for name in os.listdir(files) if os.path.isdir(files) else ():
    path = os.path.join(files, name)
    (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, name)
addresses = [address for role in json.loads(os.environ["CLUSTER_SPEC"]).values() for address in role]
end = time.monotonic() + {seconds}
for name in [address.rpartition(":")[0] for address in addresses]:
    while True:
        try:
            socket.getaddrinfo(name, None)
            break
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"{{name}}: {{error}}")
            time.sleep(1)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Pods(Record):
    """What pods have besides their tasks."""

    options: KubernetesOptions
    #: ``UID[:GID]`` of the tasks.
    user: str
    #: Path below the folder that tasks run in -> the content of a file; empty: the image has the files.
    files: Mapping[str, bytes]


def host_name(name: str, role: str, index: object) -> str:
    """The host name of a task: its pod has it by the Job and the Service."""
    return f"{_job_name(name, role)}-{index}.{name}"


def _job_name(name: str, role: str) -> str:
    return f"{name}-{role.lower().replace('_', '-')}"


def manifest(job: Exported, pods: Pods) -> str:
    """The manifests, as YAML.

    Raises:
        JobError: a task can't be described.
    """
    faults = [fault for role, tasks in job.roles() for fault in _faults(job, role, tasks)]
    if faults:
        raise JobError(faults)
    config = _object("v1", "ConfigMap", job, pods)
    config["data"] = {"start.py": Block(_START.format(seconds=math.ceil(pods.options.start_timeout)))}
    for key, (_, content) in zip(_keys(pods), pods.files.items(), strict=True):
        try:
            config["data"][key] = Block(content.decode())
        except UnicodeDecodeError:
            config.setdefault("binaryData", {})[key] = base64.b64encode(content).decode()
    service = _object("v1", "Service", job, pods)
    service["spec"] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(job),
        "ports": [{"name": "tensorflow", "port": PORT}],
    }
    jobs = [_job(job, pods, role, tasks) for role, tasks in job.roles()]
    return heading(job, "kubernetes", _lines(job, pods)) + documents(config, service, *jobs)


def _labels(job: Exported) -> dict[str, str]:
    return {"app.kubernetes.io/name": job.name}


def _object(version: str, kind: str, job: Exported, pods: Pods, role: str = "") -> dict[str, Any]:
    """An object without its content."""
    meta: dict[str, Any] = {"name": _job_name(job.name, role) if role else job.name, "labels": _labels(job)}
    if pods.options.namespace:
        meta["namespace"] = pods.options.namespace
    return {"apiVersion": version, "kind": kind, "metadata": meta}


def _keys(pods: Pods) -> list[str]:
    """The keys of the files in the ConfigMap."""
    return [f"{n}-{re.sub('[^A-Za-z0-9._-]', '_', path)}"[-200:] for n, path in enumerate(pods.files)]


def _lines(job: Exported, pods: Pods) -> Iterator[str]:
    """How the file is used, and what it can't say."""
    deciding = {role.name for role, _ in job.roles()} & {task.role for task in job.deciding()}
    names = [f"job/{_job_name(job.name, role.name)}" for role, _ in job.roles() if role.name in deciding]
    others = [role.name for role, _ in job.roles() if role.name not in deciding]
    kubectl = "kubectl" + (f" --namespace {pods.options.namespace}" if pods.options.namespace else "")
    yield f"    {kubectl} apply -f FILE"
    yield f"    {kubectl} wait --for=condition=complete --timeout=-1s {' '.join(names)}"
    yield f"    {kubectl} delete -f FILE"
    yield (
        "There is a Job for each role; kubectl logs shows the output of a pod. A failed pod fails its Job "
        "(kubectl get jobs; kubectl wait does not return then), but no other one: those wait, or fail "
        "themselves. With restarts, which are for each Job, a new pod has another address under the same "
        "name, and LAUNCH_ATTEMPT stays 1."
    )
    if others:
        yield f"Nothing ends {listed(others)} when the job is done but the last line above."
    if job.copied:
        yield f"The values of {listed(job.copied)} are not here. The Secret {job.name} must have them:"
        yield f"    {kubectl} create secret generic {job.name} --from-env-file=FILE"
    files = f"The ConfigMap has {listed([*pods.files])}; the" if pods.files else "The"
    yield (
        f"{files} images must have all other files of the program, and a Python 3.8 or newer. Tasks run as "
        f"user {pods.user} (the Pod Security level restricted wants one that is not root), and in an empty "
        "folder unless the job names one."
    )


def _faults(job: Exported, role: Role, tasks: Sequence[TaskPlan]) -> Iterator[Fault]:
    if not _ROLE.fullmatch(role.name):
        problem = f"{role.name}: Jobs of Kubernetes can't have this name"
        yield Fault(role.source, problem, "expected at most 40 characters, the last one a letter or digit")
    task = _completed(job, role, tasks)
    by_rank = any(
        f"{MARK}{name}{MARK}" in text for name in _RANKS for text in (*task.argv, *task.env.values())
    )
    if by_rank and role.name != job.plan.tasks[0].task.role:
        problem = f"{role.name}: Kubernetes tells a task its index in the role, not its rank"
        yield Fault(role.source, problem, "expected {task_index} instead of {rank} and {node_rank}")


def _completed(job: Exported, role: Role, tasks: Sequence[TaskPlan]) -> TaskPlan:
    """The task of a role; of several the index is known when it starts."""
    if len(tasks) == 1:
        return job.completed(tasks[0])
    return job.of_role(tasks[0], ("task_index", "task_address", "task_host", *_RANKS))


def _job(job: Exported, pods: Pods, role: Role, tasks: Sequence[TaskPlan]) -> dict[str, Any]:
    policy = job.job.policy
    limit = "backoffLimitPerIndex" if policy.on_failure is OnFailure.CONTINUE else "backoffLimit"
    spec: dict[str, Any] = {
        "completions": len(tasks),
        "parallelism": len(tasks),
        "completionMode": "Indexed",
        limit: policy.restarts,
    }
    if policy.timeout is not None:
        spec["activeDeadlineSeconds"] = math.ceil(policy.timeout)
    pod = {"metadata": {"labels": _labels(job)}, "spec": _pod(job, pods, role, tasks)}
    spec["template"] = with_templates(pod, pods.options, role)
    return {**_object("batch/v1", "Job", job, pods, role.name), "spec": spec}


def _pod(job: Exported, pods: Pods, role: Role, tasks: Sequence[TaskPlan]) -> dict[str, Any]:
    task = _completed(job, role, tasks)
    host = host_name(job.name, role.name, "$(TASK_INDEX)")
    later = {"task_index": "$(TASK_INDEX)", "task_host": host, "task_address": f"{host}:{PORT}"}
    later.update(dict.fromkeys(_RANKS, "$(TASK_INDEX)"))  # of the first role

    def text(value: str) -> str:
        return filled(value, lambda known: known.replace("$", "$$"), later.__getitem__)

    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    given: dict[str, dict[str, Any]] = {"TASK_INDEX": {"valueFrom": {"fieldRef": {"fieldPath": index}}}}
    given["HOME"] = {"value": HOME}
    given.update({name: {"value": text(value)} for name, value in task.env.items() if name != "TASK_INDEX"})
    secret = {name: {"secretKeyRef": {"name": job.name, "key": name}} for name in job.copied}
    given.update({name: {"valueFrom": reference} for name, reference in secret.items()})
    spec = pod_spec(pods.options, role, pods.user, job.job.policy.grace)
    container = spec["containers"][0]
    container.update(
        command=[job.job.python, f"{_CONFIG}/start.py"],
        args=list(map(text, task.argv)),
        workingDir=task.workdir or HOME,
        env=[{"name": name, **value} for name, value in given.items()],
        ports=[{"containerPort": PORT}],
    )
    container["volumeMounts"].append({"name": "launch-config", "mountPath": _CONFIG})
    paths = [{"key": "start.py", "path": "start.py"}]
    paths += [
        {"key": key, "path": f"files/{path}"} for key, path in zip(_keys(pods), pods.files, strict=True)
    ]
    spec["volumes"].append({"name": "launch-config", "configMap": {"name": job.name, "items": paths}})
    # As process 1 a program would ignore SIGTERM.
    return {"subdomain": job.name, "shareProcessNamespace": True, **spec}
