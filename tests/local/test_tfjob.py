"""``launch tfjob.yaml``: jobs that were written for Kubeflow's operator run here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import last_run

pytestmark = pytest.mark.timeout(120)

HEAD = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: job}\nspec:\n"
#: Each task shows what it has; a ps never exits. The job ends with the master, so that waits for the others.
SHOW = """\
  tfReplicaSpecs:
    Master:
      template: {spec: {containers: [&]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [&]}}
    PS:
      template:
        spec:
          volumes: [{name: data, emptyDir: {}}]
          containers:
          - name: tensorflow
            image: example.com/tf:1
            command: [sleep, '600']
""".replace(
    "&",
    "{name: tensorflow, image: 'example.com/tf:1', command: [sh, -c], args: ['echo \"$(A) $B {rank}\"; "
    "cat; echo $TF_CONFIG; [ $JOB_NAME != master ] || sleep 2'], "
    "env: [{name: A, value: one}, {name: B, value: $(A)two}]}",
)


def test_the_cluster_has_a_master_and_commands_run_as_they_stand(launch: Launch, tmp_path: Path):
    (tmp_path / "tfjob.yaml").write_text(HEAD + SHOW)
    ended = launch("tfjob.yaml", cwd=tmp_path, code=0)
    for task in ("master/0", "worker/0", "worker/1"):
        assert f"{task} | one onetwo {{rank}}" in ended.out
    config = json.loads(re.findall(r"^master/0 \| (\{.*)", ended.out, re.M)[0])
    assert config["task"] == {"type": "master", "index": 0}
    counts = {role: len(tasks) for role, tasks in config["cluster"].items()}
    assert counts == {"master": 1, "worker": 2, "ps": 1}
    notes = [line for line in ended.err.splitlines() if "TFJob" in line]
    assert notes == [
        "launch: these fields of the TFJob have no effect: image without --docker or --kubernetes "
        "(tfjob.yaml:7, :10, :17), volumes (:14); see docs/tfjob.md"
    ]


def test_worker_0_decides_and_a_program_follows_the_file(launch: Launch, tmp_path: Path):
    """The other worker runs on, and is stopped. Options may come before the program."""
    worker = "template: {spec: {containers: [{name: tensorflow, image: a, args: [wait]}]}}"
    (tmp_path / "tfjob.yaml").write_text(
        f"{HEAD}  tfReplicaSpecs:\n    Worker:\n      replicas: 2\n      {worker}"
    )
    (tmp_path / "program").write_text("echo $@; test $TASK_INDEX = 0 || exec sleep 600\n")
    ended = launch("tfjob.yaml", "--workers", "3", "sh", "program", "first", cwd=tmp_path, code=0)
    assert "worker/0 | first wait" in ended.out
    assert [*last_run(launch).states().values()] == ["succeeded", "stopped", "stopped"]
