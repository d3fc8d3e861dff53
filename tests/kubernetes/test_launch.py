"""Tasks run in pods."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch, Started
from tests.kubernetes.cluster import Cluster, mounting
from tests.local.training import CACHE, PYTHON
from tests.seeing import ROOT, last_run, soon

Start = Callable[..., Started]

#: Up, then silent; deaf to SIGTERM.
WAITS = ("sh", "-c", "trap '' TERM; echo up; sleep 300 & wait; sleep 300")


#: Needs 200 MB in worker/1; the kernel kills all of its pod for that, as cgroups of version 2 do.
LARGE = """\
import os
if os.environ["TASK_INDEX"] == "1":
    open("/proc/1/oom_score_adj", "w").write("1000")
    print(len(bytearray(200 << 20)))
"""


def test_a_whole_pod_is_out_of_memory(start: Start, launch: Launch, kubernetes: Cluster):
    """The pod is lost with its agent; the message names the limit and the option."""
    # With limits of both the kubelet makes no process of the pod more likely to be killed.
    words = (*kubernetes.workers(2), "--memory", "worker=64m", "--cpus", "0.5")
    start(*words, "--", "python3", "-c", LARGE).wait(90, code=125)
    failure = last_run(launch).report["failure"]
    assert "its limit is 64Mi" in failure["text"], failure
    assert "--memory" in failure["text"] + failure["hint"], failure


#: What the operator gives to pods as it stands, launch gives to them, too.
TFJOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  successPolicy: AllWorkers
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
            args: ['until test -e /data/beside; do sleep 1; done; cat /data/*; echo "$(A) in $HOME on $NODE"']
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
    soon(lambda: len(kubernetes.pods()) == 3)
    labels = [str(pod["metadata"]["labels"].get("team")) for pod in kubernetes.objects("pods")]
    result = started.wait(60, code=0)
    for task in ("worker/0", "worker/1"):
        assert f"{task} | before" in result.out and f"{task} | beside" in result.out, result.out
        assert f"{task} | one in /tmp/launch on " in result.out
    assert "does not use" not in result.err
    assert sorted(labels) == ["None", "ranking", "ranking"]


@pytest.fixture
def host_paths(kubernetes: Cluster) -> Iterator[None]:
    """Pods may see folders of their nodes."""
    level = "pod-security.kubernetes.io/enforce"
    kubernetes.kubectl("label", "namespace", kubernetes.namespace, f"{level}-")
    yield
    kubernetes.kubectl("label", "namespace", kubernetes.namespace, f"{level}=restricted")


@pytest.mark.tensorflow
@pytest.mark.long
@pytest.mark.timeout(500)
def test_mnist(start: Start, kubernetes: Cluster, host_paths: None, tmp_path: Path):
    """TensorFlow is in folders of the nodes, which a pod template mounts; the data travels with the code.

    The pods share no folder: worker 0 writes the model, which is collected.
    """
    code = tmp_path / "code"
    shutil.copytree(ROOT / "examples/mnist_dist", code, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([PYTHON, code / "data.py"], check=True, capture_output=True)
    shutil.copytree(Path(CACHE, "tf-launcher/mnist"), code / "data", dirs_exist_ok=True)
    job = {
        "python": PYTHON,
        "flags": True,
        "env": {"TF_CPP_MIN_LOG_LEVEL": 2},
        "sync": [str(code)],
        "command": ["mnist_dist.py", "--log_dir=model", "--train_steps=300"],
        "collect": ["worker/0=model:trained"],
        "roles": {"ps": 1, "worker": 2},
    }
    kubernetes.write_job(tmp_path, mounting([sys.prefix, sys.base_prefix]), **job)
    result = start("job.yaml", cwd=tmp_path).wait(400, code=0)
    found = re.findall(r"^worker/\d +\| test accuracy: ([01]\.\d+)", result.out, re.M)
    assert len(found) == 2 and all(float(accuracy) >= 0.85 for accuracy in found)
    model = tmp_path / "trained/model"
    assert (model / "checkpoint").is_file() and [*model.glob("model.ckpt-*.data-00000-of-00001")]


def test_check(start: Start, kubernetes: Cluster):
    """Two pods are made, looked at, and removed. Their image lacks what the URL needs."""
    result = start("check", "--kubernetes", kubernetes.image, "--url", "s3://bucket/x").wait(60, code=1)
    assert len(re.findall(r"^pod-[01] +10\.244\.", result.out, re.M)) == 2
    assert "4 of 4 connections between the hosts work" in result.out
    assert "problem: all hosts: s3://bucket/x: fsspec is not installed" in result.out
    assert "RUN pip install 'tf-launcher[s3]'" in result.out


def test_clean(start: Start, kubernetes: Cluster):
    """Only Jobs of launches that have ended are removed."""
    killed, lives = (start(*kubernetes.workers(1), "--", *WAITS) for _ in range(2))
    soon(lambda: len(kubernetes.objects("jobs")) == 2, 30)
    killed.kill()
    listed = start("clean", "--kubernetes", "--dry-run").wait().out
    (one,) = re.findall(r"would remove (Job launch-\S+)", listed)
    assert start("clean", "--kubernetes").wait().out.count(f"removed {one} ") == 1
    assert start("clean", "--kubernetes").wait().out == "nothing to remove\n"
    lives.up(1, 60)
    assert lives.stop(signal.SIGINT, 30).code == 130


def test_no_cluster(start: Start):
    result = start("--kubernetes", "x", "true", env={"KUBECONFIG": "/nosuch"}).wait()
    expected = "expected a context in ~/.kube/config, or a file in $KUBECONFIG"
    assert (result.code, result.said) == (125, [f"launch: kubectl knows no cluster: {expected}"])


def test_the_cluster_does_not_answer(start: Start, kubernetes: Cluster, tmp_path: Path):
    config = kubernetes.user.read_text()
    (tmp_path / "config").write_text(re.sub("https://[0-9.]+:", "https://10.99.0.200:", config))
    result = start("--kubernetes", "x", "true", env={"KUBECONFIG": f"{tmp_path}/config"}).wait(60)
    assert result.code == 125 and len(result.said) == 1, result.err
