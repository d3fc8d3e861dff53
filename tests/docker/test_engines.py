"""An engine that is lost while a job runs: it hangs, it is stopped."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from launcher.job import Host
from launcher.transport.docker import leftovers, pulse
from launcher.transport.docker.engine import connect
from launcher.transport.docker.fleet import Fleet
from launcher.transport.docker.link import DockerLink
from launcher.transport.docker.settings import MACHINE, OWNER, Container
from tests.conftest import Launch
from tests.docker import engine as lab
from tests.docker.conftest import alive, jobs
from tests.docker.engine import BASE, Engine
from tests.local.seeing import alive as is_alive

pytestmark = pytest.mark.timeout(200, func_only=True)


@pytest.fixture(scope="module")
def short_lived(
    real_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Path]]:
    """An engine of these tests' own, which they may stop, with the base image in it; and its folder."""
    if os.getuid() != 0:
        pytest.fail("these tests stop an engine of their own: run them as root, as CI does")
    folder = tmp_path_factory.mktemp("engine")
    with lab.private_engine(folder, alone=True) as engine:
        image = folder / "image.tar"
        real_engine.docker("save", "-o", str(image), BASE, timeout=120)
        engine.docker("load", "-i", str(image), timeout=120)
        image.unlink()
        yield engine, folder


def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """What an engine is asked and does not answer, or not to the end: questions, and a word now and then."""
    questions: list[str] = []
    pings: list[str] = []
    send = docker.APIClient.send

    def sent(self: Any, request: Any, **more: Any) -> Any:
        try:
            return send(self, request, **more)
        except (TimeoutError, requests.Timeout, requests.ConnectionError):
            (pings if request.path_url.endswith("/_ping") else questions).append(request.path_url)
            raise

    monkeypatch.setattr(docker.APIClient, "send", sent, raising=False)
    return questions, pings


def test_an_engine_that_hangs(short_lived: tuple[Engine, Path], monkeypatch: pytest.MonkeyPatch):
    """It is asked once, not once for each container and question; so the launcher comes to its end."""
    monkeypatch.setattr("launcher.transport.docker.engine._SOON", 2)
    monkeypatch.setattr("launcher.transport.docker.fleet._KILLING", 60.0)
    questions, pings = noted(monkeypatch)
    engine, folder = short_lived
    found = connect({"DOCKER_HOST": engine.host})
    containers = [Container(f"worker-{index}", BASE, "python3") for index in range(3)]
    told: list[str] = []
    dockerd = int((folder / "dockerd.pid").read_text())
    try:
        with Fleet(found, "hangs", containers, {OWNER: "a test", MACHINE: "a test"}, told.append) as fleet:
            fleet.start()
            questions.clear()
            pings.clear()
            os.kill(dockerd, signal.SIGSTOP)
            said = {fleet.open(Host(one.host)).wait(3) for one in containers}
        assert len(questions) <= 1, questions
        assert questions or pings, "it was asked nothing: who says that it hangs?"
    finally:
        os.kill(dockerd, signal.SIGCONT)
        found.close()
    answer = f"the Docker engine at {engine.host} does not answer"
    assert said == {f"{answer}: how its container is can't be known"}
    assert [line for line in told if "not all of this job is removed" in line and answer in line]
    again = connect({"DOCKER_HOST": engine.host})
    assert leftovers.remove(again, leftovers.things(again, "hangs"), 60) == []
    again.close()


def test_an_engine_that_hangs_while_tasks_run(
    short_lived: tuple[Engine, Path], monkeypatch: pytest.MonkeyPatch
):
    """That is told, and borne for a while; then every link is at its end, and nothing runs any more."""
    monkeypatch.setattr("launcher.transport.docker.fleet._KILLING", 60.0)
    for name, seconds in {"EVERY": 0.2, "PATIENCE": 20.0, "LONGER": 0.5, "LIMIT": 2.0}.items():
        monkeypatch.setattr(pulse, name, seconds)
    engine, folder = short_lived
    found = connect({"DOCKER_HOST": engine.host})
    containers = [Container(f"worker-{index}", BASE, "python3") for index in range(2)]
    told: list[str] = []
    dockerd = int((folder / "dockerd.pid").read_text())
    try:
        with Fleet(found, "sticks", containers, {OWNER: "a test", MACHINE: "a test"}, told.append) as fleet:
            fleet.start()
            links = [fleet.open(Host(one.host)) for one in containers]
            for link in links:
                assert _said(link), "its agent is there"
            running = engine.lines("top", fleet.name("worker-0"), "-o", "pid")[1:]
            monkeypatch.setattr(pulse, "PATIENCE", 1.0)
            os.kill(dockerd, signal.SIGSTOP)
            for link in links:
                while _said(link):
                    pass
            said = {link.wait(3) for link in links}
    finally:
        os.kill(dockerd, signal.SIGCONT)
        found.close()
    at = f"the Docker engine at {engine.host} does not answer"
    assert told[0] == f"{at}; the tasks go on, unseen; waiting for 2 s"
    assert said == {f"{at}: how its container is can't be known"}
    assert "nothing runs in its containers any more" in told[-1]
    assert running
    assert not [pid for pid in running if is_alive(int(pid))]
    again = connect({"DOCKER_HOST": engine.host})
    assert leftovers.remove(again, leftovers.things(again, "sticks"), 60) == []
    again.close()


def _said(link: DockerLink) -> bytes:
    """The next that its agent says; empty at the end."""
    while select.select([link.reading], [], [], 30)[0]:
        data = link.read(1 << 16)
        if data is not None:
            return data
    raise AssertionError("it says nothing")


def test_an_engine_that_is_stopped(short_lived: tuple[Engine, Path], launch: Launch, tmp_path: Path):
    engine, folder = short_lived
    started = launch.start(
        "--docker", BASE, "--workers", "2", "--", "sh", "-c", "echo up; exec sleep 600",
        cwd=tmp_path, env={"DOCKER_HOST": engine.host},
    )  # fmt: skip
    started.until(lambda it: it.out.count("up") == 2, 60)
    assert len(alive(engine, jobs(launch)[0])) == 2
    lab.stop(folder)
    ended = started.wait(60)
    assert ended.code == 125
    # The other one may have been stopped in good order before its container was.
    assert re.search("host worker-[01] is lost: ", ended.err)
    assert "not all of this job is removed" in ended.err
    assert "`launch clean` does that later" in ended.err
