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

_PROGRAM = """\
import os, socket, sys, time
name, index = os.environ["JOB_NAME"], os.environ["TASK_INDEX"]
ps = next(word for word in sys.argv if word.startswith("--ps_hosts=")).partition("=")[2].split(":")
if name == "ps":
    server = socket.create_server((ps[0], int(ps[1])))
    friends = [server.accept() for _ in range(2)]
    time.sleep(600)
for _ in range(400):  # the ps may take a moment, or be lost before we have met it
    try:
        link = socket.create_connection((ps[0], int(ps[1])))
        break
    except OSError:
        time.sleep(0.05)
else:
    sys.exit("the ps is lost")
attempt = os.environ["LAUNCH_ATTEMPT"]
if attempt != "1":
    sys.exit(print("restored step 100"))
for step in range(501):
    print("step", step)
if index == "0" and "--checkpoints" in sys.argv:
    sys.exit()
try:
    link.recv(1)
except OSError:
    pass
time.sleep(0.5)  # the kernel closes the sockets of the ps before its end can be seen
sys.exit("the ps is lost")
"""


def python_blocks() -> list[str]:
    """The examples of the document."""
    return re.findall(r"^```python\n(.*?)^```", (TOP / "docs" / "testing.md").read_text(), re.M | re.S)


def test_examples_of_the_document(plugged: pytest.Pytester):
    """Those of containers are run in tests/docker/test_outside.py."""
    blocks = [block for block in python_blocks() if "docker:" not in block]
    assert len(blocks) == len(python_blocks()) - 1 == 3
    (plugged.path / "train.py").write_text(_PROGRAM)
    (plugged.path / "test_document.py").write_text("\n".join(blocks))
    plugged.runpytest_subprocess("--strict-config", "-W", "error", timeout=150).assert_outcomes(passed=4)


def test_the_project_that_is_an_example(plugged: pytest.Pytester):
    """Outside the checkout, by the line in its README."""
    folder = plugged.path / "examples" / "pytest_cluster"
    shutil.copytree(TOP / "examples" / "pytest_cluster", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (line,) = re.findall(r"^    (\S.*)$", (folder / "README.md").read_text(), re.M)
    command = line.replace("&& pytest", f"&& {sys.executable} -m pytest")
    done = subprocess.run(
        ["sh", "-c", command], cwd=plugged.path, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
