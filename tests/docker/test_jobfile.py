"""What a job file says of containers, as the engine has it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.backends import Docker
from tests.docker.conftest import alive
from tests.docker.engine import BASE

JOB = f"""\
command: [sh, -c, 'cat /data/it; touch x || echo refused; echo up $TOKEN; exec sleep 600']
roles: {{worker: 1, ps: 1}}
docker:
  image: {BASE}
  mounts: data:/data:ro
  read_only: true
  memory: {{worker: 512m, ps: 256m}}
  cpus: 0.5
  user: '12345:23456'
  options:
    shm_size: 32m
    ulimits: [nofile=1000:2000]
    cap_add: [SYS_NICE]
    cap_drop: [NET_RAW]
    tmpfs: ['/scratch:size=1m']
    extra_hosts: ['data:10.0.0.7']
    ipc: shareable
    security_opt: [no-new-privileges]
    pids_limit: 500
    devices: ['/dev/null:/dev/nothing']
"""


def as_the_engine_has_it(here: Docker) -> tuple[str, dict[str, Any]]:
    """What the engine says of the containers of the newest run: all of it, and the limits of each."""
    text = here.engine.docker("inspect", *alive(here.engine, here.run.path.name))
    return text, {it["Config"]["Hostname"]: it["HostConfig"] for it in json.loads(text)}


@pytest.mark.promise("the same job on this machine, over SSH, in containers, from a file")
def test_everything_reaches_the_engine(here: Docker, tmp_path: Path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/it").write_text("seen\n")
    (tmp_path / "work").mkdir(mode=0o777)
    words = ("-x", "TOKEN=abracadabra", "--memory", "ps=128m", "--workdir", tmp_path / "work")
    started = here.beside(tmp_path / "job.yaml", *words, cwd=tmp_path / "work")
    started.until(lambda it: it.out.count("| up abracadabra") == 2, 40)
    assert started.out.count("| seen") == started.out.count("| refused") == 2
    text, host = as_the_engine_has_it(here)
    assert "abracadabra" not in text and "sleep" not in text
    assert text.count('"User": "12345:23456"') == 2
    assert started.stop(2, 40).code == 130
    assert (host["worker-0"]["Memory"], host["ps-0"]["Memory"]) == (512 << 20, 128 << 20)
    ours = host["ps-0"]
    assert ours["NanoCpus"] == 500_000_000
    assert ours["ShmSize"] == 32 << 20
    assert [(it["Name"], it["Soft"], it["Hard"]) for it in ours["Ulimits"]] == [("nofile", 1000, 2000)]
    # Engines before 23 leave out "CAP_".
    capabilities = [name.removeprefix("CAP_") for name in (*ours["CapAdd"], *ours["CapDrop"])]
    assert capabilities == ["SYS_NICE", "NET_RAW"]
    assert ours["Tmpfs"] == {"/scratch": "size=1m"}
    assert ours["ExtraHosts"] == ["data:10.0.0.7"]
    assert (ours["IpcMode"], ours["PidsLimit"]) == ("shareable", 500)
    assert ours["SecurityOpt"] == ["no-new-privileges"]
    assert ours["Devices"][0]["PathInContainer"] == "/dev/nothing"


ROLES = """\
command: [sh, -c, 'echo up in ${WHICH:-first}; exec sleep 600']
roles:
  worker:
    image: SECOND
    resources: {limits: {cpu: 500m, memory: 512Mi}}
  ps: {image: FIRST}
"""


def test_roles_with_images_and_limits_of_their_own(here: Docker, tmp_path: Path):
    """No `docker:`, no `--docker`: the roles say it all."""
    second = f"launch-test-second-{os.getpid()}"
    here.engine.docker("build", "-t", second, "-", stdin=f"FROM {BASE}\nENV WHICH=second\n".encode())
    try:
        (tmp_path / "job.yaml").write_text(ROLES.replace("SECOND", second).replace("FIRST", BASE))
        started = here.beside("job.yaml", "--memory", "700m")
        started.until(lambda it: it.out.count("| up in") == 2, 40)
        _, limits = as_the_engine_has_it(here)
        assert started.stop(2, 40).code == 130
    finally:
        here.engine.docker("rmi", "-f", second)
    assert "worker/0 | up in second" in started.out
    assert "ps/0     | up in first" in started.out
    assert {name: (it["Memory"], it["NanoCpus"]) for name, it in limits.items()} == {
        "worker-0": (512 << 20, 500_000_000),
        "ps-0": (700 << 20, 0),
    }
