"""An engine that is lost while a job runs: it hangs, it is stopped."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends import WAITS
from tests.conftest import Launch, Started
from tests.docker import engine as lab
from tests.docker.conftest import alive, jobs, left_of
from tests.docker.engine import BASE, Engine
from tests.seeing import soon

pytestmark = pytest.mark.timeout(200, func_only=True)


@pytest.fixture(scope="module")
def short_lived() -> Iterator[tuple[Engine, Path]]:
    """An engine of these tests' own, which they may stop, with the base image in it; and its folder."""
    if os.getuid() != 0:
        pytest.fail("these tests stop an engine of their own: run them as root, as CI does")
    with lab.own_folder("stopped") as folder, lab.private_engine(folder, alone=True) as engine:
        lab.provide_base(engine)
        yield engine, folder


@pytest.fixture
def start(short_lived: tuple[Engine, Path], launch: Launch, tmp_path: Path) -> Callable[[], Started]:
    """Starts a job there that lasts."""
    words = ("--docker", BASE, "--workers", "2", "--", *WAITS)
    return functools.partial(launch.start, *words, cwd=tmp_path, env={"DOCKER_HOST": short_lived[0].host})


@contextmanager
def hanging(folder: Path) -> Iterator[None]:
    """The engine of this folder answers nothing."""
    dockerd = int((folder / "dockerd.pid").read_text())
    os.kill(dockerd, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(dockerd, signal.SIGCONT)


@pytest.mark.promise("an engine of this machine that hangs or is stopped")
def test_an_engine_that_hangs(short_lived: tuple[Engine, Path], start: Callable[[], Started], launch: Launch):
    """A launch ends all the same, and says what it leaves; that ends with the engine's next answer."""
    engine, folder = short_lived
    started = start().up(2, 60)
    with hanging(folder):
        started.send(signal.SIGINT)
        time.sleep(0.5)
        ended = started.stop(signal.SIGINT, 90)
    assert ended.code == 130, ended.err
    assert "not all of this job was removed" in ended.err
    assert "the Docker engine does not respond within " in ended.err
    soon(lambda: alive(engine, jobs(launch)[0]) == [], 40)
    launch("clean", timeout=60, env={"DOCKER_HOST": engine.host}, code=0)
    assert left_of(engine, jobs(launch)[0]) == []


@pytest.mark.long
def test_an_engine_that_hangs_at_the_start(short_lived: tuple[Engine, Path], start: Callable[[], Started]):
    with hanging(short_lived[1]):
        started = start().until(lambda it: "waiting for this machine: its Docker engine" in it.err, 40)
        ended = started.wait(60, code=125)
    assert "the Docker engine does not respond within 30s: is it stuck?" in ended.err


def test_an_engine_that_is_stopped(
    short_lived: tuple[Engine, Path], start: Callable[[], Started], launch: Launch
):
    engine, folder = short_lived
    started = start().up(2, 60)
    assert len(alive(engine, jobs(launch)[0])) == 2
    lab.stop(folder)
    ended = started.wait(60, code=125)
    # The other one may have been stopped in good order before its container was.
    assert re.search("host worker-[01] is lost: ", ended.err)
    assert "not all of this job was removed" in ended.err
    assert "`launch clean` removes the rest later" in ended.err
