"""What a reader copies works: the examples of docs/testing.md, and the project in examples/."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.testing.conftest import TOP

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(180)

#: The program of the document. It only pretends to have a checkpoint: worker/1 counts until it is killed.
_PROGRAM = """\
import os, sys
if os.environ["LAUNCH_ATTEMPT"] != "1":
    sys.exit(print("restored step 100"))
if "--checkpoints" in sys.argv:
    sys.argv[1:3] = ["--steps", "1" if os.environ["TASK_INDEX"] == "0" else "100000"]
import counting
"""
_EXAMPLE = TOP / "examples" / "pytest_cluster"


def python_blocks() -> list[str]:
    """The examples of the document."""
    return re.findall(r"^```python\n(.*?)^```", (TOP / "docs" / "testing.md").read_text(), re.M | re.S)


def test_examples_of_the_document(plugged: pytest.Pytester):
    """Those of containers are run in tests/docker/test_outside.py."""
    blocks = [block for block in python_blocks() if "docker:" not in block]
    assert len(blocks) == len(python_blocks()) - 1 == 3
    (plugged.path / "train.py").write_text(_PROGRAM)
    shutil.copy(_EXAMPLE / "counting.py", plugged.path)
    (plugged.path / "test_document.py").write_text("\n".join(blocks))
    plugged.runpytest_subprocess("--strict-config", "-W", "error", timeout=150).assert_outcomes(passed=4)


def test_the_project_that_is_an_example(plugged: pytest.Pytester):
    """Outside the checkout, by the line in its README."""
    folder = plugged.path / "examples" / "pytest_cluster"
    shutil.copytree(_EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (line,) = re.findall(r"^    (\S.*)$", (folder / "README.md").read_text(), re.M)
    command = line.replace("&& pytest", f"&& {sys.executable} -m pytest")
    done = subprocess.run(
        ["sh", "-c", command], cwd=plugged.path, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
