"""A table of mistakes: each is answered with what to type instead, and nothing is started."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.cli import foreign_options
from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS
from launcher.config import table
from launcher.config.hostfile import HOST, HOSTFILE
from launcher.config.jobfile import ROLE
from tests.conftest import Launch
from tests.unit.config.answers import answered

#: What is typed after ``launch``, as in a shell: each is refused with exit code 2.
COMMAND_LINES = r"""
# Options of other launchers.
-n 4 train.py
--np=4 train.py
--num_workers 3 train.py
--nproc-per-node 2 train.py
--nnodes=2 --nproc_per_node=1 train.py
-e A=secret train.py
--env A=secret train.py
-env A 1 train.py
--hostfile lab train.py
-H node1:2 train.py
--max-restarts 3 train.py
--gpus-per-task 1 train.py
--image tf:1 train.py
--volume /data:/data train.py
--log-dir logs train.py
--name mnist train.py
--resume train.py
--rm train.py
-it train.py
--oversubscribe train.py
--rdzv_endpoint=n1:1 train.py
--master-addr n1 train.py
--identity key train.py
--mca btl tcp train.py
-f job.yaml
# Options and commands of Slurm.
-N 4 train.py
--nodes=4 --workers 8 train.py
--slurm --nodes=four train.py
--slurm -n 8 train.py
--slurm --ntasks=8 train.py
--slurm --ntasks-per-node=4 train.py
--gres=gpu:2 train.py
--slurm -t 10 train.py
--slurm -p gpu train.py
--slurm -A lab train.py
--slurm --mem=8G train.py
--slurm --exclusive train.py
--slurm --array=1-4 train.py
--slurm -n4 train.py
--slurm --wrap 'python train.py'
--slurm --slurm-options qos=x train.py
--slurm --no-slurm train.py
--slurm --slurm-options short true
--slurm -N 3 --workdir /nosuch true
--slurm -N 0 true
--slurm --hosts a true
--slurm --docker x true
# Options of Kubernetes.
--kubernetes x --namespace No true
--kubernetes x --hosts a true
--kubernetes x --docker y true
--kubernetes x --user me true
--kubernetes x --mount /data true
--docker x --memory 2g,4g true
--kubernetes x --memory chief=1g true
--start-timeout 5m true
srun -n 4 train.py
sbatch job.sh
scancel 12
squeue
# Commands of other launchers.
init
apply
status
submit train.py
top
cp worker/0:model .
help nosuch
# Programs and job files.
job.yml
--docker job.yaml
--docker JOB.JSON
--hosts no.json true
--hosts job.yaml true
--hosts tfjob.yaml true
job.yaml extra
job.yaml -- extra
job.yaml --wrokers 3
-m
# Descriptors of a shell: <(...).
train.py --config /dev/fd/63
-x C=/dev/fd/63 -- sh train.py --c=/proc/self/fd/11
-x C=/dev/fd/63 true
/dev/fd/63
export slurm -m x @/dev/fd/12
# Runs.
logs nosuch
stop
ps latest2
restart
"""
#: Misspelt options and bad values.
MISSPELT = r"""
--worker 2 train.py
-workers 2 train.py
-hosts a train.py
-chief train.py
--wrokers=2 train.py
--output_dirs train.py
--time 5 train.py
--zzz train.py
clean - -=
--tensorboard logs train.py
--tensorboard folder.py/logs --ps 1 train.py
--hosts a --tensorboard logs -- train.py
job.yaml --tensorboard logs --dry-run
ps --al
--workers=two train.py
--ps train.py --epochs 3
--workers
--chief=1 train.py
--timeout 5x train.py
--drain soon train.py
--on-failure ignore train.py
-x KEY = VALUE train.py
-x 'A B=1' train.py
--hosts node1 node2 train.py
--hosts 'node1 node2' train.py
--hosts nofile.yaml train.py
--hosts lab.yml train.py
--hosts train.py
--hosts node1:x train.py
--hosts node1:2222,node2:2222 train.py
check node1:2222
hosts me@[::1]:22
--venv '' train.py
--venv .lab train.py
--venv -lab train.py
--venv 'a b' --hosts node1 train.py
--venv lab --python python3 train.py
--venv lab --docker tf:1 train.py
--docker train.py --epochs 3
--report no/report.json train.py
--run-dir used train.py
--show wroker train.py
--ps 1 --workers 1 --done-when cheif train.py
--sync . train.py
--no-chek true
completion bash -
--hosts a --hosts b --hosts c true
hosts no/such/thing
--no-check --lease 30 true
--python '' true
--workdir '' true
--workdir /no/such true
--tensorboard '' true
--preload 'numpy,train.py x' true
-x =value true
-x TF_CONFIG={} true
-x OUTPUT_DIR=/x --output-dirs true
--show '' true
--hosts '' true
--hosts localhost:2 --workers 3 true
--run-dir '' true
--tmux --json true
--workers two -N 0 --grace soon --env A=secret --hosts a --hosts b --memory ps=x --pull rarely true
"""
LONG_FOLDER, LONG_NAME = "a/" * 3000, "a" * 65
ODD_COMMAND_LINES = [
    "", f"--run-dir {LONG_FOLDER} true", f"--venv {LONG_NAME} train.py", "'--wor\nkers' 2 true"
]  # fmt: skip

#: Programs that are not there (127), or can't be run (126).
NOT_FOUND = """
trian.py
./trian.py
/no/such/train.py
~/nosuch.py
'train.py --epochs 3'
'python3 train.py'
log
--tensorboard nosuchprog
--chief 2 train.py
--python no-python -m x
--venv lab true
--dry-run --venv no/lab -m x
-x PATH=/nowhere sh
--slurm -N 3 nosuch.py
--slurm -N 3 --python /nosuch/python train.py
"""
NOT_RUNNABLE = "folder.py"

START = "command: train.py\nroles: {worker: 2}\n"
#: A job file, and the line of its fault.
JOB_FILES = {
    "command: train.py\nworker: 2": "2",
    "command: train.py\nrole: {worker: 2}": "2",
    "roles: {worker: 2}\ncmd: train.py": "2",
    "command: train.py\nroles: {worker: {replicas: 2}}": "2",
    "command: train.py\nroles:\n  worker: {image: tf}\n  ps: 1": "4",
    "command: train.py\nhosts: [node1]\nroles:\n  worker: {image: tf:2}\n  ps: {image: tf:1}": "2",
    START + "docker: {image: tf, no_mount: true, read_only: true}": "3",
    START + "docker: {keep: true}": "2",
    "command: train.py\nroles: {worker: {resources: {limits: {memory: 1Gi}}}}": "2",
    "command: train.py\nroles: {worker: {timeout: 5}}": "2",
    "command: train.py\nroles: {worker:2}": "2",
    "command: train.py\nroles:\n  worker:2": "3",
    "command: train.py\nroles:\nworker: 2": "2 3",
    START + "venv: -lab": "3",
    START + "venv: lab\npython: /usr/bin/python3": "3",
    START + "done-when: worker": "3",
    START + "done_when: chef": "3",
    "command: [train.py, /dev/fd/3]\nroles: {worker: 1}": "1",
    START + "image: tf": "3",
    START + "retries: 3": "3",
    START + "environment: {A: 1}": "3",
    START + "args: [x]": "3",
    START + "name: mnist": "3",
    START + "docker: {image: tf, volumes: [a]}": "3",
    START + "hosts: ['n[1-2]:2222']": "3",
    START + "hosts: node1:2222": "3",
    START + "hosts: nofile.yaml": "3",
    # All faults at once, where they are.
    "roles:\n  worker:\n    count: -2\n    command: [true]\n  ps: {conut: 1, command: x}\ngrase: 3": "3 5 6",
    "roles: {worker: 1}\ncomand: [true]\nhosts: lab2.yaml": "2 3",
    "roles: {worker: 2}\ncommand: 'echo {ps_host}'": "2",
    START + "workdir: gone": "3",
}
#: Job files whose programs are not there, or can't be run, and the lines of those.
NO_PROGRAMS = {
    "roles: {worker: 2}\ncommand: trian.py": "2",
    "roles:\n  worker: 2\n  ps: {count: 1, command: [no.py]}\ncommand: no-such-program": "4 3",
    "command: [no.py]\nroles:\n  chief: 1\n  ps: {command: [serve.py]}\n  odd: {command: [./plain]}": "1 4 5",
}

#: Hostfiles, by name, and the lines of their faults.
HOSTFILES = {
    ("lab", "node1 slots 2"): "1",
    ("lab", "node1,node2"): "1",
    ("lab", "- node1"): "1",
    ("lab", "[gpu]\nnode1 ansible_host=n"): "1",
    ("lab", "node1 ansible_host=10.0.0.5"): "1",
    ("h.yaml", "hosts:\n- {name: node1, ip: 10.0.0.5}"): "2",
    ("lab", "Host node1\n"): "1",
    ("lab", "ssh://node1:22"): "1",
    ("lab", "node1 identity_file=key"): "1",
    ("h.yaml", "- node1"): "1",
    ("h.yaml", "nodes: [node1]"): "1",
    ("h.yaml", "hosts:\n- hostname: node1"): "2",
    ("h.yaml", "hosts:\n- node1 slots=2"): "2",
}

#: Options that answers may name: those of all commands.
OPTIONS = {
    name
    for command in COMMANDS
    for action in command_parser(command)._actions
    for name in action.option_strings
    if action.dest != "refused"
}
KEYS = {*(row.key for row in table.ROWS), *ROLE, *HOST, *HOSTFILE, "docker", "mounts", "worker"}


#: Runs a command line, checks the exit code, and returns the command line and the answer.
Refused = Callable[..., str]


def furnish(folder: Path) -> None:
    """A program, a job file and a hostfile."""
    (folder / "train.py").touch(mode=0o755)
    (folder / "train.py").write_text("#!/usr/bin/env python3\n")
    (folder / "job.yaml").write_text(START)
    (folder / "plain").touch()
    (folder / "lab.yaml").write_text("hosts: [localhost]\n")
    (folder / "tfjob.yaml").write_text("apiVersion: v1\nkind: TFJob\n")
    (folder / "used").mkdir()
    (folder / "used" / "report.json").touch()
    (folder / "folder.py").mkdir()


@pytest.fixture
def refused(launch: Launch, tmp_path: Path) -> Refused:
    """Runs a command line in a folder with a program, a job file and a hostfile."""
    furnish(tmp_path)

    def run(words: str, code: int = 2) -> str:
        ended = launch.here(*shlex.split(words), cwd=tmp_path)
        assert (ended.code, ended.out, "Traceback" in ended.err) == (code, "", False), ended.err
        assert not [*launch.state.glob("*")], "something was started"
        _check_suggestions(ended.err)
        return answered(words, ended.err.replace(str(tmp_path), "/work").splitlines())

    return run


def _check_suggestions(text: str) -> None:
    """All options and keys that an answer suggests exist."""
    for suggested in re.findall(r"(?:did you mean|are|is|with|expected|`launch) (--?[a-z][a-z-]*)", text):
        assert suggested in OPTIONS, suggested
    for suggested in re.findall(r'unknown key "[^"]*"; (?:did you mean|expected) "(\w+)"', text):
        assert suggested in KEYS, suggested
    for suggested in re.findall(r"`launch ([a-z]+)`", text):
        assert suggested in COMMANDS, suggested


def listed(text: str) -> list[str]:
    """Return the command lines of a list."""
    return [line for line in text.strip().splitlines() if not line.startswith("# ")]


def test_command_lines(refused: Refused, snapshot: SnapshotAssertion):
    answers = [refused(words) for words in [*ODD_COMMAND_LINES, *listed(COMMAND_LINES), *listed(MISSPELT)]]
    assert "\n".join(answers) == snapshot


def test_programs(refused: Refused, snapshot: SnapshotAssertion):
    answers = [refused(words, 127) for words in listed(NOT_FOUND)]
    assert "\n".join([*answers, refused(NOT_RUNNABLE, 126)]) == snapshot


@pytest.mark.promise("bad input: file and line, all faults, exit code 2, nothing started")
@pytest.mark.promise("a missing hostfile is an error")
def test_job_files(refused: Refused, tmp_path: Path, snapshot: SnapshotAssertion):
    answers = []
    for text, lines in {**JOB_FILES, **NO_PROGRAMS}.items():
        (tmp_path / "job.yaml").write_text(text)
        answers.append(f"{text}\n{refused('job.yaml', 127 if text in NO_PROGRAMS else 2)}")
        assert [*re.findall(r"-> launch: job\.yaml:(\d+): ", answers[-1])] == lines.split()
    assert "\n".join(answers) == snapshot


def test_hostfiles(refused: Refused, tmp_path: Path, snapshot: SnapshotAssertion):
    answers = []
    for (name, text), line in HOSTFILES.items():
        (tmp_path / name).write_text(text)
        answers.append(f"{text}\n{refused(f'--hosts ./{name} true')}")
        assert f"{name}:{line}: " in answers[-1]
    assert "\n".join(answers) == snapshot


def test_notes_on_what_starts_anyway(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").touch()
    ended = launch("train.py", "--workers", "2", "--dry-run", "--hosts=a", cwd=tmp_path)
    assert ended.code == 0 and "train.py is empty: its tasks do nothing" in ended.err
    for option in ("--workers", "--dry-run", "--hosts"):
        assert (
            f"{option} is an argument of train.py: the options of launch come before the program" in ended.err
        )


def test_a_program_that_can_not_be_read(launch: Launch, tmp_path: Path):
    """Root may read all, so without its capabilities."""
    (tmp_path / "train.py").touch(mode=0o200)
    command = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "launcher")
    ended = launch.start("train.py", cwd=tmp_path, command=command).wait(20)
    assert (ended.code, "'train.py' cannot be read: permission denied" in ended.err) == (126, True)


@pytest.mark.parametrize("words", [["run", "init"], ["--", "init"], ["./init"]])
def test_a_program_that_is_called_as_a_command_of_others(launch: Launch, tmp_path: Path, words: list[str]):
    program = tmp_path / "init"
    program.write_text("#!/bin/sh\necho the program of the user\n")
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert "the program of the user" in launch(*words, cwd=tmp_path, env={"PATH": path}).out
    assert launch("init", cwd=tmp_path, env={"PATH": path}).code == 2


def test_options_of_others_are_not_ours():
    """An answer names options that there are, and no option of ours is refused."""
    actions = [action for action in command_parser("run")._actions if action.dest != "refused"]
    ours = {name for action in actions for name in action.option_strings}
    assert not ours & foreign_options.options().keys()
    assert not {*COMMANDS} & foreign_options.COMMANDS.keys()
    for peer in foreign_options.options().values():
        assert {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", peer.answer)} <= ours
    for answer in foreign_options.COMMANDS.values():
        word = answer.split()[1]
        assert word in COMMANDS or word in ours or not word.islower(), answer
