"""Writes a job as manifests of Kubernetes: an Indexed Job for each role, a Service for their names.

``launch export kubernetes`` calls it with an `Exported`. It is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.backends.kubernetes.manifest import HOME, pod_spec, with_templates
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.common.errors import Fault, JobError
from launcher.common.text import join_names
from launcher.export.exported import TASK_PORT, Block, Exported, documents, filled, heading
from launcher.job import OnFailure, Role, TaskPlan

#: Bytes of the files of a ConfigMap; with names and quotes it may have 1 MiB.
MAX_CONFIG_MAP_BYTES = 900_000
_LEFT_OUT_NOTE = "mounts and options of docker:, "
#: Placeholders that are the index in the first role.
_RANK_PLACEHOLDERS = ("rank", "node_rank")
_NAME_LABEL = "app.kubernetes.io/name"
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
#: The volume that tasks run in; the ConfigMap as a volume, and where it is.
_HOME_VOLUME = "launch-home"
_CONFIG_VOLUME = "launch-config"
_CONFIG_PATH = "/launch-config"
#: The program that each container runs first.
_START_SCRIPT = """\
# Copies the files of the ConfigMap, waits for the names of all tasks, then becomes the program.
import json, os, shutil, socket, sys, time

files = "/launch-config/files"
for name in os.listdir(files) if os.path.isdir(files) else ():
    path = os.path.join(files, name)
    (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, name)
addresses = [address for role in json.loads(os.environ["CLUSTER_SPEC"]).values() for address in role]
began, shown = time.monotonic(), ""
for name in [address.rpartition(":")[0] for address in addresses]:
    while True:
        try:
            socket.getaddrinfo(name, None)
            break
        except OSError as error:
            waited = time.monotonic() - began
            if waited > {seconds}:
                sys.exit(f"{{name}}: {{error}}")
            if waited > 2 and shown != name:
                shown = name
                print(f"waiting for the name {{name}}: {{error}}", file=sys.stderr, flush=True)
            time.sleep(1)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def host_name(name: str, role: str, index: object) -> str:
    """Return the host name of a task: its pod has it by the Job and the Service."""
    return f"{_job_name(name, role)}-{index}.{name}"


def _job_name(name: str, role: str) -> str:
    return f"{name}-{role.lower().replace('_', '-')}"


def manifests(job: Exported, options: KubernetesOptions, user: str, files: Mapping[str, str]) -> str:
    """Return the manifests, as YAML.

    Args:
        job: The host of each task has the address `host_name`.
        options: Of its pods.
        user: ``UID[:GID]`` of the tasks.
        files: Path below the folder that tasks run in -> the content of a file; empty: the images have them.

    Raises:
        JobError: A task cannot be described.
    """
    start = Block(_START_SCRIPT.format(seconds=math.ceil(options.start_timeout)))
    data = {"start.py": start, **{f"file-{n}": Block(text) for n, text in enumerate(files.values())}}
    paths = ["start.py", *(f"files/{path}" for path in files)]
    items = [{"key": key, "path": path} for key, path in zip(data, paths, strict=True)]
    config = {"name": _CONFIG_VOLUME, "configMap": {"name": job.name, "items": items}}
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {_NAME_LABEL: job.name},
        "ports": [{"name": "tensorflow", "port": TASK_PORT}],
    }
    where = {"namespace": options.namespace} if options.namespace else {}

    def manifest(version: str, kind: str, name: str, **content: Any) -> dict[str, Any]:
        metadata = {"name": name, **where, "labels": {_NAME_LABEL: job.name}}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    made = [
        manifest("v1", "ConfigMap", job.name, data=data),
        manifest("v1", "Service", job.name, spec=service),
    ]
    for part in job.parts():
        role = part.role
        pod = _pod(job, options, user, role, part.tasks)
        pod["volumes"] = [{"name": _HOME_VOLUME, "emptyDir": {}}, config]
        spec = {**_job(job, role), "template": with_templates({"metadata": {}, "spec": pod}, options, role)}
        spec["template"]["metadata"].setdefault("labels", {})[_NAME_LABEL] = job.name
        made.append(manifest("batch/v1", "Job", _job_name(job.name, role.name), spec=spec))
    return heading(job, "kubernetes", _LEFT_OUT_NOTE, _lines(job, options, user, files)) + documents(*made)


