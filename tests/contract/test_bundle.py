"""The agent needs nothing of ours but what travels, and no Python newer than 3.8."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import events
from tests.conftest import MARK
from tests.contract.driver import Driver

PACKAGE = Path(__file__).parents[2] / "launcher"
#: What an agent's host gets; ``launcher/__init__.py`` may be empty there.
TRAVELS = ("model", "processes", "agent", "wire.py", "errors.py", "events.py", "job.py", "text.py")


def pythons() -> list[str]:
    """The oldest Python that will do, if this machine has one that runs, and the one that runs this."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))]
    runs = [
        path
        for path in filter(None, found)
        if subprocess.run([path, "-V"], capture_output=True).returncode == 0
    ]
    return [*runs[:1], sys.executable]


class PipeLink:
    """A link to a command's stdin and stdout."""

    same_clock = True

    def __init__(self, argv: list[str], cwd: Path) -> None:
        self._process = subprocess.Popen(
            argv, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin and self._process.stdout
        self.writing, self.reading = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self.reading, False)

    def read(self, size: int) -> bytes | None:
        """See `launcher.transport.base.Link`."""
        try:
            return os.read(self.reading, size)
        except BlockingIOError:
            return None

    def write(self, data: bytes | memoryview) -> int:
        """See `launcher.transport.base.Link`."""
        return os.write(self.writing, data)

    def wait(self, seconds: float) -> str | None:
        """See `launcher.transport.base.Link`."""
        assert self._process.stderr
        said = self._process.stderr.read().decode()
        return said or str(self._process.wait(seconds) or "")

    def kill(self, seconds: float) -> str | None:
        """Not needed: nothing here refuses to end."""
        return self.wait(seconds)

    def hang_up(self) -> None:
        """See `launcher.transport.base.Link`."""
        assert self._process.stdin
        self._process.stdin.close()

    def close(self) -> None:
        """See `launcher.transport.base.Link`."""
        assert self._process.stdout and self._process.stderr
        self.hang_up()
        self._process.stdout.close()
        self._process.stderr.close()


@pytest.fixture(params=pythons(), ids=lambda path: Path(path).name)
def agent(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> Iterator[Driver]:
    """An agent that runs from a folder with nothing else in it."""
    home = tmp_path / "bundle" / "launcher"
    home.mkdir(parents=True)
    (home / "__init__.py").touch()
    for name in TRAVELS:
        if (PACKAGE / name).is_dir():
            # What is compiled is written by whoever imports it first, also now.
            shutil.copytree(PACKAGE / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PACKAGE / name, home / name)
    code = "import sys; sys.path[:0] = ['.']; from launcher.agent.__main__ import main; main('far')"
    argv = [request.param, "-I", "-S", "-W", "error", "-B", "-c", code]
    driver = Driver(PipeLink(argv, home.parent), "far", {MARK: nothing_left})
    driver.ready()
    yield driver
    driver.link.hang_up()
    assert driver.to_the_end() == ""
    driver.link.close()


def test_the_basics(agent: Driver):
    assert agent.hold("worker/0", "worker/1")
    assert agent.run("worker/0", ["sh", "-c", "echo out; exit 7"]).code == 7
    assert agent.output("worker/0") == b"out\n"
    agent.refused("worker/2", ["no-such-program-anywhere"])
    agent.start("worker/1", ["sh", "-c", "trap '' TERM; setsid sleep 600 & echo up; sleep 600"])
    agent.prints("worker/1", b"up")
    agent.stopped("worker/1")
    assert agent.wait(events.TaskExited, "worker/1").signal == 9


def test_memory_evidence_and_strays(agent: Driver):
    """What is imported or used late must be there too."""
    agent.start("worker/0", ["sh", "-c", "kill -9 $$"])
    assert agent.wait(events.TaskExited).oom == ""
    agent.start(
        "worker/1",
        ["sh", "-c", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & echo up; sleep 600"],
    )
    agent.prints("worker/1", b"up")
    agent.stopped("worker/1", ladder=((15, 0.1), (6, 0.1), (9, 5.0)))
    assert agent.close() == ""
