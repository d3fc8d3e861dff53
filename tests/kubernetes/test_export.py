"""What ``launch export kubernetes`` writes, run by kubectl: no launch is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import Launch
from tests.docker.test_export import MEET
from tests.kubernetes.cluster import Cluster
from tests.local.test_export import by_task
from tests.seeing import soon
from tests.slurm.test_export import HOSTILE

#: The address of the machine with the API server, in the network of a cluster of ours.
_CTL = "10.99.0.1"


@pytest.fixture
def dns(kubernetes: Cluster) -> Iterator[dict[str, object]]:
    """A DNS where a cluster of ours has none: what a pod's template says to use it."""
    if not kubernetes.enter:
        yield {}
        return
    command = [*kubernetes.enter, sys.executable, str(Path(__file__).with_name("names.py")), _CTL]
    environ = {**os.environ, **kubernetes.environ, "KUBECONFIG": kubernetes.admin}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            searches = [f"{kubernetes.namespace}.svc.cluster.local"]
            yield {"dnsPolicy": "None", "dnsConfig": {"nameservers": [_CTL], "searches": searches}}
        finally:
            process.kill()


@pytest.fixture
def namespace(kubernetes: Cluster) -> Iterator[None]:
    """Nothing is left in the namespace."""
    yield
    kubernetes.kubectl("delete", "jobs,pods,services", "--all", "--force", "--grace-period=0")
    soon(lambda: not kubernetes.objects("pods"), 30)


def export(launch: Launch, folder: Path, job: dict[str, object], *words: str) -> str:
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    ended = launch("export", "kubernetes", "job.yaml", *words, cwd=folder, env={"COPIED": "another"}, code=0)
    return ended.out


def test_tasks_find_each_other(
    kubernetes: Cluster, namespace: None, dns: dict[str, object], launch: Launch, weird_path: Path
):
    """Restricted pods, by the names of the Service. The values are those that were given."""
    (weird_path / "meet.py").write_text("import beside\n" + MEET)
    (weird_path / "beside.py").write_text("")
    job: dict[str, object] = {
        "command": ["meet.py", "0", HOSTILE, "{task_index} {rank} {task_address}"],
        "roles": {"worker": 3, "ps": 1},
        "env": {"HOSTILE": HOSTILE},
        "kubernetes": {"image": kubernetes.image, "pod": {"spec": dns}, "memory": "200m", "cpus": 0.1},
        "timeout": "5m",
    }
    text = export(launch, weird_path, job, "-x", "COPIED")
    checked = kubernetes.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert checked.count("(server dry run)") == 4
    kubernetes.kubectl("create", "secret", "generic", "job", f"--from-literal=COPIED={HOSTILE}")
    try:
        kubernetes.kubectl("apply", "-f", "-", stdin=text)
        complete = ("wait", "--for=condition=complete", "--timeout=150s", "job/job-worker")
        kubernetes.run("kubectl", f"--namespace={kubernetes.namespace}", *complete, timeout=160)
        pods = kubernetes.objects("pods")
        said = [kubernetes.kubectl("logs", pod["metadata"]["name"]) for pod in pods]
    finally:
        kubernetes.kubectl("delete", "secret", "job")
    tasks = {}
    for argv, env, folder in map(json.loads, said):
        me = by_task(env)[0]
        where = f"job-{me.replace('/', '-')}.job"
        rank = "3" if me == "ps/0" else env["TASK_INDEX"]
        assert argv == ["0", HOSTILE, f"{env['TASK_INDEX']} {rank} {where}:2222"]
        assert (env["HOSTILE"], env["COPIED"], folder) == (HOSTILE, HOSTILE, env["HOME"])
        tasks[me] = where
    assert tasks.keys() == {"worker/0", "worker/1", "worker/2", "ps/0"}
    phases = sorted(pod["status"]["phase"] for pod in pods)
    assert phases == ["Running", "Succeeded", "Succeeded", "Succeeded"], "nothing ends the ps"
    kubernetes.kubectl("delete", "--timeout=20s", "-f", "-", stdin=text)
    soon(lambda: not kubernetes.objects("pods"), 8, "SIGTERM ends it")
