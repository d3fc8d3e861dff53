"""``--tensorboard``: TensorBoard beside the tasks, and where its URL is told."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import pytest

from launcher.agent.ports import first_free
from launcher.launch.tensorboard import PREFERRED_PORTS
from tests.conftest import Launch, executable
from tests.local.board import FOLDER, page_of, url_of, waits_for
from tests.seeing import last_run

#: A Python that finds our stub as ``tensorboard``.
STUB = {"PYTHONPATH": str(FOLDER)}


def test_its_url_is_told_everywhere(launch: Launch, tmp_path: Path):
    done = waits_for(tmp_path / "done")
    started = launch.start("--output-dirs", "--tensorboard", "--", *done, env=STUB)
    url = url_of(started)
    assert re.fullmatch(r"http://localhost:\d+/", url)
    (output,) = launch.state.glob("*/output")
    assert page_of(url) == f"<title>TensorBoard</title>{output.resolve()}"
    (record,) = json.loads(launch.here("ps", "--json").out)
    assert record["tensorboard"] == url
    assert re.search(rf"^RUN .* TENSORBOARD\n.* {url}$", launch.here("ps").out, re.MULTILINE)
    assert launch.here("ps", "latest").out.endswith(f"\nTensorBoard: {url}\n")
    (tmp_path / "done").touch()
    started.wait(code=0)
    run = last_run(launch)
    assert run.report["tensorboard"] == url
    assert run.states() == {"worker/0": "succeeded", "tensorboard/0": "stopped"}


def test_the_port_is_taken(launch: Launch, tmp_path: Path):
    """Ports below it may be those of other tests."""
    folder = tmp_path / "logs"
    server = first_free(PREFERRED_PORTS, lambda port: socket.create_server(("127.0.0.1", port)))
    assert server is not None
    with server:
        started = launch.start(f"--tensorboard={folder}", "--", *waits_for(tmp_path / "done"), env=STUB)
        url = url_of(started)
        assert f":{server.getsockname()[1]}/" not in url
        assert str(folder) in page_of(url)
        (tmp_path / "done").touch()
        assert started.wait().code == 0


def test_a_python_without_tensorboard(launch: Launch, tmp_path: Path):
    python = executable(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    done = tmp_path / "done"
    started = launch.start("--python", python, "--tensorboard", "--", *waits_for(done), cwd=tmp_path)
    started.until(lambda it: "pip install tensorboard\n" in it.err and "it is a sidecar" in it.err)
    done.touch()
    ended = started.wait(code=0)
    assert ended.err.count("pip install tensorboard") == 1


def test_the_job_file(launch: Launch, tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text("tensorboard: logs\nflags: true\nroles: {ps: 1, worker: {count: 1}}\ncommand: 'true'\n")
    assert " --logdir logs --host 127.0.0.1 --port " in launch.here(job, "--dry-run").out
    assert "--logdir other " in launch.here(job, "--tensorboard=other", "--dry-run").out
    job.write_text("tensorboard: false\nroles: {worker: 1}\ncommand: 'true'\n")
    assert "logdir" not in launch.here(job, "--dry-run").out
    job.write_text("roles: {worker: 1, tensorboard: 1}\ncommand: 'true'\n")
    ended = launch.here(job, "--tensorboard", code=2)
    fault = '--tensorboard: the job has a role "tensorboard" of its own; expected one of them'
    assert f"launch: {fault}: remove the role ({job}:1)\n" == ended.err


def test_gpus_that_nvidia_smi_lists(launch: Launch, tmp_path: Path):
    if Path("/proc/driver/nvidia/gpus").exists():
        pytest.skip("this machine has GPUs of its own")
    command = tmp_path / "bin" / "nvidia-smi"
    executable(command, '#!/bin/sh\ntest "$2" = --query-gpu=index && printf "0\\n1\\n"\n')
    env = {"PATH": f"{command.parent}:/usr/bin:/bin"}
    assert "localhost  127.0.0.1  0,1\n" in launch("hosts", env=env).out
    show = ["--workers", "2", "--gpus", "1", "--", "sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES"]
    ended = launch(*show, env=env)
    assert "worker/0 | sees 0\n" in ended.out and "worker/1 | sees 1\n" in ended.out
    command.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    ended = launch(*show, env=env, code=2)
    assert "localhost has no known GPU" in ended.err and "CUDA_VISIBLE_DEVICES" in ended.err
