"""The engines of other machines: what is made of what their hosts answer, over errands that are played."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from launcher.cli.dockerowner import labels
from launcher.cli.dockyards import Dockyards, engine_variables
from launcher.errors import HostsError
from launcher.job import Host
from launcher.transport.docker.settings import KEPT, MACHINE, OWNER

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]

INFO = {"ServerVersion": "24.0.7", "OSType": "linux", "Architecture": "x86_64", "SecurityOptions": None}
FINE = {"user": "1:2", "info": INFO, "found": []}


class PlayedErrand:
    """Answers as it is told to; see `launcher.transport.base.Errand`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._ours, self._its = socket.socketpair()
        self._ours.setblocking(False)
        self.asked: list[Mapping[str, Any]] = []

    def fileno(self) -> int:
        """See `Errand.fileno`."""
        return self._ours.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `Errand.recv`."""
        try:
            return self._ours.recv(size)
        except BlockingIOError:
            return None

    def send(self, data: bytes | memoryview) -> int:
        """See `Errand.send`."""
        request = json.loads(bytes(data))
        self.asked.append(request)
        self._its.sendall(json.dumps(self._answer(request)).encode() + b"\n")
        return len(data)

    def wait(self, seconds: float) -> int | None:
        """See `Errand.wait`."""
        return 0

    def said(self) -> str:
        """See `Errand.said`."""
        return ""

    def close(self) -> None:
        """See `Errand.close`."""
        self._ours.close()
        self._its.close()


class World:
    """Some hosts, whose answers a test chooses."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.errands: dict[str, PlayedErrand] = {}
        self.told: list[str] = []
        self.yards: list[Dockyards] = []

    def errand(self, host: str, entry: str, arguments: object) -> PlayedErrand:
        """See `launcher.transport.base.Errands.errand`."""
        self.errands[host] = PlayedErrand(lambda request: self.answers[host](request))
        return self.errands[host]

    def open(self, **answers: Answer) -> Dockyards:
        """The engines of these hosts."""
        self.answers = answers
        self.yards.append(Dockyards([Host(name) for name in answers], self, self.told.append))
        return self.yards[-1]


@pytest.fixture
def world() -> Iterator[World]:
    """Its errands are closed."""
    found = World()
    yield found
    for yards in found.yards:
        yards.close()


def looks(answer: Mapping[str, Any]) -> Answer:
    """Always the same."""
    return lambda _: answer


def fault(text: str, state: str = "failed") -> Answer:
    """As a host answers whose ``docker info`` failed."""
    return looks({"user": "0:0", "fault": text, "state": state, "path": "/bin"})


def test_engines_that_will_do(world: World):
    rootless = {**FINE, "info": {**INFO, "SecurityOptions": ["name=seccomp", "name=rootless"]}}
    yards = world.open(a=looks(FINE), b=looks(rootless))
    yards.look()
    assert (yards.seen["a"].rootless, yards.seen["b"].rootless) == (False, True)
    assert yards.seen["a"].user == "1:2"
    assert not world.told


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (fault("", "missing"), "there is no docker command there (looked for in /bin): is Docker installed?"),
        (
            fault("permission denied while trying to connect to the Docker daemon socket at unix:///x"),
            "you may not use the Docker engine there: `sudo usermod -aG docker $USER`",
        ),
        (
            fault(
                "{}\nERROR: Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"
            ),
            "no Docker engine answers there: is it running?",
        ),
        (
            fault("failed to connect to the docker API at unix:///x; check if the path is correct"),
            "no Docker engine answers there: is it running?",
        ),
        (fault("its Docker engine does not answer", "slow"), "its Docker engine does not answer"),
        (fault("odd"), "its Docker engine can't be used: odd"),
        (
            looks({**FINE, "info": {**INFO, "OSType": "windows"}}),
            "its Docker engine runs windows containers, not Linux",
        ),
        (
            looks({**FINE, "info": {**INFO, "ServerVersion": "1.13.1"}}),
            "its Docker engine is too old: 1.13.1; 17.06 or newer is needed",
        ),
    ],
)
def test_engines_that_will_not_do(world: World, answer: Answer, told: str):
    yards = world.open(a=answer, b=looks(FINE), c=answer)
    with pytest.raises(HostsError) as caught:
        yards.look()
    faults = caught.value.faults
    assert all(line.startswith(f"{name}: {told}") for name, line in zip("ac", faults, strict=True))


def test_what_is_left_of_the_dead(world: World):
    mine = labels()
    pid, *others = mine[OWNER].split(":")
    dead = {**mine, OWNER: ":".join([pid, "1", *others[1:]])}  # of this number, but started at another time

    def found(name: str, marks: Mapping[str, str], kept: str = "") -> list[str]:
        return [f"id-{name}", name, marks[OWNER], marks[MACHINE], kept]

    there = [found("mine", mine), found("dead", dead), found("kept", dead, "1"), ["id", "odd", "x", "y", ""]]
    host: dict[str, Mapping[str, Any]] = {"look": {**FINE, "found": there}, "remove": {"fault": ""}}
    yards = world.open(a=lambda request: host[request["do"]])
    yards.look()
    assert [left.name for left in yards.dead()] == ["dead", "kept"]
    yards.sweep()
    assert world.errands["a"].asked[-1] == {"do": "remove", "ids": ["id-dead"]}
    assert world.told == ["removed what a killed launch had left: dead on a"]
    host["remove"] = {"fault": "device busy"}
    assert yards.remove(yards.dead()) == ["a: device busy"]
    assert yards.dead()[1].labels[KEPT] == "1"


def images(there: str, pulled: str = "") -> Answer:
    """A host that has the image for this kind of machine, or once it is pulled."""
    state = {"there": there}

    def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request["do"] == "pull":
            state["there"] = pulled
            return {"fault": "" if pulled else "Error response from daemon: manifest unknown"}
        return FINE if request["do"] == "look" else {"architecture": state["there"]}

    return answer


def test_images(world: World):
    yards = world.open(a=images("amd64"), b=images("", "arm64"))
    yards.look()
    found = yards.provide("img", "missing")
    assert found["a"] == ""
    assert found["b"].startswith("img is for arm64, the engine's machine is amd64")
    assert world.told == ["pulling the image img on b"]
    assert [request["do"] for request in world.errands["a"].asked] == ["look", "image", "image"]


def test_images_that_can_not_be_had(world: World):
    yards = world.open(a=images("amd64"), b=images(""))
    yards.look()
    with pytest.raises(HostsError, match="^b: there is no image img there, and --pull never forbids"):
        yards.provide("img", "never")
    with pytest.raises(HostsError, match="^b: the image img can't be pulled: manifest unknown$"):
        yards.provide("img", "missing")


def test_which_engine():
    host = Host("a", env=(("DOCKER_HOST", "unix:///x"), ("HOME", "/x"), ("DOCKER_CONTEXT", "c")))
    assert engine_variables(host) == {"DOCKER_HOST": "unix:///x", "DOCKER_CONTEXT": "c"}
