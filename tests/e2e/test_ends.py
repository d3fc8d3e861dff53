"""How a job ends, wherever its tasks run: by itself, by a Ctrl-C or two, by the death of its launcher."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.backends import SOON, STAYS, WAITS, Backend, Docker, DockerOnHosts, Ssh, on
from tests.docker.conftest import alive
from tests.local.stops import SAVES, processes_of
from tests.seeing import kill


@pytest.mark.promise("exit codes, the same everywhere")
@pytest.mark.promise("one failure stops all at once; `--on-failure continue`")
@on("local", "ssh", "docker", "docker-ssh", "slurm", "kubernetes")
def test_the_exit_code_is_that_of_the_first_task_that_fails(backend: Backend):
    """As a shell shows it; the others are stopped."""
    script = "test $TASK_INDEX = 1 || exec sleep 300; kill -9 $$"
    ended = backend("--workers", "2", "--grace", "300", "--", "sh", "-c", script, code=137)
    run = backend.run
    assert run.states() == {"worker/0": "stopped", "worker/1": "failed"}
    assert [task["status"]["signal"] for task in run.report["tasks"]] == [signal.SIGTERM, signal.SIGKILL]
    assert [task["host"] for task in run.report["tasks"]] == [*backend.hosts]
    failure = run.report["failure"]
    assert (failure["task"], failure["reason"], run.report["exit_code"]) == ("worker/1", "signal", 137)
    assert "worker/1 failed" in ended.err and "SIGKILL" in ended.err


@on("ssh")
@pytest.mark.promise("exit codes, the same everywhere")
@pytest.mark.parametrize(("words", "code"), [(["no_such.py"], 127), (["--workdir", "/no/such", "true"], 126)])
def test_what_can_not_be_started(backend: Backend, words: list[str], code: int):
    assert backend("--workers", "2", *words).code == code


@pytest.mark.promise("Ctrl-C once, twice")
@on("local", "ssh", "docker", "docker-ssh", "slurm", "kubernetes")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c(backend: Backend, times: int):
    started = backend.up("--grace", "60", "--", *(WAITS if times == 1 else STAYS))
    started.send(signal.SIGINT)
    if times == 2:
        started.until(lambda it: "Ctrl-C" in it.err)
        time.sleep(0.3)  # sooner it would be an echo of the first
        started.send(signal.SIGINT)
    started.wait(40, code=130)
    assert set(backend.run.states().values()) <= {"stopped", "lost"}
    assert backend.run.report["failure"]["reason"] == "interrupted"


@on("docker", "kubernetes")
@pytest.mark.promise("a stop is one stop: no signal, `scancel` or closed pipe or terminal shortens it")
def test_sigterm_to_all_commands_of_a_launch(backend: Backend):
    """As a service manager sends it: the tasks keep their grace."""
    started = backend.up("--grace", "20", "--", "sh", "-c", SAVES, "sh", "4")
    pids = [*processes_of(started.pid)]
    assert len(pids) >= 3, "the launcher, and a client for each task"
    for pid in pids:
        kill(pid, signal.SIGTERM)
    ended = started.wait(60)
    assert (ended.code, ended.out.count("| saved")) == (143, 2), ended.err
    assert backend.run.report["failure"]["reason"] == "interrupted"


@pytest.mark.promise("launcher killed at any moment, with any child")
@pytest.mark.usefixtures("alone")
@on("ssh", "docker", "docker-ssh", "slurm", "kubernetes")
def test_the_launcher_is_killed(backend: Backend, tmp_path: Path):
    """Nothing is left of its tasks, nor of the code that it has copied."""
    (tmp_path / "code").mkdir()
    copied = ["--sync", f"{tmp_path}/code"] if isinstance(backend, Ssh) else []
    started = backend.up(*backend.brief, *copied, "--", *STAYS)
    started.kill()
    backend.empty()


@pytest.mark.usefixtures("alone")
@on("docker", "docker-ssh")
def test_kept_containers(backend: Docker | DockerOnHosts):
    """Until they are asked to be removed: other launches leave them there."""
    ended = backend("--keep", "--workers", "2", "--", "sh", "-c", "echo x >/tmp/found", code=0)
    job, hosts = backend.run.path.name, [*backend.options[:-2]]
    name = f"tf-launcher-{job}-{backend.hosts[0]}"
    assert (f"{name} on node1" if hosts else f"label=tf-launcher.job={job}") in ended.err
    assert "A /tmp/found" in backend.engine.docker("diff", name)
    assert alive(backend.engine, job) == []
    assert backend("true").code == 0
    assert f"would remove container {name}" in backend.beside("clean", *hosts, "--dry-run").wait(SOON).out
    cleaned = backend.beside("clean", *hosts).wait(SOON, code=0)
    assert f"removed container {name}" in cleaned.out
