"""An agent in a container, as a porter keeps it: with a ``docker`` that does what a test wants."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.agent import kernel
from launcher.agent.container import ContainerWard, kill
from launcher.model.container import ENDED

#: Notes its arguments; `run` says what it hears until that ends, `rm` ends `run` as the engine would.
DOCKER = """#!/bin/sh
echo "$@" >>{folder}/asked
case $1 in
rm) kill -9 $(/bin/cat {folder}/pid) 2>/dev/null; echo gone; exit 0;;
run) echo $$ >{folder}/pid; echo "for stderr $WHERE" >&2; {does};;
esac
"""


class Yard:
    """A folder with a ``docker``, and wards whose containers it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wards: list[ContainerWard] = []

    def ward(self, does: str) -> ContainerWard:
        """One whose ``docker run`` does this."""
        docker = self.folder / "docker"
        docker.write_text(DOCKER.format(folder=self.folder, does=does))
        docker.chmod(0o755)
        there = {"run": ["docker", "run", "x y"], "name": "it", "env": {"WHERE": "here"}}
        self.wards.append(ContainerWard(there, "node1", 1))
        return self.wards[-1]

    def kill_all(self, seconds: float, reap: Callable[[], None]) -> list[int]:
        """See `launcher.agent.kernel.kill_descendants`."""
        for ward in self.wards:
            try:
                os.killpg(ward._pid, signal.SIGKILL)
                os.waitid(os.P_PID, ward._pid, os.WEXITED | os.WNOWAIT)
            except (ProcessLookupError, ChildProcessError):  # it has been seen to before
                continue
        reap()
        return []

    @property
    def asked(self) -> list[str]:
        """With which arguments it was called."""
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """Nothing of its wards is left."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = Yard(tmp_path)
    # A porter has no other children; we may.
    monkeypatch.setattr(kernel, "kill_descendants", found.kill_all)
    yield found
    for ward in found.wards:
        ward.kill()
        for fd in (ward.orders, ward.facts, ward.errors):
            if fd >= 0:
                os.close(fd)


def until_over(ward: ContainerWard) -> dict[str, object]:
    """Its last words, when it is over."""
    deadline = time.monotonic() + 10
    while not ward.over():
        assert time.monotonic() < deadline
        select.select([fd for fd in (ward.errors,) if fd >= 0], [], [], 0.05)
        if ward.errors >= 0:
            ward.read_errors()
    words = ward.last_words()
    assert words.startswith(ENDED)
    found: dict[str, object] = json.loads(words[len(ENDED) :])
    return found


def facts_of(ward: ContainerWard) -> bytes:
    """All it says, to the end."""
    said = b""
    while select.select([ward.facts], [], [], 10)[0]:
        data = ward.read_facts(1 << 16)
        if not data:
            return said
        said += data
    raise AssertionError(said)


def test_its_pipes_are_those_of_the_container(yard: Yard):
    ward = yard.ward("/bin/cat; exit 7")
    os.write(ward.orders, b"orders")
    ward.close_orders()
    assert facts_of(ward) == b"orders"
    assert until_over(ward) == {"code": 7, "said": "for stderr here"}
    assert ward.kill() == []
    assert yard.asked == ["run x y"]


def test_one_that_does_not_end_is_removed(yard: Yard):
    ward = yard.ward("exec /bin/sleep 600")
    assert select.select([ward.errors], [], [], 10)[0]
    assert not ward.over()
    assert ward.kill() == []
    assert yard.asked == ["run x y", "rm --force --volumes it"]
    assert until_over(ward)["code"] is None


def test_a_command_that_was_killed(yard: Yard):
    ward = yard.ward("kill -9 $$")
    assert until_over(ward)["code"] is None
    ward.kill()
    assert yard.asked[-1] == "rm --force --volumes it"


@pytest.mark.parametrize(("does", "removed"), [("echo facts; exit 125", True), ("exit 125", False)])
def test_a_command_that_lost_its_engine(yard: Yard, does: str, removed: bool):
    ward = yard.ward(does)
    facts_of(ward)
    assert until_over(ward)["code"] == 125
    ward.kill()
    # One that never spoke may be another's, of the same name.
    assert (yard.asked[-1] == "rm --force --volumes it") is removed


def test_no_command(yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/no/such")
    ward = ContainerWard({"run": ["docker", "run"], "name": "it", "env": {}}, "node1", 1)
    yard.wards.append(ward)
    assert until_over(ward) == {"code": 127, "said": "docker: No such file or directory"}


def test_the_errand_that_kills_removes_the_container_too(yard: Yard):
    (yard.folder / "pid").write_text("")
    yard.ward("exit 0")
    there = {"name": "it", "env": {}}
    assert kill({"agent": 2, "container": there}) == 0
    (yard.folder / "docker").write_text("#!/bin/sh\necho busy; exit 1\n")
    assert kill({"agent": 2, "container": there}) == 1
    (yard.folder / "docker").write_text("#!/bin/sh\necho Error: No such container: it; exit 1\n")
    assert kill({"agent": 2, "container": there}) == 0
