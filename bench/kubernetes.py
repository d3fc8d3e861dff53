"""Measures pods of Kubernetes: start-up, bytes on the wire, and what the client needs.

`bench.run` calls `measure`. The nodes are namespaces of this machine, which only root can make.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bench import processes, rates, tables
from bench.setting import Setting
from tests.kubernetes.cluster import Cluster, a_cluster
from tests.seeing import soon

_PODS = 16
#: The time limit for one run.
_TIME_LIMIT = 180.0
_LIMIT = f"--request-timeout={_TIME_LIMIT:g}s"
_UP = ("sh", "-c", "echo up; exec sleep 600")
_LAUNCH, _JOB, _EXEC = "launch", "a bare Job", "kubectl exec"
#: The pod of a Job, for a namespace of the level ``restricted``.
_POD: dict[str, Any] = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "terminationGracePeriodSeconds": 1,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
_CONTAINER = {
    "name": "task",
    "imagePullPolicy": "IfNotPresent",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


def measure(setting: Setting) -> None:
    """Make a cluster of namespaces, measure launch and other clients there, and print three tables."""
    if os.geteuid() != 0:
        print("\nkubernetes: MISSING: its nodes are namespaces, which only root can make")
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        a_cluster(Path(folder), f"bench {os.getpid()}") as cluster,
    ):
        os.environ.update(cluster.environ)
        launch = [*cluster.enter, setting.launch, "--kubernetes", cluster.image]
        _start_up(setting, cluster, launch)
        _bytes(setting, cluster, launch)
        _needs(cluster, launch)


@contextmanager
def _job(cluster: Cluster, count: int) -> Iterator[str]:
    """Create a bare Job with a number of pods, which is removed at the end of the context.

    The value of the context is the option of kubectl that selects its pods.
    """
    name = f"bare-{os.urandom(4).hex()}"
    spec = {**_POD, "containers": [{**_CONTAINER, "command": _UP, "image": cluster.image}]}
    job = {"completions": count, "parallelism": count, "backoffLimit": 0, "template": {"spec": spec}}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job}
    cluster.kubectl("create", "--filename=-", stdin=json.dumps(manifest))
    try:
        yield f"--selector=job-name={name}"
    finally:
        cluster.kubectl("delete", "job", name)
        soon(lambda: not cluster.objects("pods"), _TIME_LIMIT)


def _await(cluster: Cluster, pods: str, count: int) -> None:
    """Wait until a number of pods run.

    Args:
        cluster: The cluster.
        pods: The option of kubectl that selects the pods.
        count: Their number.

    Raises:
        TimeoutError: They do not run in time.
    """
    line = r'--output=jsonpath={.metadata.name} {.status.phase}{"\n"}'
    watch = ["kubectl", f"--namespace={cluster.namespace}", "get", "pods", pods, "--watch", line, _LIMIT]
    running: set[bytes] = set()
    with rates.started([*cluster.enter, *watch]) as process:
        assert process.stdout is not None
        for row in process.stdout:
            name, _, phase = row.partition(b" ")
            if phase.strip() == b"Running":
                running.add(name)
            if len(running) == count:
                return
    raise TimeoutError(f"{len(running)} of {count} pods run")


def _read_up(output: IO[bytes] | None, count: int) -> bool:
    """Wait until a number of tasks have printed ``up``, and return whether they have.

    Args:
        output: The output of the launcher.
        count: The number of tasks.
    """
    seen = b""
    for piece in rates.pieces(output):
        seen += piece
        if seen.count(b"| up") == count:
            return True
    return False


def _start_up(setting: Setting, cluster: Cluster, launch: Sequence[str]) -> None:
    """Print how long 16 pods take to run, with launch and as a bare Job."""
    runs: dict[str, list[float]] = {_LAUNCH: [], f"{_LAUNCH}: its tasks": [], _JOB: []}
    for _ in range(setting.rounds):
        began = time.perf_counter()
        with rates.started([*launch, "--workers", str(_PODS), "--", *_UP]) as process:
            _await(cluster, "--selector=app.kubernetes.io/managed-by=tf-launcher", _PODS)
            runs[_LAUNCH].append(time.perf_counter() - began)
            if _read_up(process.stdout, _PODS):
                runs[f"{_LAUNCH}: its tasks"].append(time.perf_counter() - began)
            else:
                setting.faults.append(f"kubernetes: {_PODS} tasks do not start")
        soon(lambda: not cluster.objects("pods"), _TIME_LIMIT)
        began = time.perf_counter()
        with _job(cluster, _PODS) as pods:
            _await(cluster, pods, _PODS)
            runs[_JOB].append(time.perf_counter() - began)
    rows = [[name, tables.times(own), tables.ratio(own, runs[_JOB])] for name, own in runs.items() if own]
    head = ["seconds: median (min)", f"{_PODS} pods run", f"x {_JOB}"]
    tables.show(f"kubernetes start-up: {_PODS} pods on 2 nodes", head, rows)


def _bytes(setting: Setting, cluster: Cluster, launch: Sequence[str]) -> None:
    """Print how fast the output of a pod passes through launch and through ``kubectl exec``."""
    found = rates.Rates(setting, "kubernetes")
    kubectl = [*cluster.enter, "kubectl", f"--namespace={cluster.namespace}"]
    for _ in range(setting.rounds):
        found.add(_LAUNCH, [*launch, "--", *rates.PROGRAM])
        with _job(cluster, 1) as pods:
            _await(cluster, pods, 1)
            (pod,) = [pod["metadata"]["name"] for pod in cluster.objects("pods")]
            found.add(_EXEC, [*kubectl, "exec", pod, "--", *rates.PROGRAM])
    found.show(_EXEC)


def _needs(cluster: Cluster, launch: Sequence[str]) -> None:
    """Print the memory and the CPU that launch needs while its tasks do nothing."""
    seconds = 5.0
    with rates.started([*launch, "--workers", str(_PODS), "--", *_UP]) as process:
        _read_up(process.stdout, _PODS)
        own = [process.pid, *processes.family(process.pid)]
        before = sum(map(processes.cpu_seconds, own))
        time.sleep(seconds)
        spent = sum(map(processes.cpu_seconds, own)) - before
        clients = [pid for pid in own if processes.command(pid)[:1] == ["kubectl"]]
        sizes = [sum(processes.memory(pid)[0] for pid in pids) for pids in ([process.pid], clients)]
    row = [
        f"{_PODS} pods, {len(clients)} kubectls",
        *(f"{size / _PODS / 1e6:.1f}" for size in sizes),
        f"{spent / seconds / _PODS * 1e3:.2f}",
    ]
    head = ["idle, for each pod", "launch: MB (PSS)", "its kubectl: MB (PSS)", "CPU ms/s"]
    tables.show(f"kubernetes client: {_PODS} pods", head, [row])
