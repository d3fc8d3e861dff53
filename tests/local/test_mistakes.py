"""A table of mistakes: each is answered with what to type instead, and nothing is started."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import foreign_options
from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS
from launcher.config import table
from launcher.config.hostfile import HOST, HOSTFILE
from launcher.config.jobfile import ROLE
from tests.conftest import Launch

#: What is typed after ``launch``, as in a shell; what the answer contains.
COMMAND_LINE = [
    ("", "expected a program, a job file or a command"),
    # Options of other launchers.
    ("-n 4 train.py", "-n 4: use --workers 4"),
    ("--np=4 train.py", "--np 4: use --workers 4"),
    ("--num_workers 3 train.py", "--num_workers 3: use --workers 3"),
    ("--nproc-per-node 2 train.py", "--hosts node1:2,node2:2"),
    ("--nnodes=2 --nproc_per_node=1 train.py", "--nnodes 2: use --hosts node1,node2"),
    ("-e A=secret train.py", "-e A=...: use -x A=..."),
    ("--env A=secret train.py", "--venv: for a variable use -x A=..."),
    ("-env A 1 train.py", "-env A ...: use -x A=VALUE"),
    ("--hostfile lab train.py", "--hostfile lab: use --hosts lab"),
    ("-H node1:2 train.py", "-H node1:2: use --hosts node1:2"),
    ("--max-restarts 3 train.py", "use --restarts 3"),
    ("--gpus-per-task 1 train.py", "for GPUs per task use --gpus 1"),
    ("--image tf:1 train.py", "use --docker tf:1"),
    ("--volume /data:/data train.py", "use --mount /data:/data"),
    ("--log-dir logs train.py", "in the folder of the run: use --run-dir logs"),
    ("--name mnist train.py", "launch names the run; for its folder use --run-dir mnist"),
    (
        "--resume train.py",
        "--resume: it is an option of your program: write it after the program",
    ),
    ("--rm train.py", "--rm: leave it out: containers are removed at the end"),
    ("-it train.py", "-it: leave it out: tasks have no terminal"),
    ("--oversubscribe train.py", "--oversubscribe: leave it out: a host without slots takes all tasks"),
    ("--rdzv_endpoint=n1:1 train.py", "--rdzv_endpoint n1:1: leave it out"),
    ("--master-addr n1 train.py", "--master-addr n1: leave it out: launch chooses the addresses and ports"),
    ("--identity key train.py", "write IdentityFile key for the host into ~/.ssh/config"),
    ("--mca btl tcp train.py", "it is an option of Open MPI"),
    ("-f job.yaml", "write the job file as an argument: launch job.yaml"),
    # Options and commands of Slurm.
    ("-N 4 train.py", "--nodes: the option is about an allocation of Slurm; expected --slurm, too"),
    ("--nodes=4 --workers 8 train.py", "expected --slurm, too; or --hosts node1,node2"),
    ("--slurm --nodes=four train.py", "--nodes: 'four'; expected a whole number from 1"),
    ("--slurm -n 8 train.py", "-n 8: use --workers 8"),
    ("--slurm --ntasks=8 train.py", "--ntasks 8: use --workers 8"),
    ("--slurm --ntasks-per-node=4 train.py", "on Slurm write it into --slurm-options"),
    ("--gres=gpu:2 train.py", "--gres gpu:2: for GPUs per task use --gpus N; Slurm's are --gpus-per-node N"),
    ("--slurm -t 10 train.py", "-t 10: for the time limit at Slurm use --time 10"),
    ("--slurm -p gpu train.py", "for Slurm's partition use --partition gpu"),
    ("--slurm -A lab train.py", "-A lab: for the account at Slurm use --account lab"),
    (
        "--slurm --mem=8G train.py",
        "use --memory 8G with --docker IMAGE; on Slurm write it into --slurm-options",
    ),
    (
        "--slurm --exclusive train.py",
        "--exclusive: it is an option of Slurm: use --slurm-options='--exclusive'",
    ),
    (
        "--slurm --array=1-4 train.py",
        "--array 1-4: it is an option of Slurm: use --slurm-options='--array 1-4'",
    ),
    ("--slurm -n4 train.py", "-n 4: use --workers 4"),
    ("--slurm --wrap 'python train.py'", "write the program last: launch --slurm --detach python train.py"),
    ("--slurm --slurm-options qos=x train.py", "expected options of salloc, as in '--qos=short --exclusive'"),
    ("--slurm --no-slurm train.py", "--no-slurm: --slurm is given, too; expected one of them"),
    ("--slurm --slurm-options short true", "'short'; expected options of salloc"),
    ("--slurm -N 3 --workdir /nosuch true", "there is no working folder '/nosuch'"),
    ("--slurm -N 0 true", "--nodes: '0'; expected a whole number from 1"),
    ("--slurm --hosts a true", "--slurm: the hosts are named, too"),
    ("--slurm --docker x true", "docker and slurm can't start the same tasks"),
    # Options of Kubernetes.
    ("--kubernetes x --namespace No true", "'No'; expected a namespace"),
    ("--kubernetes x --hosts a true", "--kubernetes: the hosts are named, too"),
    ("--kubernetes x --docker y true", "docker and kubernetes can't start the same tasks"),
    ("--kubernetes x --user me true", "--user: 'me' is a name; expected UID or UID:GID"),
    ("--kubernetes x --mount /data true", "--mount: the option is not for pods"),
    ("--docker x --memory 2g,4g true", "--memory: '2g,4g'; expected one size such as 512m or 2g"),
    ("--kubernetes x --memory chief=1g true", "--memory chief=: there is no role 'chief'"),
    ("--start-timeout 5m true", "--start-timeout: the option is about Kubernetes"),
    ("srun -n 4 train.py", "type `launch --slurm PROGRAM`; a program of that name: `launch run srun`"),
    ("sbatch job.sh", "type `launch --slurm --detach PROGRAM`"),
    ("scancel 12", "type `launch stop`"),
    ("squeue", "type `launch ps`"),
    # Commands of other launchers.
    ("init", "no command 'init': type `launch PROGRAM`; a program of that name: `launch run init`"),
    ("apply", "no command 'apply': type `launch JOB.yaml`; a program of that name: `launch run apply`"),
    ("status", "no command 'status': type `launch ps`; a program of that name: `launch run status`"),
    ("submit train.py", "type `launch --detach PROGRAM`"),
    ("top", "type `launch ps`; a program of that name: `launch run top`"),
    (
        "cp worker/0:model .",
        "type `launch --sync DIR --collect PATH PROGRAM`; a program of that name: `launch run cp`",
    ),
    ("help nosuch", "no command 'nosuch': expected one of run, ps,"),
    # Programs and job files.
    ("job.yml", "job.yml: can't read the job file: No such file or directory; did you mean job.yaml?"),
    ("--docker job.yaml", "'job.yaml'; expected an image; that of its roles: job.yaml --docker"),
    ("--docker JOB.JSON", "'JOB.JSON'; expected an image; that of its roles: JOB.JSON --docker"),
    ("--hosts no.json true", "no.json: no such hostfile"),
    ("job.yaml extra", "unexpected argument 'extra'; only options follow a job file"),
    ("-m", "-m: expected"),
    # Descriptors of a shell: <(...).
    (
        "train.py --config /dev/fd/63",
        "argument '/dev/fd/63' is a descriptor of this shell, as of <(...), which tasks do not have",
    ),
    ("-x C=/dev/fd/63 -- sh train.py --c=/proc/self/fd/11", "'--c=/proc/self/fd/11' is a descriptor of this"),
    ("-x C=/dev/fd/63 true", "-x: variable C is a descriptor of this shell"),
    ("/dev/fd/63", "program '/dev/fd/63' is a descriptor of this shell"),
    ("export slurm -m x @/dev/fd/12", "argument '@/dev/fd/12' is a descriptor of this shell"),
    # Runs.
    ("logs nosuch", "no run 'nosuch'; running: none (`launch ps --all` lists all)"),
    ("stop", "nothing is running; `launch ps --all` lists earlier runs"),
    ("ps latest2", "no run 'latest2'"),
    ("restart", "the following arguments are required: RUN (launch restart --help"),
]
#: Misspelt options and bad values.
MISSPELT = [
    ("--worker 2 train.py", "did you mean --workers?"),
    ("-workers 2 train.py", "did you mean --workers?"),
    ("--wrokers=2 train.py", "did you mean --workers?"),
    ("--output_dirs train.py", "did you mean --output-dirs?"),
    ("--time 5 train.py", "or --timeout"),
    (
        "--zzz train.py",
        "unrecognized option --zzz; an option of the program comes after the program (launch --help-all",
    ),
    ("clean - -=", "unrecognized option -= (launch clean --help"),
    (
        "--tensorboard logs train.py",
        "'logs' would be the program, and 'train.py' its argument; use --tensorboard=logs",
    ),
    ("--tensorboard folder.py/logs --ps 1 train.py", "use --tensorboard=folder.py/logs for a folder"),
    ("--hosts a --tensorboard logs -- train.py", "use --tensorboard=logs for a folder"),
    ("job.yaml --tensorboard logs --dry-run", "use --tensorboard=logs for a folder"),
    ("ps --al", "did you mean --all? (launch ps --help shows all options)"),
    ("--workers=two train.py", "--workers: 'two'; expected a whole number"),
    ("--ps train.py --epochs 3", "--ps: 'train.py'; expected a whole number"),
    ("--workers", "--workers: expected one argument (launch --help-all shows all options)"),
    ("--chief=1 train.py", "--chief: ignored explicit argument '1'"),
    ("--timeout 5x train.py", "--timeout: '5x'; expected seconds, or a number and s, m, h or d"),
    ("--drain soon train.py", "--drain: 'soon'; expected seconds"),
    ("--on-failure ignore train.py", "--on-failure: 'ignore'; expected stop or continue"),
    ("-x KEY = VALUE train.py", "-x KEY: KEY is not set here; expected NAME=VALUE"),
    ("-x 'A B=1' train.py", "'A B' can't be set; expected a variable's name"),
    ("--hosts node1 node2 train.py", "for several hosts use --hosts node1,node2"),
    ("--hosts 'node1 node2' train.py", "several hosts have commas between them"),
    ("--hosts nofile.yaml train.py", "nofile.yaml: no such hostfile; expected a file, or host[:slots],..."),
    ("--hosts lab.yml train.py", "lab.yml: no such hostfile; did you mean lab.yaml?"),
    ("--hosts train.py", "train.py is a program, not a hostfile; expected --hosts X train.py"),
    ("--hosts node1:x train.py", "expected slots from 1 to 1023"),
    ("--hosts node1:2222,node2:2222 train.py", '"node2:2222"; expected slots after the ":", and 2222 is'),
    ("check node1:2222", '"node1:2222"; expected slots after the ":", and 2222 is'),
    ("hosts me@[::1]:22", '"me@[::1]:22"; expected slots after the ":", and 22 is'),
    ("--venv '' train.py", "--venv: ''; expected the name of an environment"),
    ("--venv .lab train.py", "--venv: '.lab'; expected the name of an environment"),
    ("--venv -lab train.py", "--venv/--env: expected one argument"),
    ("--venv 'a b' --hosts node1 train.py", "--venv: 'a b'; expected the name of an environment"),
    (f"--venv {'a' * 65} train.py", "at most 64"),
    (
        "--venv lab --python python3 train.py",
        "--venv: --python is given, too; expected one of them",
    ),
    ("--venv lab --docker tf:1 train.py", "expected an image with its packages"),
    ("--docker train.py --epochs 3", "expected an image before the program: IMAGE train.py"),
    ("--report no/report.json train.py", "its folder does not exist; expected a folder that exists"),
    ("--run-dir used train.py", "expected a new or an empty folder"),
    ("--show wroker train.py", "there is no task 'wroker'; did you mean \"worker\"?"),
    (
        "--ps 1 --workers 1 --done-when cheif train.py",
        "no task decides when the job is done; expected one of chief, workers, worker, ps",
    ),
    ("--sync . train.py", "the option is about other machines, and none is named; expected --hosts"),
    ("--no-chek true", "unrecognized option --no-chek; did you mean --no-check? (launch --help"),
    ("'--wor\nkers' 2 true", "unrecognized option --wor\\nkers; did you mean --workers? (launch"),
    ("completion bash -", "unexpected argument '-' (launch completion --help"),
    (
        "--hosts a --hosts b --hosts c true",
        "--hosts: the option is given twice; expected once; for several hosts use host,host",
    ),
    ("hosts no/such/thing", "thing"),
]

#: Programs that are not there (127), or can't be run (126).
PROGRAMS = [
    ("trian.py", 127, "did you mean 'train.py'?"),
    ("./trian.py", 127, "did you mean './train.py'?"),
    ("/no/such/train.py", 127, "program not found: '/no/such/train.py'\n"),
    ("~/nosuch.py", 127, "program not found: '~/nosuch.py'\n"),
    ("'train.py --epochs 3'", 127, "(remove the quotes around the program and its arguments)"),
    ("'python3 train.py'", 127, "(remove the quotes around the program and its arguments)"),
    ("log", 127, "did you mean launch logs?"),
    ("--tensorboard nosuchprog", 127, "program not found: 'nosuchprog'"),
    ("--chief 2 train.py", 127, "--chief and --evaluator take no number"),
    ("folder.py", 126, "'folder.py' is a folder, not a program"),
    ("--python no-python -m x", 127, "--python: program not found: 'no-python' is nowhere along PATH"),
    (
        "--venv lab true",
        127,
        "--venv: there is no environment 'lab'; `launch prepare --hosts localhost --name lab`",
    ),
    ("--dry-run --venv no/lab -m x", 127, "there is no environment '"),
    ("-x PATH=/nowhere sh", 127, "'sh' is nowhere along PATH"),
    ("--slurm -N 3 nosuch.py", 127, "program not found: 'nosuch.py'"),
    ("--slurm -N 3 --python /nosuch/python train.py", 127, "/nosuch/python"),
]

START = "command: train.py\nroles: {worker: 2}\n"
#: A job file, and what the answer contains: ``N:`` is the line.
JOB_FILES = [
    ("command: train.py\nworker: 2", '2: unknown key "worker"; expected it below roles:, as in worker: 1'),
    ("command: train.py\nrole: {worker: 2}", '2: unknown key "role"; did you mean "roles"?'),
    ("roles: {worker: 2}\ncmd: train.py", '2: unknown key "cmd"; expected "command"'),
    ("roles: {worker: 2}\ncommand: trian.py", "2: worker/0: program not found: 'trian.py'"),
    ("command: train.py\nroles: {worker: {replicas: 2}}", '2: unknown key "replicas"; expected "count"'),
    (
        "command: train.py\nroles:\n  worker: {image: tf}\n  ps: 1",
        "4: ps has no image; expected image: in it, docker: IMAGE",
    ),
    (
        "command: train.py\nhosts: [node1]\nroles:\n  worker: {image: tf:2}\n  ps: {image: tf:1}",
        "2: node1: its tasks are of the images tf:2, tf:1, but it has one container; expected hosts:",
    ),
    (
        START + "docker: {image: tf, no_mount: true, read_only: true}",
        "3: the working folder is not mounted; expected one of no_mount and read_only",
    ),
    (START + "docker: {keep: true}", "2: worker has no image; expected image: in it, docker: IMAGE"),
    (
        "command: train.py\nroles: {worker: {resources: {limits: {memory: 1Gi}}}}",
        "2: worker has limits of CPUs or memory, which only containers have; expected image: in it, docker:",
    ),
    ("command: train.py\nroles: {worker: {timeout: 5}}", "expected it at the top of the file, beside roles:"),
    ("command: train.py\nroles: {worker:2}", '2: role is "worker:2"; expected a space after the ":"'),
    ("command: train.py\nroles:\n  worker:2", '3: roles is "worker:2"; expected a space after the ":"'),
    ("command: train.py\nroles:\nworker: 2", "2: roles has no value; expected a mapping, as in worker: 4"),
    (START + "venv: -lab", '3: venv is "-lab"; expected the name of an environment'),
    (START + "venv: lab\npython: /usr/bin/python3", "3: job.yaml:4 is given, too; expected one of them"),
    (START + "done-when: worker", '3: unknown key "done-when"; did you mean "done_when"?'),
    (
        START + "done_when: chef",
        "3: there is no role 'chef', so no task decides when the job is done; expected one of chief,",
    ),
    ("command: [train.py, /dev/fd/3]\nroles: {worker: 1}", "1: argument '/dev/fd/3' is a descriptor of this"),
    (START + "image: tf", '3: unknown key "image"; expected "docker"'),
    (START + "retries: 3", '3: unknown key "retries"; expected "restarts"'),
    (START + "environment: {A: 1}", '3: unknown key "environment"; expected "env"'),
    (START + "args: [x]", '3: unknown key "args"; expected the arguments in "command"'),
    (START + "name: mnist", '3: unknown key "name"; leave it out: launch names the run'),
    (START + "docker: {image: tf, volumes: [a]}", '3: unknown key "volumes"; expected "mounts"'),
    (START + "hosts: ['n[1-2]:2222']", '3: host is "n[1-2]:2222"; expected slots after the ":", and 2222 is'),
    (START + "hosts: node1:2222", 'job.yaml:3: host is "node1:2222"; expected slots after the ":"'),
    (START + "hosts: nofile.yaml", "nofile.yaml: no such hostfile; expected a file"),
    (
        "kind: PyTorchJob\nspec: {}",
        "1: this is a file of Kubernetes (PyTorchJob); expected kind: TFJob, or a mapping with command:",
    ),
    ("---\n" + START + "---\n" + START, "5: a second document, after that at line 2; expected one"),
]

#: The name of a hostfile, its content, and what the answer contains.
HOSTFILES = [
    ("lab", "node1 slots 2", 'lab:1: "slots"; expected KEY=VALUE'),
    ("lab", "node1,node2", 'lab:1: "node1,node2"; expected one host a line'),
    ("lab", "- node1", "expected a host; a list with dashes goes below hosts:"),
    ("lab", "[gpu]\nnode1 ansible_host=n", "lab:1: \"[gpu]\"; expected a host; leave out the groups"),
    (
        "lab",
        "node1 ansible_host=10.0.0.5",
        'lab:1: unknown key "ansible_host"; expected 10.0.0.5 as the name, which ssh connects to; or HostN',
    ),
    ("h.yaml", "hosts:\n- {name: node1, ip: 10.0.0.5}", '"ip"; expected 10.0.0.5 as the name, which ssh'),
    ("lab", "Host node1\n", "lab:1: \"Host\"; expected a host; launch reads ~/.ssh/config by itself"),
    ("lab", "ssh://node1:22", "expected a host without a scheme, as in user@node1"),
    ("lab", "node1 identity_file=key", "expected IdentityFile for this host in ~/.ssh/config"),
    ("h.yaml", "- node1", "h.yaml:1: the file is a list; expected hosts: and a list of hosts"),
    ("h.yaml", "nodes: [node1]", 'h.yaml:1: unknown key "nodes"; expected "hosts"'),
    ("h.yaml", "hosts:\n- hostname: node1", 'h.yaml:2: unknown key "hostname"; expected "name"'),
    ("h.yaml", "hosts:\n- node1 slots=2", "expected a mapping, as in {name: node1, slots: 2}"),
    ("h.yaml", START, "this is a job file: launch"),
    ("h.yaml", "apiVersion: v1\nkind: TFJob", "this is a job file: launch"),
]  # fmt: skip

#: Options that answers may name: those of all commands.
OPTIONS = {
    name
    for command in COMMANDS
    for action in command_parser(command)._actions
    for name in action.option_strings
    if action.dest != "refused"
}
KEYS = {*(row.key for row in table.ROWS), *ROLE, *HOST, *HOSTFILE, "docker", "mounts", "worker"}


#: Runs a command line, and checks the answer and the exit code.
Answered = Callable[..., None]


def furnish(folder: Path) -> None:
    """A program, a job file and a hostfile."""
    (folder / "train.py").touch(mode=0o755)
    (folder / "train.py").write_text("#!/usr/bin/env python3\n")
    (folder / "job.yaml").write_text(START)
    (folder / "lab.yaml").write_text("hosts: [localhost]\n")
    (folder / "used").mkdir()
    (folder / "used" / "report.json").touch()
    (folder / "folder.py").mkdir()


@pytest.fixture
def answered(launch: Launch, tmp_path: Path) -> Answered:
    """Runs a command line in a folder with a program, a job file and a hostfile."""
    furnish(tmp_path)

    def run(words: str, message: str, code: int = 2) -> None:
        ended = launch.here(*shlex.split(words), cwd=tmp_path)
        assert message in ended.err
        assert (ended.code, ended.out, "Traceback" in ended.err) == (code, "", False), ended.err
        assert not [*launch.state.glob("*")], "something was started"
        _check_suggestions(ended.err)

    return run


def _check_suggestions(text: str) -> None:
    """All options and keys that an answer suggests exist."""
    for suggested in re.findall(r"(?:did you mean|are|is|with|expected|`launch) (--?[a-z][a-z-]*)", text):
        assert suggested in OPTIONS, suggested
    for suggested in re.findall(r'unknown key "[^"]*"; (?:did you mean|expected) "(\w+)"', text):
        assert suggested in KEYS, suggested
    for suggested in re.findall(r"`launch ([a-z]+)`", text):
        assert suggested in COMMANDS, suggested


@pytest.mark.parametrize(("words", "message"), [*COMMAND_LINE, *MISSPELT])
def test_command_lines(answered: Answered, words: str, message: str):
    answered(words, message)


@pytest.mark.parametrize(("words", "code", "message"), PROGRAMS, ids=[words for words, _, _ in PROGRAMS])
def test_programs(answered: Answered, words: str, code: int, message: str):
    answered(words, message, code)


@pytest.mark.parametrize(("text", "message"), JOB_FILES)
def test_job_files(answered: Answered, tmp_path: Path, text: str, message: str):
    (tmp_path / "job.yaml").write_text(text)
    answered("job.yaml", message, 127 if "not found" in message else 2)


@pytest.mark.parametrize(("name", "text", "message"), HOSTFILES)
def test_hostfiles(answered: Answered, tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    answered(f"--hosts ./{name} true", message)


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
    assert (ended.code, "'train.py' can't be read: permission denied" in ended.err) == (126, True)


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
