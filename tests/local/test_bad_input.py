"""Bad input: exit code 2, every fault at once, and nothing was started."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended, Launch


def _refused(launch: Launch, *words: str | Path, code: int = 2, **settings: Any) -> Ended:
    runs = [*launch.state.glob("*")]
    ended = launch.here(*words, **settings)
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert "Traceback" not in ended.err
    assert [*launch.state.glob("*")] == runs, "there is no folder of a run that never began"
    return ended


@pytest.mark.promise("bad input: file and line, all faults, exit code 2, nothing started")
def test_all_faults_at_once(launch: Launch):
    times = ["--grace", "-1", "--timeout", "x"]
    places = ["--hosts", "localhost:none", "--report", "/no/such/folder/report"]
    ended = _refused(launch, "-x", "NO_SUCH_A", "-x", "NO_SUCH_B", *times, *places, "--", "echo", "{ps_host}")
    for word in ("NO_SUCH_A", "NO_SUCH_B", "--grace", "--timeout", "none", "--report", "{ps_hosts}"):
        assert word in ended.err
    assert all(line.startswith("launch: ") for line in ended.err.splitlines())


def test_a_secret_in_a_fault_stays_one(launch: Launch):
    assert "s3cret" not in _refused(launch, "-x", "TASK_INDEX=s3cret", "-x", "A B=s3cret", "true").err


@pytest.mark.promise("bad input: file and line, all faults, exit code 2, nothing started")
def test_all_faults_of_a_hostfile(launch: Launch, tmp_path: Path):
    hosts = tmp_path / "lab.yaml"
    hosts.write_text("hosts:\n  - name: localhost\n    slotz: 2\n  - name: 127.0.0.2\n    slots: many\n")
    ended = _refused(launch, "--hosts", hosts, "true")
    assert f"{hosts}:3: " in ended.err and "slots" in ended.err
    assert f"{hosts}:5: " in ended.err and "many" in ended.err


@pytest.mark.parametrize("data", [b"", b"\x00\xff\xfe", b"- 1\n", b"a: [\n", None])
def test_files_that_are_no_job_or_hostfile(launch: Launch, tmp_path: Path, data: bytes | None):
    path = tmp_path / "a.yaml"
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    assert str(path) in _refused(launch, path).err
    assert str(path) in _refused(launch, "--hosts", path, "true").err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pipe.yaml", None, "cannot read the job file: it is not a regular file"),
        ("large.yaml", "#" * (1 << 20) + "#", "cannot read the job file: it is larger than 1024 KiB"),
        ("keys.yaml", "".join(f"key{n}: 1\n" for n in range(80_000)), "keys.yaml: and 79900 more faults"),
        ("launch.toml", "x = " + "[" * 100_000, "launch.toml: nested too deep"),
    ],
)
def test_files_that_would_take_long(
    launch: Launch, tmp_path: Path, name: str, content: str | None, message: str
):
    if content is None:
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    ended = _refused(launch, "true" if name == "launch.toml" else name, cwd=tmp_path)
    assert message in ended.err
    assert len(ended.stderr) < 40_000


def test_a_cluster_that_is_too_long_for_an_environment(launch: Launch):
    err = _refused(launch, "--workers", "9000", "true").err
    assert "in a job of 9,000 tasks; expected at most 131,072, the limit of Linux" in err


def test_gpus_that_are_hidden(launch: Launch):
    err = _refused(launch, "--gpus", "1", "true", env={"CUDA_VISIBLE_DEVICES": "-1"}).err
    assert "localhost has 0 left" in err
    assert "for this machine by CUDA_VISIBLE_DEVICES=0,1" in err


def test_this_machine_by_its_own_name(launch: Launch):
    launch("--hosts", f"{os.uname().nodename}:2", "--workers", "2", "true", code=0)


def test_options_after_a_job_file(launch: Launch, tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text("roles: {worker: 2}\ncommand: [sh, -c, 'echo one of {num_workers}']\n")
    assert re.search(r"chief +0 +succeeded", launch(job, "--chief", "--workers", "1").out)
    ended = launch(job, "--workers", "3", "--quiet")
    assert (ended.code, ended.out) == (0, "")
    job.write_text("roles: {worker: {count: 2, command: [true]}}\n")
    err = _refused(launch, job, "--ps", "2", "--evaluator").err
    assert 'role "ps"' in err and 'role "evaluator"' in err


# ---------------------------------------------------------------------- programs


def _not_run(launch: Launch, code: int, *words: str | Path, lines: int = 1, **settings: Any) -> str:
    ended = _refused(launch, *words, code=code, **settings)
    assert len(ended.err.splitlines()) == lines, ended.err
    return ended.err


def test_programs_that_cannot_be_run(launch: Launch, tmp_path: Path):
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    assert "chmod +x" in _not_run(launch, 126, tmp_path / "plain")
    assert "is a folder" in _not_run(launch, 126, "--", tmp_path)
    assert "not executable" in _not_run(launch, 126, "-x", f"PATH={tmp_path}", "plain")
    assert "write ./ before it" in _not_run(launch, 127, "--workdir", tmp_path, "plain")
    assert "--python: " in _not_run(launch, 126, "--python", tmp_path / "plain", "-m", "x")


def test_programs_are_relative_to_the_working_folder(launch: Launch, tmp_path: Path):
    program = tmp_path / "bin" / "hello"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    for words in (["./bin/hello"], ["-x", "PATH=bin:/usr/bin:/bin", "hello"]):
        ended = launch("--workdir", tmp_path, *words)
        assert ended.code == 0 and "hello" in ended.out, ended.err


def test_all_programs_that_are_not_there(launch: Launch, tmp_path: Path):
    both = _not_run(launch, 127, "--python", tmp_path / "no" / "python", "nothing.py", lines=2)
    assert "--python: program not found: " in both and "program not found: 'nothing.py'" in both


def test_a_program_that_lies_beside_the_job_file(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "sub").mkdir()
    job, words = tmp_path / "job.yaml", "command: [train.py]\nroles: {worker: 1}\n"
    job.write_text(words)
    beside = "it is in the folder of the job file: `workdir: .` in that file makes tasks run there\n"
    assert _not_run(launch, 127, job, cwd=tmp_path / "sub").endswith(beside)
    job.write_text(f"{words}workdir: .\n")
    assert "trained" in launch(job, cwd=tmp_path / "sub").out
    job.write_text("command: [nothing.py]\nroles: {worker: 1}\n")
    assert "beside" not in launch(job).err


def test_a_run_dir_of_a_job_file_serves_one_run(launch: Launch, tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text("roles: {worker: 1}\ncommand: 'true'\nrun_dir: run\n")
    assert launch(job).code == 0
    err = _refused(launch, job).err
    assert err.startswith(f"launch: {job}:3: ") and "give this run another with --run-dir" in err
    assert "--run-dir: " in _refused(launch, job, "--run-dir", tmp_path / "run").err
    assert launch(job, "--run-dir", tmp_path / "other").code == 0


@pytest.mark.promise("a missing hostfile is an error")
def test_hosts_that_are_not_there(launch: Launch):
    ended = launch("--hosts", "nohost.invalid", "echo", "ran")
    assert (ended.code, "ran" in ended.out) == (125, False), "it does not run here instead"
    unknown, hint = ended.said
    assert unknown.startswith("launch: nohost.invalid: ") and "was not found" in unknown
    assert hint == "launch: --hosts nohost.invalid: there is no file of that name either"


def test_a_working_folder_that_can_not_be_entered(launch: Launch, tmp_path: Path):
    """Root may enter all, so without its capabilities."""
    (tmp_path / "closed").mkdir(mode=0o600)
    (tmp_path / "closed").chmod(0o600)
    command = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "launcher")
    ended = launch.start("--workdir", tmp_path / "closed", "true", command=command).wait(20, code=2)
    assert f"the working folder '{tmp_path}/closed' cannot be entered: permission denied" in ended.err


@pytest.mark.promise("job files by their endings; one of another name is told so")
@pytest.mark.parametrize("name", ["job.conf", "./job.conf", "folder/job"])
@pytest.mark.parametrize(
    "text",
    [
        "# a job\ncommand: echo\nroles: {worker: 1}\n",
        "---\napiVersion: kubeflow.org/v1\nkind: TFJob\n",
        '{"command": "echo", "roles": {"worker": 1}}',
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_job_file_of_another_name(launch: Launch, tmp_path: Path, name: str, text: str, mode: int):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    ended = _refused(launch, name, cwd=tmp_path)
    expected = "this is a job file; expected a name that ends with one of .yaml, .yml, .json"
    assert ended.err == f"launch: {name}: {expected}\n"
