"""Defaults of a project: ``launch.toml`` and ``[tool.launch]`` of ``pyproject.toml``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from launcher.config.settings import SourceKind
from launcher.config.table import ROWS
from tests.conftest import Launch, executable

SHOW = "import os, sys; print(os.environ['JOB_NAME'], os.getcwd(), os.environ.get('WORD'), *sys.argv[1:])"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the program ``src/train.py``, which prints its role, its folder, WORD, its arguments."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text(SHOW)
    return folder


def _lines(out: str) -> list[str]:
    return sorted(line.partition(" | ")[2] for line in out.splitlines() if " | " in line)


@pytest.mark.promise("defaults of a project: where they are, what overrides them, `--dry-run` names them")
@pytest.mark.parametrize("folder", [".", "src"])
@pytest.mark.parametrize(("name", "table"), [("launch.toml", ""), ("pyproject.toml", "tool.launch")])
def test_a_file_beside_the_program_or_in_the_current_folder(
    launch: Launch, project: Path, name: str, table: str, folder: str
):
    head, env = f"[{table}]" if table else "", f"{table}.env".lstrip(".")
    text = f"{head}\nworkers = 2\nps = 1\nflags = false\n[{env}]\nWORD = 'of the file'\n"
    (project / folder / name).write_text(text)
    ended = launch("src/train.py", cwd=project, code=0)
    workers = [line for line in _lines(ended.out) if line.startswith("worker")]
    assert workers == [f"worker {project} of the file"] * 2
    assert "ps/0" in ended.out or " ps " in ended.out
    assert name not in ended.out + ended.err, "a normal launch says nothing of defaults"


def test_the_file_beside_the_program_comes_first(launch: Launch, project: Path):
    (project / "pyproject.toml").write_text("[tool.launch]\nworkers = 3\n")
    (project / "src" / "pyproject.toml").write_text("[project]\nname = 'launch'\n")
    assert len(_lines(launch("src/train.py", cwd=project).out)) == 3, "it has no defaults"
    (project / "src" / "launch.toml").write_text("workers = 2\n")
    assert len(_lines(launch("src/train.py", cwd=project).out)) == 2
    assert len(_lines(launch("-m", "train", cwd=project / "src").out)) == 2
    assert len(_lines(launch("echo", cwd=project).out)) == 3


@pytest.mark.promise("defaults of a project: where they are, what overrides them, `--dry-run` names them")
def test_the_command_line_overrides(launch: Launch, project: Path):
    numbers = "workers = 3\nps = 1\nevaluator = true\ntimeout = 1\nrestarts = 2\n"
    (project / "launch.toml").write_text(f"{numbers}env = {{WORD = 'file', MORE = 'x'}}\n")
    words = ["--workers", "1", "--ps", "0", "-x", "WORD=line", "--timeout", "0", "--restarts", "0"]
    shown = json.loads(launch.here(*words, "--dry-run", "--json", "src/train.py", cwd=project).out)
    assert [task["task"] for task in shown["tasks"]] == ["worker/0", "evaluator/0"]
    assert shown["restarts"] == 0
    notes = [note.removeprefix("default: ") for note in shown["notes"]]
    assert notes == ["evaluator=true (launch.toml:3)", "env=WORD,MORE (launch.toml:6)"]
    assert f"worker {project} line" in _lines(launch(*words, "src/train.py", cwd=project).out)
    ended = launch("--no-defaults", "src/train.py", cwd=project)
    assert _lines(ended.out) == [f"worker {project} None"]


@pytest.mark.promise("defaults of a project: where they are, what overrides them, `--dry-run` names them")
def test_a_dry_run_shows_each_default(launch: Launch, project: Path):
    (project / "pyproject.toml").write_text(
        "[project]\nname = 'x'\n\n[tool.launch]\nworkers = 2\nhosts = [\n  'node1',\n  'node2',\n]\n"
        "[tool.launch.docker]\nimage = 'tf:1'\nmemory = '1g'\n"
    )
    out = launch.here("--dry-run", "src/train.py", cwd=project).out
    assert "# default: workers=2 (pyproject.toml:5)\n" in out
    assert "# default: hosts=node1,node2 (pyproject.toml:6)\n" in out
    assert "# default: docker=image,memory (pyproject.toml:10)\n" in out
    assert "# worker/1 on node2" in out


def test_paths_are_relative_to_the_file(launch: Launch, project: Path):
    """The program is a path from the current folder, as typed, wherever the tasks run."""
    (project / "src" / "launch.toml").write_text("workdir = '.'\nhosts = 'hosts.txt'\n")
    (project / "src" / "hosts.txt").write_text("localhost slots=2\n")
    ended = launch("src/train.py", cwd=project)
    assert _lines(ended.out) == [f"worker {project / 'src'} None"]
    executable(project / "run.sh", "#!/bin/sh\necho $PWD\n")
    (project / "launch.toml").write_text("workdir = 'src'\n")
    assert _lines(launch("./run.sh", cwd=project).out) == [str(project / "src")]


def test_a_job_file_has_all_its_settings(launch: Launch, project: Path):
    (project / "launch.toml").write_text("workers = 3\nenv = {WORD = 'x'}\nunknown = 1\n")
    (project / "job.yaml").write_text("command: src/train.py\nroles: {worker: 1}\n")
    assert _lines(launch("job.yaml", cwd=project).out) == [f"worker {project} None"]


def test_settings_for_some_launches_only(launch: Launch, project: Path):
    """Settings for other machines or for restarts are no fault, and give no note, without those."""
    (project / "launch.toml").write_text("sync = '.'\nrestart = 'task'\n")
    ended = launch("src/train.py", cwd=project)
    assert ended.code == 0 and ended.err.count("launch:") == 1


@pytest.mark.parametrize(
    ("text", "places", "words"),
    [
        ("worker = 2", "1", '"worker" "workers"'),
        ("# c\nps = -1\nchief = 'perhaps'\n\n[env]\n'A B' = 'x'\n", "2 3 6", '"-1" "perhaps" B"'),
        ("roles = {}", "1", '"roles" job.yaml'),
        ("run_dir = 'x'", "1", '"run_dir" --run-dir'),
        ("workers = 1\nps =\n", "2", "TOML"),
        ("hosts = 'no.yaml'", "1", "no.yaml hostfile"),
        ("workdir = 'no'", "1", "no"),
        ('sync = ["a\\u0000b"]', "1 1", "NUL"),
        ("workers = " + "1" * 5000, "1", "TOML"),
        (" " * 20_000 + "ps\nps = -1", "1", "TOML"),
    ],
)
def test_faults(launch: Launch, project: Path, text: str, places: str, words: str):
    (project / "launch.toml").write_text(text)
    ended = launch.here("src/train.py", cwd=project)
    assert ended.code == 2 and ended.out == ""
    assert re.findall(r"launch\.toml:(\d+): ", ended.err) == places.split()
    assert all(word in ended.err for word in words.split())
    assert not launch.state.exists()


def test_the_example_of_the_documents(launch: Launch, project: Path):
    page = (Path(__file__).parents[2] / "docs" / "jobfile.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    (project / "pyproject.toml").write_text(example)
    (project / "lab.yaml").write_text("hosts: [node1, node2, node3]\n")
    shown = json.loads(launch.here("--dry-run", "--json", "src/train.py", cwd=project).out)
    assert [task["task"] for task in shown["tasks"]] == ["worker/0", "worker/1", "ps/0"]
    assert shown["notes"][0] == "default: workers=2 (pyproject.toml:2)"
    assert len(shown["notes"]) >= 6
    (further,) = re.findall(r"and in addition (.*?)\.", page)
    rows = [row for row in ROWS if SourceKind.PROJECT_FILE in row.given_in]
    only_here = [row.key for row in rows if SourceKind.JOB_FILE not in row.given_in]
    assert re.findall(r"`(\w+)`", further) == only_here


@pytest.mark.parametrize("text", ["[tool]\nlaunch = 3", "[[tool.launch]]\nworkers = 2"])
def test_a_table_that_is_none(launch: Launch, project: Path, text: str):
    (project / "pyproject.toml").write_text(text)
    ended = launch.here("true", cwd=project)
    assert ended.code == 2 and '"tool.launch" is not a table' in ended.err


def test_faults_of_other_programs_do_not_matter(launch: Launch, project: Path):
    (project / "pyproject.toml").write_text("[tool.other\nx = = 1\n")
    assert launch("true", cwd=project).code == 0


def test_two_files(launch: Launch, project: Path):
    (project / "launch.toml").write_text("workers = 2")
    (project / "pyproject.toml").write_text("[tool.launch]\nworkers = 3\n")
    both = f"launch: launch.toml and pyproject.toml of '{project}' both have defaults; expected one of them\n"
    assert launch.here("true", cwd=project, code=2).err == both
    (project / "pyproject.toml").write_text("[project]\nname = = launch\n")  # perhaps it has none
    assert launch.here("true", cwd=project).err == "launch: pyproject.toml:2: not TOML: Invalid value\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user(launch: Launch, project: Path):
    """Such as /tmp: the file may name a program that runs as this user."""
    file = project / "launch.toml"
    file.write_text("workers = 2")
    os.chown(file, 65534, 65534)
    for mode in (0o755, 0o775, 0o1777):
        project.chmod(mode)
        ended = launch.here("true", cwd=project)
        assert ended.code == 2 and "launch.toml: these defaults belong to another user" in ended.err
    assert launch("--no-defaults", "true", cwd=project).code == 0
    (project / "fine.py").touch()
    assert launch.here("fine.py", cwd=project).code == 2
    os.chown(project / "fine.py", 65534, 65534)  # root in a container: the whole project is another user's
    assert launch("fine.py", cwd=project).code == 0
    own = project / "src" / "launch.toml"
    file.rename(own)
    os.chown(own, 0, 0)
    file.symlink_to(own)
    assert launch("true", cwd=project).code == 0
    os.lchown(file, 65534, 65534)  # its paths would be relative to this folder
    assert launch.here("true", cwd=project).code == 2
