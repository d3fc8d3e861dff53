"""Launch beside a Slurm, and a check that no test leaves a job, a step or a process there."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import Launch, Started
from tests.seeing import is_soon
from tests.slurm.cluster import Cluster


@pytest.fixture
def clean(slurm: Cluster, held: dict[str, str]) -> Iterator[None]:
    """Nothing of the test is left."""
    before = slurm.jobs()
    yield
    # An agent waits for another connection five times as long as its first one took.
    gone = is_soon(lambda: not slurm.left(before), 40)
    left = slurm.left(before)
    for job in set(slurm.jobs()) - set(before):
        slurm.run("scancel", job, check=False)
    assert gone, left


@pytest.fixture
def start(slurm: Cluster, launch: Launch, clean: None) -> Callable[..., Started]:
    """Starts launch on the login host, outside an allocation unless ``env`` is of one."""
    return functools.partial(slurm.start, launch)


@pytest.fixture
def without_slurm(tmp_path: Path) -> tuple[str, ...]:
    """The beginning of a command that finds no command of Slurm."""
    for name in ("sh", "env", "cat", "true"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    return ("env", f"PATH={tmp_path}")


@pytest.fixture
def sbatch(slurm: Cluster, launch: Launch, clean: None, tmp_path: Path) -> Callable[..., str]:
    """Submits a script that starts launch: the number of the job. What it prints goes to the file ``out``."""

    def submitted(words: Sequence[str], *options: str) -> str:
        file = tmp_path / "job.sh"
        file.write_text(f"#!/bin/sh\nexec {sys.executable} -m launcher {shlex.join(words)}\n")
        environ = ",".join(f"{name}={value}" for name, value in launch.environment().items())
        given = (f"--output={tmp_path}/out", f"--chdir={tmp_path}", f"--export=ALL,{environ}", "--parsable")
        return slurm.run("sbatch", *given, *options, str(file), check=False)

    return submitted
