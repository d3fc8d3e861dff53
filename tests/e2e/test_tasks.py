"""What tasks get and leave, wherever they run: variables, files, memory; and how they start again."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.backends import SOON, Backend, Ssh, on
from tests.conftest import Launch
from tests.seeing import soon


@pytest.mark.promise("`-x NAME`, `PRE*`, `NAME=VALUE`; no secret on a command line")
@on("ssh", "docker", "docker-ssh", "slurm", "kubernetes")
def test_nothing_of_the_users_is_seen_beside_a_task(backend: Backend):
    """Neither on a command line, nor at an engine or a cluster."""
    script = ["sh", "-c", "echo up $TOKEN $COPIED; exec sleep 300", "own word"]
    started = backend.up("-x", "TOKEN=s3cret", "-x", "COPIED", "--", *script, env={"COPIED": "c0pied"})
    assert started.out.count("| up s3cret c0pied") == 2
    # The shell, of which the user's words are the argv, may not have called exec yet.
    soon(lambda: "".join(backend.command_lines()).count("sleep 300") == 2)
    assert not re.search("s3cret|c0pied|own word|echo up", "".join(backend.command_lines()))
    assert started.stop(signal.SIGINT, SOON).code == 130


@pytest.mark.promise("collect from hosts; output folders")
@on("ssh", "docker-ssh", "kubernetes")
def test_files_travel(backend: Backend, tmp_path: Path):
    """The code there, and back what tasks make in its folder and in folders of their own."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import os, pathlib\nindex = os.environ['TASK_INDEX']\n"
        "for path in 'by-' + index, os.environ['OUTPUT_DIR'] + '/own': pathlib.Path(path).write_text(index)\n"
    )
    words = ["--sync", ".", "--collect", "by-{task_index}:got", "--output-dirs", "train.py"]
    backend("--workers", "2", *words, cwd=code, code=0)
    for index in "01":
        assert (code / f"got/worker-{index}/by-{index}").read_text() == index
        assert (backend.run.path / f"output/worker-{index}/own").read_text() == index


@pytest.mark.promise("`launch restart`: same address, not counted; slow tasks, jobs that end")
@pytest.mark.promise("`launch ps RUN`: tasks, memory on all hosts")
@on("ssh", "docker", "docker-ssh")
def test_the_tasks_of_a_run_and_one_that_starts_again(backend: Backend):
    """On its host and at its address; memory is measured there."""
    code = "import time; big = b'x' * (60 << 20); print('up', flush=True); time.sleep(300)"
    started = backend.up("--", "python3", "-c", code)

    def measured() -> list[dict[str, object]] | None:
        """Return the tasks when all are measured, which may have been before one of them used its memory."""
        found: list[dict[str, object]] = json.loads(backend.beside("ps", "latest", "--json").wait().out)
        return found if all(60 << 20 < int(str(task["memory"] or 0)) < 120 << 20 for task in found) else None

    first, second = soon(measured)
    assert [(task["host"], task["last_line"]) for task in (first, second)] == [
        (host, "up") for host in backend.hosts
    ]
    backend.beside("restart", "latest", "worker/1").wait(code=0)
    started.up(3)
    same, again = soon(measured)
    assert (same["attempt"], same["pid"]) == (1, first["pid"])
    assert (again["attempt"], again["address"]) == (2, second["address"]) and again["pid"] != second["pid"]
    assert again["host"] == second["host"]
    if isinstance(backend, Ssh):  # a host that does not answer delays the others by 2 s only
        backend.machines[1].cut()
        # What was measured a few seconds ago is still shown.
        soon(lambda: re.search(r" - .*2  up$", backend.beside("ps", "latest").wait().out))
        shown = backend.beside("ps", "latest").wait().out
        backend.machines[1].restore()
        assert re.search(r" (6|7|8)\d MB .*1  up$", shown, re.M), shown
    assert started.stop(signal.SIGINT, SOON).code == 130


@pytest.mark.promise("out of memory")
@on("docker", "kubernetes")
def test_a_task_that_exceeds_its_memory(backend: Backend):
    """The message names the limit and the option."""
    code = "import os, time\nif os.environ['TASK_INDEX'] == '1': b = bytearray(500 << 20)\ntime.sleep(60)"
    # With limits of both a kubelet makes no process of a pod more likely to be killed.
    limits = ["--memory", "64m", "--cpus", "0.5"]
    ended = backend("--workers", "2", *limits, "--", "python3", "-c", code, code=137)
    failure = backend.run.report["failure"]
    assert (failure["task"], failure["reason"]) == ("worker/1", "out of memory")
    assert "64 MiB" in failure["text"] and "--memory" in failure["hint"]
    assert "out of memory" in ended.err


@pytest.mark.promise("`--dry-run` starts nothing and can be pasted")
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("--docker no-such-image", ["worker-1", "python3"]),
        (
            "--kubernetes reg/tf:1 --memory 2g --gpus 1",
            [
                "# pods of the image reg/tf:1, memory 2048Mi, nvidia.com/gpu 1: worker-0, worker-1",
                "2048Mi: ps-0",
            ],
        ),
        ("--hosts node1,node2", ["on node1", "on node2"]),
    ],
    ids=["docker", "kubernetes", "ssh"],
)
def test_a_dry_run_connects_to_nothing(launch: Launch, tmp_path: Path, options: str, shown: list[str]):
    nowhere = {"DOCKER_HOST": "unix:///no/engine", "KUBECONFIG": "/nosuch"}
    words = f"{options} --ps 1 --workers 2 --dry-run train.py"
    ended = launch.here(*words.split(), env=nowhere, cwd=tmp_path, code=0)
    assert [text for text in shown if text not in ended.out] == []
