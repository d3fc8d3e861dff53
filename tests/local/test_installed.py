"""What `make wheel` builds, in environments that have nothing else; and each Python of this machine."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import launcher
from tests.conftest import Launch
from tests.local.test_mistakes import furnish, listed
from tests.pythons import python_of
from tests.seeing import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

#: All tests run on this one.
_THIS = f"3.{sys.version_info.minor}"
_OTHERS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if version != _THIS]

#: Runs command lines, and prints for each the exit code and what it wrote to stderr.
_ANSWERS = """
import contextlib, io, json, sys
from launcher.__main__ import _run
answers = []
for words in json.loads(sys.argv.pop()):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        answers.append((_run(words), err.getvalue()))
print(json.dumps(answers))
"""


def _run(*argv: str | Path, cwd: Path = ROOT, timeout: float = 500) -> str:
    words = [str(word) for word in argv]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by ``make wheel`` from a copy of the sources."""
    copy = tmp_path_factory.mktemp("wheel") / "sources"
    copy.mkdir()
    for name in ("LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, copy)
    for name in (".ci", "launcher", "docs", "hostfiles"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    _run("make", "--no-print-directory", "wheel", f"PYTHON={sys.executable}", cwd=copy)
    (built,) = (copy / "dist").glob("tf_launcher-*.whl")
    return built


def _installed(python: str, wanted: str, folder: Path) -> Path:
    """The ``bin`` of a new environment that has this, and what it requires."""
    _run(python, "-m", "venv", "--without-pip", folder)
    install = ROOT / ".ci" / "install.py"
    _run(sys.executable, install, folder, "--constraint", ROOT / "constraints.txt", wanted)
    return folder / "bin"


def _run_a_job(commands: Path, version: str, launch: Launch, folder: Path) -> None:
    program = folder / "train.py"
    program.write_text("import os\nprint('I am', os.environ['JOB_NAME'], os.environ['TASK_INDEX'])\n")
    words = ("--ps", "1", "--workers", "2", "--report", folder / "report.json", program)
    ended = launch(*words, command=[str(commands / "launch")], cwd=folder, timeout=60, code=0)
    assert "worker/1 | I am worker 1" in ended.out
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert len(report["tasks"]) == 3
    shown = launch("--version", command=[str(commands / "launch")], cwd=folder)
    assert shown.out.startswith(f"launch {launcher.__version__}, Python {version}.")
    text = launch("--help", command=[str(commands / "launch")], cwd=folder).out
    documentation = Path(text.splitlines()[-1].removeprefix("documentation: "))
    assert documentation.is_relative_to(commands.parent) and (documentation / "hangs.md").is_file()


@pytest.mark.promise("the wheel in an empty environment; each Python of this machine")
def test_the_wheel_runs_a_job_in_an_empty_environment(wheel: Path, launch: Launch, tmp_path: Path):
    commands = _installed(sys.executable, str(wheel), tmp_path / "environment")
    _run_a_job(commands, _THIS, launch, tmp_path)
    _run(commands / "python", "-c", "import launcher, launcher.testing; launcher.TFCluster")


@pytest.mark.promise("the wheel in an empty environment; each Python of this machine")
@pytest.mark.parametrize("version", _OTHERS)
def test_local_jobs_on_the_pythons_of_this_machine(version: str, wheel: Path, launch: Launch, tmp_path: Path):
    python = python_of(version)
    if python is None:
        pytest.skip(f"not tested: there is no Python {version} on this machine")
    commands = _installed(python, str(wheel), tmp_path / "environment")
    _run_a_job(commands, version, launch, tmp_path)
    furnish(tmp_path)
    # Python's argparse parses them.
    lines = json.dumps([shlex.split(words) for words in listed("misspelt.txt")])
    asked = ("-I", "-c", _ANSWERS, lines)
    answers, own = (_run(python, *asked, cwd=tmp_path) for python in (commands / "python", sys.executable))
    assert json.loads(answers) == json.loads(own)
    assert {code for code, _ in json.loads(own)} == {2}
