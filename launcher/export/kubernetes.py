"""Writes a job as manifests of Kubernetes: an Indexed Job for each role, a Service for their names.

``launch export kubernetes`` calls `manifests` with an `ExportedJob`. The module turns it into text: it reads
no file and asks no cluster.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from launcher.backends.kubernetes.manifest import HOME, pod_spec, with_templates
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.common.errors import Fault, JobError
from launcher.common.text import join_names
from launcher.export.exported import TASK_PORT, Block, ExportedJob, fill_marks, heading, to_yaml
from launcher.job import OnFailure, Role, TaskPlan

#: The largest total size of the files in a ConfigMap. Kubernetes allows 1 MiB, names and quotes included.
MAX_CONFIG_MAP_BYTES = 900_000
#: What these manifests cannot do, though other forms can.
_LEFT_OUT_NOTE = "mounts and options of docker:, "
#: Placeholders that equal the index of a task if the task belongs to the first role.
_RANK_PLACEHOLDERS = ("rank", "node_rank")
_NAME_LABEL = "app.kubernetes.io/name"
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
#: The name of the empty volume in which tasks run.
_HOME_VOLUME = "launch-home"
#: The name of the volume that shows the ConfigMap, and where containers see it.
_CONFIG_VOLUME = "launch-config"
_CONFIG_PATH = "/launch-config"
#: The program that each container starts with.
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
    """Return the host name under which a task is reached: that of its pod in the Service of the job.

    Args:
        name: The name of the exported job.
        role: The name of the role of the task.
        index: The index of the task in its role, or a variable of Kubernetes that contains it.
    """
    return f"{_job_name(name, role)}-{index}.{name}"


def _job_name(name: str, role: str) -> str:
    """Return the name of the Job of a role. Kubernetes allows no capital letters and underscores in it."""
    return f"{name}-{role.lower().replace('_', '-')}"


def manifests(job: ExportedJob, options: KubernetesOptions, user: str, files: Mapping[str, str]) -> str:
    """Return the manifests of a job, as YAML: a ConfigMap, a Service, and a Job for each role.

    Args:
        job: The job. The address of each task's host is that of `host_name`.
        options: The options of the pods.
        user: The user that runs the tasks, as ``UID[:GID]``.
        files: The content of each file that the ConfigMap carries, by its path in the folder that tasks run
            in. It is empty if the images contain the program.

    Raises:
        JobError: A task uses its rank, which Kubernetes does not tell it.
    """
    # A key of a ConfigMap cannot contain a slash, so files are numbered, and the volume maps the keys to
    # paths.
    start = Block(_START_SCRIPT.format(seconds=math.ceil(options.start_timeout)))
    contents = {f"file-{number}": Block(text) for number, text in enumerate(files.values())}
    data = {"start.py": start, **contents}
    paths = ["start.py", *(f"files/{path}" for path in files)]
    items = [{"key": key, "path": path} for key, path in zip(data, paths, strict=True)]
    config = {"name": _CONFIG_VOLUME, "configMap": {"name": job.name, "items": items}}
    # The Service only gives names to pods, so it has no address of its own. Pods get names before they are
    # ready, because tasks wait for the names of all others.
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {_NAME_LABEL: job.name},
        "ports": [{"name": "tensorflow", "port": TASK_PORT}],
    }
    namespace = {"namespace": options.namespace} if options.namespace else {}

    def manifest(version: str, kind: str, name: str, **content: Any) -> dict[str, Any]:
        """Return an object of Kubernetes with the namespace and the label of this job."""
        metadata = {"name": name, **namespace, "labels": {_NAME_LABEL: job.name}}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    documents = [
        manifest("v1", "ConfigMap", job.name, data=data),
        manifest("v1", "Service", job.name, spec=service),
    ]
    for part in job.roles():
        role = part.role
        pod = _pod(job, options, user, role, part.tasks)
        pod["volumes"] = [{"name": _HOME_VOLUME, "emptyDir": {}}, config]
        spec = {**_job(job, role), "template": with_templates({"metadata": {}, "spec": pod}, options, role)}
        # The templates of the user, which are merged into the pod, may contain labels of their own.
        spec["template"]["metadata"].setdefault("labels", {})[_NAME_LABEL] = job.name
        documents.append(manifest("batch/v1", "Job", _job_name(job.name, role.name), spec=spec))
    return heading(job, "kubernetes", _LEFT_OUT_NOTE, _usage(job, options, user, files)) + to_yaml(*documents)


def _usage(job: ExportedJob, options: KubernetesOptions, user: str, files: Collection[str]) -> Iterator[str]:
    """Yield lines for the comment of the file: the commands that use it, and what it needs.

    Args:
        job: The job.
        options: The options of the pods.
        user: The user that runs the tasks, as ``UID[:GID]``.
        files: The paths of the files in the ConfigMap.
    """
    # The roles that decide when the job is done. Their Jobs are those to wait for.
    deciding = {task.role for task in job.deciding_tasks()}
    names = [f"job/{_job_name(job.name, role)}" for role in sorted(deciding)]
    others = [part.role.name for part in job.roles() if part.role.name not in deciding]
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
    if copied := join_names(job.copied_env):  # Variables whose values launch takes from its environment.
        yield f"The values of {copied} are not here. The Secret {job.name} must contain them:"
        yield f"    {kubectl} create secret generic {job.name} --from-env-file=FILE"
    yield (
        f"The ConfigMap contains {join_names([*files]) or 'no file of the program'}. The images must contain "
        "all others, "
        f"and a Python 3.8 or newer. Tasks run as user {user}, in an empty folder unless the job names one."
    )


def _job(job: ExportedJob, role: Role) -> dict[str, Any]:
    """Return the spec of the Job of a role without its pods: their number, and its limits."""
    policy = job.spec.policy
    spec = {"completions": role.count, "parallelism": role.count, "completionMode": "Indexed"}
    # With a limit for each index the failure of one task does not end the others.
    limit = "backoffLimitPerIndex" if policy.on_failure is OnFailure.CONTINUE else "backoffLimit"
    spec[limit] = policy.restarts
    if policy.timeout is not None:
        spec["activeDeadlineSeconds"] = math.ceil(policy.timeout)
    return spec


def _variables(job: ExportedJob, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the ``env`` of a container: each variable with its value, or where Kubernetes gets that.

    Args:
        job: The job. The Secret of its name contains the variables that are copied.
        values: The variables whose values are the same for all tasks of the role, apart from references to
            TASK_INDEX in them.
    """
    # Kubernetes replaces $(TASK_INDEX) only in variables that follow it, so TASK_INDEX comes first.
    # Its own value is set at the end, in place of the one that the plan contains.
    env: dict[str, dict[str, Any]] = {"TASK_INDEX": {}}
    env.update({name: {"value": value} for name, value in {"HOME": HOME, **values}.items()})
    for name in job.copied_env:
        env[name] = {"valueFrom": {"secretKeyRef": {"name": job.name, "key": name}}}
    env["TASK_INDEX"] = {"valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}}
    return [{"name": name, **source} for name, source in env.items()]


def _pod(
    job: ExportedJob, options: KubernetesOptions, user: str, role: Role, tasks: Sequence[TaskPlan]
) -> dict[str, Any]:
    """Return the spec of the pods of a role: one spec for all its tasks, which learn their index in the pod.

    Args:
        job: The job.
        options: The options of the pods.
        user: The user that runs the tasks, as ``UID[:GID]``.
        role: The role.
        tasks: The tasks of the role.

    Raises:
        JobError: A task uses its rank, which Kubernetes does not tell it.
    """
    # Kubernetes replaces $(TASK_INDEX) in arguments and variables when it starts the container.
    host = host_name(job.name, role.name, "$(TASK_INDEX)")
    references = {"task_index": "$(TASK_INDEX)", "task_host": host, "task_address": f"{host}:{TASK_PORT}"}
    # In the first role the rank of a task equals its index.
    if role.name == job.plan.tasks[0].task.role:
        references.update(dict.fromkeys(_RANK_PLACEHOLDERS, "$(TASK_INDEX)"))

    def text(value: str) -> str:
        """Return a text as the manifest must write it: $(NAME) is replaced by a variable, and $$ by a $."""
        return fill_marks(value, lambda known: known.replace("$", "$$"), references.__getitem__)

    known_later = {*references, *_RANK_PLACEHOLDERS}
    # All values of a single task are known here, even its rank.
    task = job.completed(tasks[0]) if len(tasks) == 1 else job.role_template(tasks[0], known_later)
    try:
        args, values = list(map(text, task.argv)), {name: text(value) for name, value in task.env.items()}
    except KeyError:  # The task uses its rank, which has no reference.
        problem = f"{role.name}: in Kubernetes a task knows its index in the role, not its rank"
        expected = "expected {task_index} instead of {rank} and {node_rank}"
        raise JobError([Fault(role.source, problem, expected)]) from None
    spec = pod_spec(options, role, user, job.spec.policy.grace)
    container = spec["containers"][0]
    container.update(
        command=[job.spec.python, f"{_CONFIG_PATH}/start.py"],
        args=args,
        workingDir=task.workdir or HOME,
        env=_variables(job, values),
        ports=[{"containerPort": TASK_PORT}],
        volumeMounts=[
            {"name": _HOME_VOLUME, "mountPath": HOME},
            {"name": _CONFIG_VOLUME, "mountPath": _CONFIG_PATH},
        ],
    )
    # Without a shared namespace the program would be process 1, which ignores SIGTERM by default.
    return {"subdomain": job.name, "shareProcessNamespace": True, **spec}
