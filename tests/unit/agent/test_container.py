"""An agent in a container, as a porter keeps it: with a ``docker`` that does what a test wants."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.agent import inside, lease, pulse
from launcher.agent.container import ContainerWard, kill
from launcher.model.container import ENDED, ENDED_THERE, REMARK, SAID, UNSEEN, framed
from launcher.model.watermark import agent_number
from launcher.processes import kernel
from launcher.stream.frames import MOST_WORDS
from tests.local.seeing import soon

#: Notes its arguments; `run` says what it hears until that ends, `rm` ends `run` as the engine would. While
#: there is a file `stuck`, `version` gets no answer, and says `held`; with one called `gone` there is no
#: engine any more.
DOCKER = """#!/bin/sh
echo "$@" >>{folder}/asked
case $1 in
version) while [ -e {folder}/stuck ]; do : >{folder}/held; /bin/sleep 0.02; done
    [ ! -e {folder}/gone ]; exit $?;;
rm) [ -e {folder}/gone ] && exit 1; kill -9 $(/bin/cat {folder}/pid) 2>/dev/null; echo gone; exit 0;;
run) echo $$ >{folder}/pid; echo "for stderr $WHERE" >&2; {does};;
esac
"""

#: The number that the processes in these containers carry: nobody else's.
MARK = agent_number(int.from_bytes(os.urandom(8), "little"))
#: Seconds that an engine which does not answer is waited for.
PATIENCE = 0.5
#: What the last words say where nothing went wrong.
FINE = {"forced": False, "silent": 0.0, "inside": ""}
QUESTION = "version --format {{.Server.Version}}"
#: Seconds for what takes a moment, on a machine that has other work too.
SOON = 40.0


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
        there = {"run": ["docker", "run", "x y"], "name": "it", "env": {"WHERE": "here"}, "mark": MARK}
        self.wards.append(ContainerWard(there, PATIENCE, "node1", 1))
        pid = self.wards[-1]._pid
        soon(lambda: os.getpgid(pid) == pid, SOON)  # so it can be killed with all that it starts
        return self.wards[-1]

    def stick(self) -> None:
        """The engine does not answer any more, and was asked something."""
        (self.folder / "stuck").touch()
        soon((self.folder / "held").exists, SOON)

    def come_back(self) -> None:
        """It does again."""
        (self.folder / "stuck").unlink()

    def kill_all(self, seconds: float, reap: Callable[[], None]) -> list[int]:
        """See `launcher.processes.kernel.kill_descendants`."""
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
    # No porter's loop is here to look at the clock, nor does a test wait for the first question.
    monkeypatch.setattr(lease, "_BEGINNING", 3600.0)
    monkeypatch.setattr(pulse, "FIRST", 3600.0)
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
    deadline = time.monotonic() + SOON
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
    while select.select([ward.facts], [], [], SOON)[0]:
        data = ward.read_facts(1 << 16)
        if not data:
            return said
        assert data.startswith(framed(SAID, data[8:])[:8])
        said += data[8:]
    raise AssertionError(said)


def test_its_pipes_are_those_of_the_container(yard: Yard):
    ward = yard.ward("/bin/cat; exit 7")
    os.write(ward.orders, b"orders")
    ward.close_orders()
    assert facts_of(ward) == b"orders"
    assert until_over(ward) == {**FINE, "code": 7, "said": "for stderr here"}
    assert ward.kill() == []
    assert yard.asked == ["run x y"]


def test_whatever_it_said_its_last_words_fit_in_a_frame(yard: Yard, monkeypatch: pytest.MonkeyPatch):
    ward = yard.ward("exit 7")
    assert until_over(ward)["code"] == 7
    monkeypatch.setattr(ward, "said", lambda: "\U0001f600" * 100_000)
    words = ward.last_words()
    assert len(words.encode()) < MOST_WORDS
    assert str(json.loads(words[len(ENDED) :])["said"]).strip("\U0001f600") == ""


def test_one_that_does_not_end_is_removed(yard: Yard):
    ward = yard.ward("exec /bin/sleep 600")
    assert select.select([ward.errors], [], [], SOON)[0]
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
    there = {"run": ["docker", "run"], "name": "it", "env": {}, "mark": MARK}
    ward = ContainerWard(there, PATIENCE, "node1", 1)
    yard.wards.append(ward)
    assert until_over(ward) == {**FINE, "code": 127, "said": "docker: No such file or directory"}


def test_the_errand_that_kills_removes_the_container_too(yard: Yard):
    until_over(yard.ward("exit 0"))
    there = {"name": "it", "env": {}, "mark": MARK}
    assert kill({"agent": 2, "container": there}) == 0
    (yard.folder / "docker").write_text("#!/bin/sh\necho busy; exit 1\n")
    assert kill({"agent": 2, "container": there}) == 1
    (yard.folder / "docker").write_text("#!/bin/sh\necho Error: No such container: it; exit 1\n")
    assert kill({"agent": 2, "container": there}) == 0


@pytest.fixture
def asked(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are asked all the time; an answer takes as long as the machine lets it."""
    for name, seconds in {"FIRST": 0.02, "EVERY": 0.02, "PATIENCE": 3600.0}.items():
        monkeypatch.setattr(pulse, name, seconds)


