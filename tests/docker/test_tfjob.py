"""A TFJob in containers: of its own images, and of another one."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.conftest import Launch
from tests.docker.conftest import alive, jobs
from tests.docker.engine import Engine

TFJOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  tfReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
          - name: tensorflow
            image: SECOND
            command: [sh, -c]
            args: ['echo up in $WHICH at $PWD; exec sleep 600']
            workingDir: /opt
            resources: {limits: {cpu: 500m, memory: 512Mi}}
    PS:
      template:
        spec:
          containers: [{name: tensorflow, image: FIRST, command: [sh, -c, 'echo up in ${WHICH:-first}; exec sleep 600']}]
"""  # noqa: E501


def test_a_tfjob_in_its_images_and_in_another(docker: Engine, image: str, launch: Launch, tmp_path: Path):
    second = f"launch-test-tfjob-{os.getpid()}"
    docker.docker("build", "-t", second, "-", stdin=f"FROM {image}\nENV WHICH=second\n".encode())
    try:
        (tmp_path / "tfjob.yaml").write_text(TFJOB.replace("SECOND", second).replace("FIRST", image))
        own = launch.start("tfjob.yaml", "--docker", cwd=tmp_path)
        own.until(lambda it: it.out.count("| up in") == 2, 40)
        found = json.loads(docker.docker("inspect", *alive(docker, jobs(launch)[0])))
        own.send(2)
        assert own.wait(40).code == 130
        other = launch.start("--docker", second, "tfjob.yaml", cwd=tmp_path)
        other.until(lambda it: it.out.count("| up in") == 2, 40)
        other.send(2)
        assert other.wait(40).code == 130
    finally:
        docker.docker("rmi", "-f", second)
    assert "worker/0 | up in second at /opt" in own.out
    assert "ps/0     | up in first" in own.out
    assert "ps/0     | up in second" in other.out
    assert "does not use" not in own.err + other.err
    limits = {it["Config"]["Hostname"]: it["HostConfig"] for it in found}
    assert (limits["worker-0"]["Memory"], limits["worker-0"]["NanoCpus"]) == (512 << 20, 500_000_000)
