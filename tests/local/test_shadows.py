"""No process of ours imports modules of the current folder; a program finds them only where Python looks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Launch
from tests.local.board import FOLDER, page_of, url_of, waits_for

#: Writes down that it was imported.
SHADOW = "import os\nwith open({log!r}, 'a') as file:\n    file.write({name!r} + '\\n')\n"
OTHERS = ("argcomplete", "cloudpickle", "launcher", "paramiko", "pathspec", "psutil", "yaml")
LAUNCH = str(Path(sys.executable).with_name("launch"))
API = """\
import launcher
from launcher import TFParallel
def task(args, ctx):
    return 7
if __name__ == "__main__":
    print(launcher.run(["-c", "print('it ran')"], workers=1).exit_code, TFParallel.run(task, (), 1))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A current folder with a module of each name; the programs are in a folder of it."""
    folder = tmp_path / "current"
    (folder / "programs").mkdir(parents=True)
    for name in (*sys.stdlib_module_names, *OTHERS):
        (folder / f"{name}.py").write_text(SHADOW.format(log=str(tmp_path / "shadows"), name=name))
    return folder


@pytest.mark.parametrize("command", ["launch", "-m"])
def test_preloaded_modules(launch: Launch, folder: Path, command: str):
    if command == "-m":  # what Python imports before our first line is not ours
        for name in ("pkgutil", "runpy", "launcher", *sys.modules):
            (folder / f"{name}.py").unlink(missing_ok=True)
    (folder / "programs/train.py").write_text("print('it ran')")
    argv = [LAUNCH] if command == "launch" else COMMAND
    words = ["--preload", "json.tool", "programs/train.py"]
    ended = launch(*words, cwd=folder, command=argv, timeout=60, code=0)
    assert "has no effect" not in ended.err
    assert not (folder.parent / "shadows").exists(), (folder.parent / "shadows").read_text()


def test_the_python_api(launch: Launch, folder: Path):
    (folder / "programs/drive.py").write_text(API)
    ended = launch("programs/drive.py", cwd=folder, command=[sys.executable], timeout=60, code=0)
    assert "0 [7]" in ended.out
    shadows = folder.parent / "shadows"
    assert not shadows.exists(), shadows.read_text()


def test_tensorboard(launch: Launch, folder: Path):
    done = folder / "done"
    words, env = ["--tensorboard", "--", *waits_for(done)], {"PYTHONPATH": str(FOLDER)}
    started = launch.start(*words, cwd=folder, env=env, command=[LAUNCH])
    assert "<title>TensorBoard</title>" in page_of(url_of(started))
    done.touch()
    assert started.wait().code == 0
    assert not (folder.parent / "shadows").exists(), (folder.parent / "shadows").read_text()