@pytest.fixture
def quick(asked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that takes a moment counts as none."""
    monkeypatch.setattr(pulse, "PATIENCE", 0.1)
    monkeypatch.setattr("launcher.agent.container._ENDING", 0.2)


def until_told(ward: ContainerWard) -> str:
    """The next remark on its engine."""
    found = soon(lambda: ward.remark(time.monotonic()), SOON)
    assert found[:8] == framed(REMARK, found[8:])[:8]
    text: str = found[8:].decode()
    return text


def is_deaf_after(ward: ContainerWard, seconds: float, ending: bool = False) -> bool:
    """Whether it counts as such when its engine, which is stuck, has not answered for so long."""
    since = ward._silence.since()
    assert since
    return ward.is_deaf(since + seconds, ending)


@pytest.mark.usefixtures("asked")
def test_an_engine_that_answers_is_not_talked_of(yard: Yard):
    ward = yard.ward("echo facts; exec /bin/cat")
    assert select.select([ward.facts], [], [], SOON)[0]
    assert ward.read_facts(100) == framed(SAID, b"facts\n")
    soon(lambda: yard.asked.count(QUESTION) >= 3, SOON)
    assert ward.remark(time.monotonic()) == b""
    assert not ward.is_deaf(time.monotonic() + 60, ending=True)


@pytest.mark.usefixtures("quick")
def test_an_engine_that_sticks_for_a_while(yard: Yard):
    ward = yard.ward("echo facts; exec /bin/cat")
    assert select.select([ward.facts], [], [], SOON)[0]
    assert ward.read_facts(100) == framed(SAID, b"facts\n")
    yard.stick()
    soon(ward._silence.since, SOON)
    assert until_told(ward) == "its Docker engine does not answer; its tasks go on, unseen; waiting for 0 s\n"
    assert [is_deaf_after(ward, seconds, ending=True) for seconds in (0.1, 0.3)] == [False, True]
    assert [is_deaf_after(ward, seconds) for seconds in (0.4, 0.6)] == [False, True]
    yard.come_back()
    assert until_told(ward).startswith("its Docker engine answers again after ")
    soon(lambda: not ward.is_deaf(time.monotonic() + 60, ending=True), SOON)
    ward.close_orders()
    assert until_over(ward)["code"] == 0


@pytest.mark.usefixtures("quick")
def test_an_engine_that_sticks_for_good(yard: Yard):
    """Whoever waits for it gives up, and does not ask it for anything."""
    ward = yard.ward("exec /bin/sleep 600")
    yard.stick()
    assert "it has not started the container yet" in until_told(ward)
    soon(lambda: ward.is_deaf(time.monotonic(), ending=False), SOON)
    assert [is_deaf_after(ward, seconds) for seconds in (0.4, 0.6)] == [False, True]
    assert ward.kill() == []
    words = json.loads(ward.last_words(forced=True)[len(ENDED) :])
    assert words["silent"] > PATIENCE - 0.1
    assert (words["forced"], words["inside"]) == (True, UNSEEN)
    assert "rm --force --volumes it" not in yard.asked


@pytest.mark.usefixtures("asked")
def test_an_engine_that_refuses_is_not_silent(yard: Yard):
    (yard.folder / "gone").touch()
    ward = yard.ward("exec /bin/sleep 600")
    assert select.select([ward.errors], [], [], SOON)[0]
    soon(lambda: yard.asked.count(QUESTION) >= 3, SOON)
    assert not ward.is_deaf(time.monotonic() + 60, ending=True)


#: A container: a process of nobody's, with a mark, and a child; `slow`: it takes its time to end.
CONTAINER = """
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from launcher.processes import sweep
sweep.carry_mark(int(sys.argv[2]))
child = subprocess.Popen(["/bin/sleep", "600"])
def end(*_):
    child.terminate()
    child.wait()
    open(sys.argv[3], "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[4] == "stubborn" else end)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts one; it is ended after the test."""
    monkeypatch.setattr(inside, "KILLING", SOON)
    made: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> subprocess.Popen[bytes]:
        words = [str(Path(inside.__file__).parents[2]), str(MARK), str(tmp_path / "bye"), how]
        process = subprocess.Popen([sys.executable, "-c", CONTAINER, *words], stdout=subprocess.PIPE)
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield start
    inside.end([MARK], farewell=0.0)
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["orderly", "stubborn"])
def test_a_container_is_ended_without_its_engine(
    container: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path, how: str
):
    process = container(how)
    assert inside.is_seen(MARK)
    assert not inside.is_seen(MARK + 1)
    with Reaped(process):
        assert inside.end([MARK, MARK + 1], farewell=SOON if how == "orderly" else 0.2) == ENDED_THERE
    assert (tmp_path / "bye").exists() is (how == "orderly")
    assert inside.end([MARK]) == UNSEEN


def test_the_errand_that_kills_does_not_need_the_engine(
    yard: Yard, container: Callable[[str], subprocess.Popen[bytes]]
):
    process = container("stubborn")
    with Reaped(process):
        assert kill({"agent": 2, "container": {"name": "it", "env": {}, "mark": MARK}}) == 0
    assert not (yard.folder / "asked").exists()


def test_an_errand_ends_several(container: Callable[[str], subprocess.Popen[bytes]]):
    with Reaped(container("orderly")):
        assert inside.kill({"marks": [MARK, MARK + 1]}) == 0
    assert inside.kill({"marks": [MARK, MARK + 1]}) == 2, "there is nothing any more"


class Reaped:
    """While it lasts somebody waits for this process, as the engine's shim does for a container."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._thread = threading.Thread(target=process.wait, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(SOON)


def test_what_was_seen_and_is_no_more_has_ended(yard: Yard, monkeypatch: pytest.MonkeyPatch):
    """The engine ended it, and then itself: nobody is told that it may go on."""
    monkeypatch.setattr("launcher.agent.container._LOOK_LATER", 0.0)
    monkeypatch.setattr(inside, "is_seen", lambda mark: mark == MARK)
    (yard.folder / "gone").touch()
    ward = yard.ward("echo facts; exit 125")
    facts_of(ward)
    ward.remark(time.monotonic())
    until_over(ward)
    ward.kill()
    assert json.loads(ward.last_words()[len(ENDED) :])["inside"] == ENDED_THERE