def _lines(job: Exported, options: KubernetesOptions, user: str, files: Mapping[str, str]) -> Iterator[str]:
    """Yield how the file is used."""
    deciding = {task.role for task in job.deciding()}
    names = [f"job/{_job_name(job.name, role)}" for role in sorted(deciding)]
    others = [part.role.name for part in job.parts() if part.role.name not in deciding]
    kubectl = "kubectl" + (f" --namespace {options.namespace}" if options.namespace else "")
    yield f"    {kubectl} apply -f FILE"
    yield f"    {kubectl} wait --for=condition=complete --timeout=-1s {' '.join(names)}"
    yield f"    {kubectl} delete -f FILE"
    yield (
        "There is a Job for each role; kubectl logs shows the output of a pod. A failed pod fails its Job "
        "(kubectl get jobs; kubectl wait does not return then), but no other Job: their tasks wait, or "
        "fail, too. With --restarts, which are for each Job, a new pod has another address under the same "
        "name, and LAUNCH_ATTEMPT stays 1."
    )
    if others:
        yield f"When the job is done, only the last line above stops {join_names(others)}."
    if job.copied:
        yield f"The values of {join_names(job.copied)} are not here. The Secret {job.name} must have them:"
        yield f"    {kubectl} create secret generic {job.name} --from-env-file=FILE"
    yield (
        f"The ConfigMap has {join_names([*files]) or 'no file of the program'}. The images must have "
        "all others, "
        f"and a Python 3.8 or newer. Tasks run as user {user}, in an empty folder unless the job names one."
    )


def _job(job: Exported, role: Role) -> dict[str, Any]:
    """Return the spec of the Job of a role, without its pods."""
    policy = job.spec.policy
    limit = "backoffLimitPerIndex" if policy.on_failure is OnFailure.CONTINUE else "backoffLimit"
    count = {"completions": role.count, "parallelism": role.count, "completionMode": "Indexed"}
    time = {} if policy.timeout is None else {"activeDeadlineSeconds": math.ceil(policy.timeout)}
    return {**count, limit: policy.restarts, **time}


def _pod(
    job: Exported, options: KubernetesOptions, user: str, role: Role, tasks: Sequence[TaskPlan]
) -> dict[str, Any]:
    """Return the spec of the pods of a role."""
    host = host_name(job.name, role.name, "$(TASK_INDEX)")
    later = {"task_index": "$(TASK_INDEX)", "task_host": host, "task_address": f"{host}:{TASK_PORT}"}
    if role.name == job.plan.tasks[0].task.role:
        later.update(dict.fromkeys(_RANK_PLACEHOLDERS, "$(TASK_INDEX)"))

    def text(value: str) -> str:
        return filled(value, lambda known: known.replace("$", "$$"), later.__getitem__)

    task = (
        job.completed(tasks[0]) if len(tasks) == 1 else job.of_role(tasks[0], {*later, *_RANK_PLACEHOLDERS})
    )
    try:
        args, values = list(map(text, task.argv)), {name: text(value) for name, value in task.env.items()}
    except KeyError:
        problem = f"{role.name}: in Kubernetes a task knows its index in the role, not its rank"
        expected = "expected {task_index} instead of {rank} and {node_rank}"
        raise JobError([Fault(role.source, problem, expected)]) from None
    env: dict[str, dict[str, Any]] = {
        name: {"value": value} for name, value in {"HOME": HOME, **values}.items()
    }
    for name in job.copied:
        env[name] = {"valueFrom": {"secretKeyRef": {"name": job.name, "key": name}}}
    # The variables after it are made from it.
    env = {**env, "TASK_INDEX": {"valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}}}
    spec = pod_spec(options, role, user, job.spec.policy.grace)
    container = spec["containers"][0]
    container.update(
        command=[job.spec.python, f"{_CONFIG_PATH}/start.py"],
        args=args,
        workingDir=task.workdir or HOME,
        env=[{"name": name, **env[name]} for name in sorted(env, key="TASK_INDEX".__ne__)],
        ports=[{"containerPort": TASK_PORT}],
        volumeMounts=[
            {"name": _HOME_VOLUME, "mountPath": HOME},
            {"name": _CONFIG_VOLUME, "mountPath": _CONFIG_PATH},
        ],
    )
    # As process 1 a program would ignore SIGTERM.
    return {"subdomain": job.name, "shareProcessNamespace": True, **spec}
