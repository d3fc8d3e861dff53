"""The link to a container of another machine, over a link of SSH that is two pipes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import cast

import pytest

from launcher.errors import TransportError
from launcher.model.container import ENDED, ENDED_THERE, GOES_ON, REMARK, SAID, UNSEEN, framed
from launcher.transport.bundle import SOURCE_FORM
from launcher.transport.docker.arrival import luggage
from launcher.transport.docker.remote import RemoteLink
from launcher.transport.docker.settings import Container
from launcher.transport.ssh.link import SshLink

READY = b"\n<tf-launcher errand 1: ready>\n"
MARK = 4711
IT = Container("node1", "img", "python3", memory=64 << 20)


class Below:
    """Stands in for `SshLink`."""

    def __init__(self) -> None:
        self.reading, self.facts = os.pipe()
        self.orders, self.writing = os.pipe()
        for fd in (self.reading, self.writing, self.orders):
            os.set_blocking(fd, False)
        self.words: str | None = ""
        self.came = b""
        self.told: list[str] = []

    def read(self, size: int) -> bytes | None:
        """See `SshLink.read`."""
        try:
            return os.read(self.reading, size)
        except BlockingIOError:
            return None

    def says(self, data: bytes, stream: int = SAID) -> None:
        """The host passes this on."""
        os.write(self.facts, framed(stream, data))

    def write(self, data: bytes | memoryview) -> int:
        """See `SshLink.write`; the other end takes it at once."""
        try:
            written = os.write(self.writing, data)
        except (BlockingIOError, BrokenPipeError):
            return 0
        self.came += os.read(self.orders, 1 << 20)
        return written

    def wait(self, seconds: float) -> str | None:
        """See `SshLink.wait`."""
        return self.words

    kill = wait

    def hang_up(self) -> None:
        """See `SshLink.hang_up`."""
        os.close(self.writing)
        self.writing = -1

    def close(self) -> None:
        """See `SshLink.close`."""
        for fd in (self.reading, self.facts, self.orders, self.writing):
            if fd >= 0:
                os.close(fd)
        self.reading = self.writing = -1


@pytest.fixture
def below() -> Iterator[Below]:
    """Closed at the end, whoever did it before."""
    found = Below()
    yield found
    if found.reading >= 0:
        found.close()


def link_over(below: Below) -> RemoteLink:
    """The link; what it sends at first is forgotten."""
    found = RemoteLink(cast(SshLink, below), IT, MARK, below.told.append)
    assert below.came == luggage("node1", MARK)
    below.came = b""
    return found


def ended(
    code: int | None, said: str = "", forced: bool = False, silent: float = 0.0, inside: str = ""
) -> str:
    """The last words of a porter."""
    words = {"code": code, "said": said, "forced": forced, "silent": silent, "inside": inside}
    return ENDED + json.dumps(words)


def test_the_agent_is_greeted(below: Below):
    link = link_over(below)
    assert link.read(100) is None
    below.says(b"noise" + READY[:10])
    assert link.read(100) is None
    below.says(READY[10:] + b"facts")
    assert link.read(100) == b"facts"
    below.says(b"more")
    assert link.read(100) == b"more"
    assert link.write(b"orders") == 6
    assert below.came == b"orders"
    link.hang_up()
    assert (link.writing, link.reading) == (-1, below.reading)
    assert link.wait(0) == ""


def test_another_python_gets_the_source(below: Below):
    link = link_over(below)
    below.says(b"\n<tf-launcher errand 1: needs source>\n")
    assert link.read(100) is None
    assert int(below.came[:8]) == len(below.came) - 8
    assert below.came[8:12] == SOURCE_FORM


def test_a_python_that_is_too_old(below: Below):
    link = link_over(below)
    below.says(b"\n<tf-launcher errand 1: too old 3.6.9>\n")
    assert link.read(100) == b""
    below.words = ended(1)
    assert "python3 of the image img is Python 3.6.9, which is too old" in str(link.wait(0))


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize(
    ("words", "told", "told_early"),
    [
        (ended(0), "", "does not run our agent, and ended with 0"),
        (ended(137), "its container was killed by SIGKILL", "its container was killed by SIGKILL"),
        (ended(None), "its `docker run` was killed", "its `docker run` was killed"),
        (ended(1, "a\nb\n"), "the agent ended: b", "does not run our agent, and ended with 1: b"),
        (
            ended(1, "exec /usr/bin/python3: exec format error"),
            "the agent ended: exec",
            "the image img is not for this kind of machine",
        ),
        (
            ended(
                125, "docker: Error response from daemon: it is wrong.\n\nRun 'docker run --help' for more"
            ),
            "its Docker engine has gone: was it stopped?",
            "it is wrong",
        ),
        (
            ended(125, '\ninvalid argument "bogus=1" for "--ulimit" flag: x\n\nUsage:  docker run\n'),
            "its Docker engine has gone: was it stopped? (Usage:  docker run)",
            'invalid argument "bogus=1" for "--ulimit" flag: x',
        ),
        (ended(125), "its Docker engine has gone", "does not run our agent, and ended with 125"),
        (
            ended(125, 'time="2026" level=error msg="error waiting for container: unexpected EOF"'),
            "its Docker engine has gone: was it stopped? (error waiting for container: unexpected EOF)",
            "error waiting for container: unexpected EOF",
        ),
        (
            ended(
                127, 'docker: Error response from daemon: runc: exec: "python3": executable file not found.'
            ),
            "its Docker engine has gone",
            "there is no python3 in the image img",
        ),
        (
            ended(125, "x", inside=UNSEEN),
            "has gone: was it stopped? (x); what runs in its container may go on until the engine is back",
            "x",
        ),
        (
            ended(125, "x", inside=ENDED_THERE),
            "has gone: was it stopped? (x); all that ran in its container was ended without it",
            "x",
        ),
        (
            ended(None, forced=True, silent=61.2, inside=ENDED_THERE),
            "its Docker engine has not answered for 61 s: is it stopped, or stuck? `docker info` there "
            "waits, too, while it is; all that ran in its container was ended without it",
            "its Docker engine has not answered for 61 s",
        ),
        (
            ended(None, forced=True, inside=GOES_ON) + "; processes that can't be killed: [5]",
            "it did not end, so it and all it had started were killed; some of what ran in its container "
            "can't be killed; processes that can't be killed: [5]",
            "it did not end",
        ),
        ("no answer for 60 s", "no answer for 60 s", "no answer for 60 s"),
    ],
)
def test_how_it_ended(below: Below, words: str, told: str, told_early: str, ready: bool):
    link = link_over(below)
    if ready:
        below.says(READY)
        assert link.read(100) is None
    assert link.wait(0) == ""
    below.words = None
    assert link.wait(0) is None
    below.words = words
    wanted = told if ready else told_early
    assert wanted in str(link.wait(0))
    assert wanted.startswith("does not run") or "does not run" not in str(link.wait(0))
    assert bool(wanted) == bool(link.kill(0))


def test_a_carrier_that_is_gone(below: Below):
    os.close(below.orders)
    below.orders = -1
    with pytest.raises(TransportError, match="node1: our program could not be sent"):
        RemoteLink(cast(SshLink, below), IT, MARK, below.told.append)
    assert below.reading == -1


def test_warnings_of_the_command_are_passed_on_once(below: Below):
    link = link_over(below)
    below.says(READY)
    assert link.read(100) is None
    below.words = ended(0, "WARNING: Your kernel does not support swap limit capabilities.\n")
    assert (link.wait(0), link.wait(0)) == ("", "")
    assert below.told == ["node1: Your kernel does not support swap limit capabilities."]


def test_remarks_of_the_host_are_told(below: Below):
    link = link_over(below)
    below.says(READY)
    below.says(b"its engine sticks\nit is ", REMARK)
    below.says(b"facts")
    below.says(b"back\n", REMARK)
    assert link.read(1000) == b"facts"
    assert below.told == ["node1: its engine sticks", "node1: it is back"]
    below.says(b"again\n", REMARK)
    assert link.read(1000) is None
    assert below.told[2:] == ["node1: again"]


def test_a_remark_that_does_not_end_is_kept_only_so_far(below: Below):
    link = link_over(below)
    below.says(READY)
    for _ in range(20):
        below.says(b"x" * 10_000, REMARK)
        assert link.read(1 << 20) is None
    below.says(b"\n", REMARK)
    assert link.read(1 << 20) is None
    (said,) = below.told
    assert len(said) < 40_000 and set(said.removeprefix("node1: ")) == {"x"}


@pytest.mark.parametrize("cut", [20, 60, 100])
def test_last_words_that_were_cut(below: Below, cut: int):
    link = link_over(below)
    below.words = ended(1, "said " * 100)[:cut]
    told = link.wait(0)
    assert told is not None and told.startswith("its container ended; how can't be understood: '{")


@pytest.mark.parametrize(("inside", "told"), [(UNSEEN, 1), (ENDED_THERE, 0)])
def test_whoever_hung_up_is_told_what_may_go_on(below: Below, inside: str, told: int):
    """Nobody asks for the reason of an end that was wanted."""
    link = link_over(below)
    below.says(READY + b"facts")
    assert link.read(100) == b"facts"
    link.hang_up()
    below.words = ended(None, forced=True, silent=3.0, inside=inside)
    for _ in range(2):
        assert "has not answered for 3 s" in str(link.wait(0))
    assert [line.startswith("node1: what runs in its container may go on") for line in below.told] == [
        True
    ] * told


def test_whoever_was_cut_off_is_told_the_reason_by_somebody_else(below: Below):
    link = link_over(below)
    below.says(READY)
    assert link.read(100) is None
    os.close(below.facts)
    below.facts = -1
    assert link.read(100) == b""
    below.words = ended(None, forced=True, silent=3.0, inside=UNSEEN)
    assert "may go on until the engine is back" in str(link.wait(0))
    assert below.told == []
