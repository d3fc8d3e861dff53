"""The examples of a CI test are run: what a reader copies works."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import Launch, executable
from tests.docker.engine import BASE, Engine
from tests.seeing import ROOT

pytest_plugins = ["pytester"]

EXAMPLE = ROOT / "examples" / "ci"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Another project, with the example in it, and a ``launch`` along the PATH."""
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLE, folder)
    command = tmp_path / "bin" / "launch"
    executable(command, f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m launcher "$@"\n')
    return folder


def test_the_script(docker: Engine, launch: Launch, project: Path):
    path = f"{project.parent / 'bin'}:{os.environ['PATH']}"
    environ = {"IMAGE": BASE, "PATH": path}
    ended = launch.start(command=["./test-cluster.sh"], cwd=project, env=environ).wait(90, code=0)
    assert "worker/0 | ps-0 greets worker-0" in ended.out
    report = json.loads((project / "cluster-report.json").read_text())
    assert [task["state"] for task in report["tasks"]] == ["succeeded", "succeeded", "stopped"]


def test_the_test_for_pytest(docker: Engine, launch: Launch, plugged: pytest.Pytester, project: Path):
    command = [sys.executable, "-m", "pytest"]
    ended = launch.start(command=command, cwd=project, env={"IMAGE": BASE}).wait(90, code=0)
    assert "1 passed" in ended.out.splitlines()[-1]


def test_the_workflow_runs_them():
    workflow = yaml.safe_load((EXAMPLE / "workflow.yml").read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["cluster"]["steps"]]
    assert steps.index("./test-cluster.sh") < steps.index("pytest")
