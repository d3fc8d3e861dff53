"""The exit code of ``launch`` is the same in containers, here and on hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Ended, Launch
from tests.docker.engine import BASE, Engine
from tests.docker.host_engines import Site

#: How a backend is asked for.
BACKENDS = {
    "docker": ["--docker", BASE],
    "docker over ssh": ["--docker", BASE, "--sync", ".", "--hosts"],
}

#: Case -> (options, program, exit code).
CASES: dict[str, tuple[list[str], list[str], int]] = {
    "its own code": ([], ["sh", "-c", "exit 7"], 7),
    "killed by a signal": ([], ["sh", "-c", "kill -11 $$; sleep 60"], 139),
    "not found": ([], ["no-such-program-anywhere"], 127),
    "not runnable": ([], ["./plain"], 126),
    "the first of several": (["--workers", "3"], ["sh", "-c", "[ $TASK_INDEX = 1 ] && exit 9; sleep 60"], 9),
    "a ps is stopped": (
        ["--ps", "1", "--workers", "1"],
        ["sh", "-c", "[ $JOB_NAME = ps ] && sleep 60; true"],
        0,
    ),
    "too long": (["--timeout", "1"], ["sleep", "60"], 124),
}


@pytest.fixture(scope="module", autouse=True)
def engines(real_engine: Engine, two_hosts: Site) -> None:
    """They are there before a test looks at what is open."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, launch: Launch) -> list[str]:
    """The options for each backend in turn; it is there."""
    if request.param == "docker":
        request.getfixturevalue("docker")
    if request.param == "docker over ssh":
        return [*BACKENDS[request.param], request.getfixturevalue("hostfile")]
    return BACKENDS[request.param]


@pytest.mark.parametrize("case", CASES)
def test_exit_code(backend: list[str], launch: Launch, tmp_path: Path, case: str):
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    options, program, code = CASES[case]
    ended = launch(*backend, "--grace", "1", *options, "--", *program, cwd=tmp_path, timeout=60)
    assert ended.code == code, ended.err


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_exit_code_of_a_job_that_was_stopped(
    backend: list[str], launch: Launch, tmp_path: Path, number: int, code: int
):
    assert stopped(launch, tmp_path, backend, number).code == code


def stopped(launch: Launch, folder: Path, options: list[str], number: int) -> Ended:
    """A job that got a signal when its tasks were up."""
    started = launch.start(
        *options, "--workers", "2", "--", "sh", "-c", "echo up; exec sleep 600", cwd=folder
    )
    started.until(lambda it: it.out.count("up") == 2, 40)
    started.send(number)
    return started.wait(40)
