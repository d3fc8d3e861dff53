"""What goes wrong with containers, and the messages."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import tarfile
from pathlib import Path

import pytest

from tests.backends import Docker
from tests.conftest import COMMAND, Launch, executable
from tests.docker.engine import BASE

#: The beginning of an executable of another kind of machine: 64-bit, little-endian, SPARC.
FOREIGN = b"\x7fELF\2\1\1".ljust(16, b"\0") + bytes([2, 0, 43, 0, 1, 0, 0, 0]).ljust(48, b"\0")


def test_a_container_that_is_stopped(here: Docker):
    """`docker stop` is an orderly end for the tasks in it, and need not wait for its SIGKILL."""
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    started = here.up("--", "sh", "-c", script)
    here.engine.docker("stop", "--time", "600", f"tf-launcher-{here.run.path.name}-worker-1", timeout=60)
    assert "worker-1 is lost: the agent exited: it was sent SIGTERM" in started.wait(30, code=125).err
    assert b"bye" in here.run.log("worker/0")


@pytest.mark.parametrize(
    ("program", "content", "said"),
    [("motd", b"nothing here", "has no python3"), ("python3", FOREIGN, "is not for this kind of machine (")],
    ids=["no Python", "of another machine"],
)
def test_an_image_without_a_python_for_it(here: Docker, program: str, content: bytes, said: str):
    name = f"launch-test-{program}-{os.getpid()}"
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as archive:
        member = tarfile.TarInfo(f"bin/{program}")
        member.size, member.mode = len(content), 0o755
        archive.addfile(member, io.BytesIO(content))
    here.engine.docker("import", "--change", "ENV PATH=/bin", "-", name, stdin=files.getvalue())
    try:
        ended = here.beside("--docker", name, "--workers", "3", "true").wait(60, code=125)
    finally:
        here.engine.docker("rmi", "-f", name)
    assert ended.err.count(f"the image {name} {said}") == 1
    assert "worker-0, worker-1, worker-2:" in ended.err


def test_a_python_that_is_too_old(here: Docker, tmp_path: Path):
    old = tmp_path / "old-python"
    executable(old, "#!/bin/sh\nprintf '\\n<tf-launcher program: too old 3.6.9>\\n'; exit 1\n")
    ended = here("--python", str(old), "true", code=125)
    assert f"of the image {BASE} is Python 3.6.9, which is too old" in ended.err


@pytest.mark.promise("a launch that ends after its run has a folder leaves a report there")
def test_something_else_than_a_python(here: Docker, launch: Launch, tmp_path: Path):
    """The run has a folder by then: it has ended, with a report like any other."""
    report = tmp_path / "report.json"
    ended = here("--python", "/bin/true", "--report", report, "true", code=125)
    reason = f"/bin/true of the image {BASE} does not run the agent, and exited "
    assert reason in ended.err
    run = here.run
    assert json.loads(report.read_text()) == run.report
    assert (run.report["job"], run.report["exit_code"]) == (run.path.name, 125)
    assert reason in run.report["failure"]["text"]
    assert [task["reason"] for task in run.report["tasks"]] == ["never started"]
    assert "failed, exit code 125" in launch.here("ps", run.path.name).out
    assert launch.here("logs", run.path.name).code == 0


def test_gpus_that_the_engine_can_not_give(here: Docker):
    """The machine says that it has one (the user does), and its engine knows nothing of it."""
    ended = here("--gpus", "1", "true", env={"CUDA_VISIBLE_DEVICES": "0"}, code=125)
    assert "the engine cannot give GPUs to containers: install the NVIDIA Container Toolkit" in ended.err
    ended = here("--gpus", "1", "true", env={"CUDA_VISIBLE_DEVICES": ""}, code=2)
    assert "the tasks ask for 1 GPU, this machine has 0" in ended.err


def test_a_mount_that_is_not_there(here: Docker, tmp_path: Path):
    ended = here("--mount", "no/such", "true", code=125)
    assert f"the engine's machine has no {tmp_path}/no/such to mount" in ended.err


def test_an_image_that_can_not_be_pulled(here: Docker):
    ended = here.beside("--docker", "127.0.0.1:1/none:1", "true").wait(60, code=125)
    assert "launch: pulling the image 127.0.0.1:1/none:1" in ended.err
    assert "launch: the image 127.0.0.1:1/none:1 cannot be pulled: " in ended.err


SELECT = "DOCKER_HOST and `docker context use` select one (Cannot connect to the Docker daemon at unix:///"


def test_no_engine(launch: Launch, tmp_path: Path):
    for host, printed in {
        f"unix://{tmp_path}/none": f"no Docker engine responds: is it running? {SELECT}",
        "tcp://127.0.0.1:1": "no Docker engine responds: is it running?",
        "npipe:////./pipe/x": "the Docker engine cannot be used: ",
    }.items():
        ended = launch("--docker", "x", "true", env={"DOCKER_HOST": host}, code=125)
        assert printed in ended.err
        assert len(ended.said) == 1


def test_no_permission(launch: Launch, tmp_path: Path):
    """Root has no access either, without the capabilities that pass over the mode of a file."""
    drop = "-dac_override,-dac_read_search"
    without = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"] if os.getuid() == 0 else []
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(f"{tmp_path}/s")
        (tmp_path / "s").chmod(0)
        command = [*without, *COMMAND]
        env = {"DOCKER_HOST": f"unix://{tmp_path}/s"}
        ended = launch.start("--docker", "x", "true", env=env, command=command).wait(30)
    assert ended.code == 125
    assert "this user may not use the Docker engine: " in ended.err


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ("--memory 64m", "about containers; expected --docker IMAGE or --kubernetes IMAGE, too"),
        ("--keep", "the option is about containers; expected --docker IMAGE, too"),
        ("--docker x --memory boss=64m", "there is no role 'boss'"),
        ("--docker x --memory ps=2g,4g", "--memory: 'ps=2g,4g'; expected one size"),
        ("--docker x --cpus 0", "expected a number of CPUs"),
        ("--docker x --mount :/a", "this is not a mount"),
        ("--docker x --mount /a:b:c:d", "this is not a mount"),
        ("--docker x --sync .", "the option is about other machines, and none is named"),
        ("--docker x --no-mount --read-only", "--read-only: the working folder is not mounted"),
        ("--docker x --workdir /", "the root folder cannot be mounted"),
    ],
)
def test_bad_input(launch: Launch, args: str, why: str):
    ended = launch.here(*args.split(), "true", env={"DOCKER_HOST": "unix:///no/engine"}, code=2)
    assert why in ended.err
    assert ended.err.count("\n") == 1, "and nothing else is wrong"


def test_roles_whose_containers_would_have_one_name(launch: Launch, tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text("roles:\n  a_b: {command: [echo, x]}\n  a-b: {command: [echo, x]}\n")
    ended = launch.here("--docker", "x", job, env={"DOCKER_HOST": "unix:///no/engine"}, code=2)
    assert "role 'a-b': its containers would have the same names as those of another role" in ended.err


def test_a_program_that_is_not_mounted(here: Docker, tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "program.py").touch()
    ended = here(tmp_path / "program.py", cwd=tmp_path / "work", code=127)
    assert f"program not found: '{tmp_path}/program.py'\n" in ended.err
    assert "  hint: a container sees only the folder that the tasks run in" in ended.err
    ended = here("--", "cat", tmp_path / "program.py", cwd=tmp_path / "work", code=1)
    assert "  hint: a container sees only the folder that the tasks run in; --mount adds others" in ended.err


def test_a_tfjob_sees_no_folder_of_this_machine(here: Docker, tmp_path: Path):
    """The options of the hint bring its program into the containers."""
    (tmp_path / "program.py").write_text("print('ran')\n")
    container = "{name: tensorflow, image: x, command: [python3, program.py]}"
    (tmp_path / "tfjob.yaml").write_text(
        "apiVersion: kubeflow.org/v1\nkind: TFJob\nspec:\n  tfReplicaSpecs:\n"
        f"    Worker: {{replicas: 2, template: {{spec: {{containers: [{container}]}}}}}}\n"
    )
    ended = here("tfjob.yaml", cwd=tmp_path)
    (hint,) = re.findall(r"  hint: .*`(--mount .*)`", ended.err)
    assert ended.code not in (0, 125)
    assert "worker/0 | ran" in here(*hint.split(), "tfjob.yaml", cwd=tmp_path, code=0).out
