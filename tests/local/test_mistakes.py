"""A table of mistakes: each is answered with what to type instead, and nothing is started."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.cli import foreign_options
from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS
from launcher.config import table
from launcher.config.hostfile import HOST, HOSTFILE
from launcher.config.jobfile import ROLE
from tests.conftest import COMMAND, Launch, executable
from tests.unit.config.answers import answered

LONG_FOLDER, LONG_NAME = "a/" * 3000, "a" * 65
ODD_COMMAND_LINES = [
    "", f"--run-dir {LONG_FOLDER} true", f"--venv {LONG_NAME} train.py", "'--wor\nkers' 2 true",
    "export compose --docker tf:2 -x A=\udce9 true",
    "export slurm \"--slurm-options=--comment='a\nb'\" true",
]  # fmt: skip

#: Programs that can't be run.
NOT_RUNNABLE = ["folder.py", "./plain", "-x PATH=. plain", "--python ./plain -m x"]

TFJOB = "apiVersion: kubeflow.org/v1\nkind: TFJob\nspec:\n  tfReplicaSpecs:\n"
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
    START + "name: worker-1": "3",
    START + "docker: {image: tf, volumes: [a]}": "3",
    START + "hosts: ['n[1-2]:2222']": "3",
    START + "hosts: node1:2222": "3",
    START + "hosts: nofile.yaml": "3",
    # All faults at once, where they are.
    "roles:\n  worker:\n    count: -2\n    command: [true]\n  ps: {conut: 1, command: x}\ngrase: 3": "3 5 6",
    "roles: {worker: 1}\ncomand: [true]\nhosts: lab2.yaml": "2 3",
    "roles: {worker: 2}\ncommand: 'echo {ps_host}'": "2",
    START + "workdir: gone": "3",
    TFJOB + "    Wroker: {}\n    Worker: {replicas: two}": "5 6 6",
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
    ("h.yaml", "hosts:\n- {name: node1, slotz: 2}\n- {name: node2, slots: many}"): "2 3",
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

    def run(words: str, code: int = 2, **settings: Any) -> str:
        ended = launch.here(*shlex.split(words), **{"cwd": tmp_path, **settings})
        assert (ended.code, ended.out, "Traceback" in ended.err) == (code, "", False), ended.err
        assert not launch.state.exists(), "something was started"
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


def listed(file: str) -> list[str]:
    """Return the command lines of a file beside this one: what is typed after ``launch``, as in a shell."""
    lines = (Path(__file__).parent / file).read_text().splitlines()
    return [line for line in lines if not line.startswith("# ")]


@pytest.mark.promise("bad input: file and line, all faults, exit code 2, nothing started")
def test_command_lines(refused: Refused, snapshot: SnapshotAssertion):
    lines = [*ODD_COMMAND_LINES, *listed("mistakes.txt"), *listed("misspelt.txt")]
    assert "\n".join(map(refused, lines)) == snapshot


@pytest.mark.parametrize(
    ("words", "argument"),
    [("hosts --hosts a", "FILE_OR_LIST"), ("hosts --host=a", "FILE_OR_LIST"), ("stop --run a", "RUN")],
)
def test_an_argument_that_is_typed_as_an_option(refused: Refused, words: str, argument: str):
    fault = refused(words).partition("-> launch: ")[2]
    option = words.split()[1].partition("=")[0]
    assert argument in fault and fault.count(option) == 1


@pytest.mark.promise("a command of other launchers or shells, or a misspelt one, is no program by accident")
def test_options_and_commands_of_other_launchers(refused: Refused, snapshot: SnapshotAssertion):
    def typed(name: str, option: foreign_options.ForeignOption) -> str:
        variable = ("", "A=secret ", "A secret ")
        return f"{name} {variable[option.values] if option.secret else '4 ' * option.values}train.py"

    options = starmap(typed, foreign_options.options().items())
    answers = [refused(words) for words in (*options, *foreign_options.COMMANDS)]
    assert "\n".join(answers) == snapshot


def test_programs(refused: Refused, snapshot: SnapshotAssertion):
    answers = [refused(words, 127) for words in listed("programs.txt")]
    answers += [refused(words, 126) for words in NOT_RUNNABLE]
    assert "\n".join(answers) == snapshot


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
    for (name, text), lines in HOSTFILES.items():
        (tmp_path / name).write_text(text)
        answers.append(f"{text}\n{refused(f'--hosts ./{name} true')}")
        assert {*lines.split()} <= {*re.findall(rf"-> launch: ./{name}:(\d+): ", answers[-1])}
    assert "\n".join(answers) == snapshot


@pytest.mark.parametrize("data", [b"", b"\x00\xff\xfe", b"- 1\n", b"a: [\n", None])
def test_files_that_are_no_job_or_hostfile(refused: Refused, tmp_path: Path, data: bytes | None):
    path = tmp_path / "a.yaml"
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    for words in ("a.yaml", "--hosts a.yaml true"):
        assert "-> launch: a.yaml:" in refused(words)


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
    refused: Refused, tmp_path: Path, name: str, content: str | None, message: str
):
    if content is None:
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    answer = refused("true" if name == "launch.toml" else name)
    assert message in answer and len(answer) < 40_000


@pytest.mark.promise("job files by their endings; one of another name is told so")
@pytest.mark.parametrize("name", ["job.conf", "./job.conf", "used/job"])
@pytest.mark.parametrize(
    "text",
    [
        "# a job\ncommand: echo\nroles: {worker: 1}\n",
        "---\napiVersion: kubeflow.org/v1\nkind: TFJob\n",
        '{"command": "echo", "roles": {"worker": 1}}',
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_job_file_of_another_name(refused: Refused, tmp_path: Path, name: str, text: str, mode: int):
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(mode)
    expected = "this is a job file; expected a name that ends with one of .yaml, .yml, .json"
    assert refused(name).endswith(f"-> launch: {name}: {expected}")


def test_a_program_that_lies_beside_the_job_file(refused: Refused, launch: Launch, tmp_path: Path):
    (tmp_path / "job.yaml").write_text(START)
    beside = "it is in the folder of the job file: `workdir: .` in that file makes tasks run there"
    assert refused("../job.yaml", 127, cwd=tmp_path / "used").endswith(beside)
    (tmp_path / "job.yaml").write_text(f"{START}workdir: .\n")
    launch(tmp_path / "job.yaml", cwd=tmp_path / "used", code=0)


def test_a_run_dir_of_a_job_file_serves_one_run(launch: Launch, tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text("roles: {worker: 1}\ncommand: 'true'\nrun_dir: run\n")
    launch(job, code=0)
    err = launch.here(job, code=2).err
    assert err.startswith(f"launch: {job}:3: ") and "give this run another with --run-dir" in err
    assert "--run-dir: " in launch.here(job, "--run-dir", tmp_path / "run", code=2).err
    launch(job, "--run-dir", tmp_path / "other", code=0)


def test_programs_are_relative_to_the_working_folder(launch: Launch, tmp_path: Path):
    executable(tmp_path / "bin" / "hello", "#!/bin/sh\necho hello\n")
    for words in (["./bin/hello"], ["-x", "PATH=bin:/usr/bin:/bin", "hello"]):
        assert "| hello\n" in launch("--workdir", tmp_path, *words, code=0).out


def test_gpus_that_are_hidden(refused: Refused):
    answer = refused("--gpus 1 true", env={"CUDA_VISIBLE_DEVICES": "-1"})
    assert "localhost has 0 left" in answer and "for this machine by CUDA_VISIBLE_DEVICES=0,1" in answer


def test_a_secret_in_a_fault_stays_one(launch: Launch):
    assert "s3cret" not in launch.here("-x", "TASK_INDEX=s3cret", "-x", "A B=s3cret", "true", code=2).err


@pytest.mark.promise("a missing hostfile is an error")
def test_hosts_that_are_not_there(launch: Launch):
    ended = launch("--hosts", "nohost.invalid", "echo", "ran", code=125)
    assert "ran" not in ended.out, "it does not run here instead"
    unknown, hint = ended.said
    assert unknown.startswith("launch: nohost.invalid: ") and "was not found" in unknown
    assert hint == "launch: --hosts nohost.invalid: there is no file of that name either"


#: What the text of a program may contain that has an option ``--workers``, or passes it on.
MAY_HAVE_WORKERS = [
    "p.add_argument('--workers')", "flags.DEFINE_integer('workers', 1, '')", "def main(workers): ...",
    "p.add_argument('--workers-per-host')", "p.parse_known_args()", "import os, flags_of_mine",
    "from . import flags", "from .flags import *", "try: from official.core import flags",
    "import subprocess", "exec(open('settings.py').read())", "print(sys.argv[1:])", "from sys import argv",
]  # fmt: skip


@pytest.mark.parametrize("text", MAY_HAVE_WORKERS)
def test_options_that_a_program_may_have(launch: Launch, tmp_path: Path, text: str):
    (tmp_path / "train.py").write_text(f"import os\nos._exit(0)\n{text}\n")
    ended = launch("train.py", "--workers", "2", cwd=tmp_path)
    assert "--workers is an argument of train.py: " in ended.err


@pytest.mark.promise("options of launch after a `.py` that cannot have them are refused")
def test_options_that_a_program_does_not_have(refused: Refused, tmp_path: Path):
    text = "import os, tensorflow as tf\nfrom absl import app\ndef main(argv): print(os.num_workers)\n"
    (tmp_path / "train.py").write_text(text)
    for words in ("train.py --workers 2", "--workers 1 train.py --workers 2"):
        assert "`launch --workers ... train.py`" in refused(words)


@pytest.mark.parametrize("words", ["-- train.py --workers", "train.py -v --quiet", "train.py -- --workers"])
def test_words_that_go_to_the_program(launch: Launch, tmp_path: Path, words: str):
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv.pop())\n")
    ended = launch(*words.split(), cwd=tmp_path, code=0)
    assert f"| {words.split()[-1]}\n" in ended.out and "before the program" not in ended.err


def test_notes_on_what_starts_anyway(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").touch()
    assert "train.py is empty: its tasks do nothing" in launch("train.py", cwd=tmp_path, code=0).err
    ended = launch("-m", "train", "--workers", "2", "--hosts=a", cwd=tmp_path, code=0)
    for option in ("--workers", "--hosts"):
        assert f"{option} is an argument of the program: " in ended.err


@pytest.mark.parametrize(
    ("words", "code", "fault"),
    [
        (["train.py"], 126, "'train.py' cannot be read: permission denied"),
        (["--workdir", "closed", "true"], 2, "closed' cannot be entered: permission denied"),
    ],
)
def test_what_the_user_may_not_read_or_enter(
    launch: Launch, tmp_path: Path, words: list[str], code: int, fault: str
):
    """Root may, so without its capabilities."""
    (tmp_path / "train.py").touch(mode=0o200)
    (tmp_path / "closed").mkdir(mode=0o600)
    command = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", *COMMAND)
    assert fault in launch(*words, cwd=tmp_path, command=command, code=code).err


@pytest.mark.parametrize("words", [["run", "init"], ["--", "init"], ["./init"]])
def test_a_program_that_is_called_as_a_command_of_others(launch: Launch, tmp_path: Path, words: list[str]):
    executable(tmp_path / "init", "#!/bin/sh\necho the program of the user\n")
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert "the program of the user" in launch(*words, cwd=tmp_path, env={"PATH": path}).out
    assert launch("init", cwd=tmp_path, env={"PATH": path}).code == 2


def test_a_program_whose_name_is_like_that_of_a_command(launch: Launch, tmp_path: Path):
    executable(tmp_path / "lgos", "#!/bin/sh\necho the program of the user\n")
    assert "write ./ before it" in launch("lgos", cwd=tmp_path, code=127).err
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert "the program of the user" in launch("lgos", env={"PATH": path}, code=0).out


def test_options_of_others_are_not_ours():
    """An answer names options that there are, and no option of ours is refused."""
    actions = [action for action in command_parser("run")._actions if action.dest != "refused"]
    ours = {name for action in actions for name in action.option_strings}
    assert not ours & foreign_options.options().keys()
    assert not {*COMMANDS} & foreign_options.COMMANDS.keys()
    for peer in foreign_options.options().values():
        assert {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", peer.answer)} <= ours
    for answer in filter(None, foreign_options.COMMANDS.values()):
        word = answer.split()[1]
        assert word in COMMANDS or word in ours or not word.islower(), answer
