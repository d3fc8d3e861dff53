"""Tasks run in pods."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Started
from tests.kubernetes.cluster import Cluster, soon

Start = Callable[..., Started]

#: Up, then silent; deaf to SIGTERM.
WAITS = ("sh", "-c", "trap '' TERM; echo up; sleep 300 & wait; sleep 300")


def ended(kubernetes: Cluster) -> bool:
    """Whether all pods have ended."""
    return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in kubernetes.objects("pods"))


def test_tasks_run_in_pods(start: Start, kubernetes: Cluster, tmp_path: Path):
    """With the files of --sync in them, and the files of --collect out of them."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(
        "import json, os, socket\n"
        "config = json.loads(os.environ['TF_CONFIG'])\n"
        "print('address', config['cluster']['worker'][config['task']['index']], os.getuid())\n"
        "with open('result', 'w') as file: file.write(os.environ['HOME'])\n"
    )
    words = ("--kubernetes", kubernetes.image, "--ps", "1", "--workers", "2", "--sync", "code")
    result = start(*words, "--collect", "worker/0=result:results", "train.py", cwd=tmp_path).wait(60)
    assert result.code == 0, result.err
    assert result.out.count("| address 10.244.") == 3, result.out
    assert (tmp_path / "results/result").read_text() == "/launch"


def test_the_exit_code_is_that_of_the_task(start: Start, kubernetes: Cluster):
    result = start("--kubernetes", kubernetes.image, "--workers", "2", "--", "sh", "-c", "exit 42").wait(60)
    assert result.code == 42, result.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_nothing_is_left(start: Start, kubernetes: Cluster, number: signal.Signals, code: int):
    """After SIGKILL of launch the tasks end, and with them the pods; the cluster removes the Jobs later."""
    words = ("--kubernetes", kubernetes.image, "--workers", "2", "--grace", "1")
    started = start(*words, "--", *WAITS)
    started.until(lambda it: it.out.count("| up") == 2, 60)
    started.send(number)
    assert started.wait(30).code == code
    if number == signal.SIGKILL:
        assert soon(lambda: ended(kubernetes), 60), kubernetes.kubectl("get", "pods")
        assert soon(lambda: not [*kubernetes.processes()])
        kubernetes.kubectl("delete", "jobs", "--all")


#: What the operator gives to pods as it stands, launch gives to them, too.
TFJOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 2
      template:
        metadata: {labels: {team: ranking}}
        spec:
          volumes: [{name: data, emptyDir: {}}]
          initContainers:
          - name: before
            image: &
            command: [sh, -c, echo before > /data/before]
            volumeMounts: [{name: data, mountPath: /data}]
            securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          containers:
          - name: beside
            image: &
            command: [sh, -c, trap 'exit 0' TERM; echo beside > /data/beside; sleep 600 & wait]
            volumeMounts: [{name: data, mountPath: /data}]
            securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          - name: tensorflow
            image: &
            command: [sh, -c]
            args: ['until test -e /data/beside; do sleep 0.1; done; cat /data/*; echo "$(A) on $NODE"']
            env:
            - {name: A, value: one}
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            volumeMounts: [{name: data, mountPath: /data}]
            resources: {limits: {cpu: 500m, memory: 256Mi}, requests: {cpu: 10m}}
    PS:
      template: {spec: {containers: [{name: tensorflow, image: '&', command: [sleep, '600']}]}}
"""


def test_a_tfjob(start: Start, kubernetes: Cluster, tmp_path: Path):
    (tmp_path / "tfjob.yaml").write_text(TFJOB.replace("&", kubernetes.image))
    started = start("tfjob.yaml", "--kubernetes", cwd=tmp_path)
    assert soon(lambda: len(kubernetes.objects("pods")) == 3, 30)
    labels = [pod["metadata"]["labels"].get("team") for pod in kubernetes.objects("pods")]
    result = started.wait(60)
    assert result.code == 0, result.err
    for task in ("worker/0", "worker/1"):
        assert f"{task} | before" in result.out and f"{task} | beside" in result.out, result.out
        assert f"{task} | one on " in result.out
    assert "does not use" not in result.err
    assert sorted(map(str, labels)) == ["None", "ranking", "ranking"]
