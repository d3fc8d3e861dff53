"""Launch beside a Slurm, and a check that no test leaves a job, a step or a process there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

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
