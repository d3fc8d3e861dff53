"""``launch check``: what it prints, how it ends; its hosts are this machine by many names, without SSH."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest

from launcher.checking.records import Finding, Pair, Reach, Severity, Sight
from launcher.cli import check, checkview, examining, probing
from launcher.cli.examining import Examined
from launcher.cli.probing import Probes
from launcher.cli.sshoptions import add_ssh_options, ssh_settings
from launcher.errors import HostfileError, HostsError, JobError, TransportError
from launcher.job import Host
from launcher.transport.base import Errand
from launcher.transport.localerrand import LocalErrand, LocalErrands
from launcher.transport.ssh.settings import SshSettings
from tests.unit.checking.seen import facts, pair, sight
from tests.unit.cli.conftest import Call


class Fleet(LocalErrands):
    """Takes the place of the one that connects over SSH: all hosts are this machine."""

    down: dict[str, str] = {}
    settings: SshSettings | None = None

    def __init__(self, hosts: Iterable[Host], settings: SshSettings, tell: Callable[[str], None]) -> None:
        self.hosts = [host.name for host in hosts]
        Fleet.settings = settings

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def connect(self) -> None:
        if self.down:
            raise HostsError(f"{host}: {why}" for host, why in self.down.items())

    def errand(self, host: str, entry: str, arguments: object) -> Any:
        assert host in self.hosts and host not in self.down
        return super().errand(host, entry, arguments)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with this machine when it is slow."""
    monkeypatch.setattr(check, "_TIMEOUT", 40.0)
    for limit in ("_NAMES", "_CONNECT"):
        monkeypatch.setattr(examining, limit, 40.0)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Fleet]]:
    """Hosts with a user are connected to by this one."""
    monkeypatch.setattr("launcher.transport.ssh.fleet.Fleet", Fleet)
    yield Fleet
    Fleet.down = {}


def test_this_machine(call: Call, capsys: pytest.CaptureFixture[str]):
    assert call(check) == 0
    header, row = capsys.readouterr().out.splitlines()[:2]
    assert header.split()[:3] == ["host", "address", "Python"]
    assert row.split()[0] == "localhost"


def test_two_hosts(call: Call, fleet: type[Fleet], capsys: pytest.CaptureFixture[str]):
    assert call(check, "--hosts", "me@127.0.0.1,127.0.0.2", "--fanout", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["127.0.0.1", "127.0.0.2"]
    assert lines[4].split() == ["from", "\\", "to", "127.0.0.1", "127.0.0.2"]
    assert all(line.count(" ms") == 2 for line in lines[5:7])
    assert fleet.settings == SshSettings(fanout=3)


def test_json(call: Call, fleet: type[Fleet], capsys: pytest.CaptureFixture[str]):
    assert call(check, "--json", "--seed", "5", "me@127.0.0.1,me@127.0.0.2") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["schema"], record["seed"], record["exit_code"]) == (1, 5, 0)
    first = record["hosts"][0]
    assert (first["name"], first["error"]) == ("127.0.0.1", None)
    assert first["facts"]["hostname"] == os.uname().nodename
    assert abs(first["clock"]["seconds"]) <= first["clock"]["uncertainty"] + 0.1
    assert first["names"]["127.0.0.2"]["found"] == ["127.0.0.2"]
    pairs = {(p["from"], p["to"]): p["reach"] for p in record["pairs"]}
    names = ("127.0.0.1", "127.0.0.2")
    assert pairs == {(a, b): "ok" for a in names for b in names}
    assert all({"severity", "kind", "hosts", "seen", "advice"} == set(f) for f in record["findings"])


def test_a_problem(call: Call, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "hosts.yaml").write_text("hosts: [{name: 127.0.0.1, python: /nowhere/python}]\n")
    assert call(check, str(tmp_path / "hosts.yaml")) == 1
    out = capsys.readouterr().out
    assert "problem: 127.0.0.1: /nowhere/python is not there: No such file or directory\n    try: " in out
    assert out.splitlines()[1].split()[:3] == ["127.0.0.1", "?", "?"]
    assert out.splitlines()[-1].startswith("1 problem")


def test_a_host_that_is_down_and_the_others_are_checked(
    call: Call, fleet: type[Fleet], capsys: pytest.CaptureFixture[str]
):
    fleet.down = {"127.0.0.2": "no answer from 127.0.0.2:22 within 10 s"}
    assert call(check, "me@127.0.0.1,me@127.0.0.2,me@127.0.0.3") == 125
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("not checked")
    assert lines[2].split(maxsplit=1) == ["127.0.0.2", "no answer from 127.0.0.2:22 within 10 s"]
    assert [line.split()[0] for line in lines[6:8]] == ["127.0.0.1", "127.0.0.3"]
    assert lines[-1].endswith("1 host could not be checked")


def test_many_hosts(call: Call, fleet: type[Fleet], capsys: pytest.CaptureFixture[str]):
    assert call(check, "me@127.0.0.[1-9]") == 0
    out = capsys.readouterr().out
    assert "81 of 81 connections work; a round trip takes " in out
    assert "from \\ to" not in out


def test_bad_input(call: Call):
    with pytest.raises(HostfileError, match="no such hostfile"):
        call(check, "lab.yaml")
    with pytest.raises(JobError, match="is given too"):
        call(check, "a", "--hosts", "b")


@pytest.mark.parametrize(
    "words", [["--timeout", "0"], ["--timeout", "soon"], ["--fanout", "0"], ["--seed", "x"]]
)
def test_bad_options(call: Call, words: list[str]):
    with pytest.raises(SystemExit) as ended:
        call(check, *words)
    assert ended.value.code == 2


def test_options_of_ssh():
    parser = argparse.ArgumentParser()
    add_ssh_options(parser)
    assert ssh_settings(parser.parse_args([])) == SshSettings()
    words = ["--accept-new-host-keys", "--connect-timeout", "1.5", "--fanout", "8"]
    said = parser.parse_args(words)
    assert ssh_settings(said) == SshSettings(connect_timeout=1.5, fanout=8, accept_new=True)
    said.lease = 5.0
    assert ssh_settings(said).lease == 5.0


# ---------------------------------------------------------------------- probes that do not behave


class Silent:
    """An errand that is never up, or ends, or breaks."""

    def __init__(self, ending: bytes | TransportError | None = None) -> None:
        self._ending = ending
        self._pipe = os.pipe()
        self.taken = b""

    def fileno(self) -> int:
        return self._pipe[0]

    def recv(self, size: int) -> bytes | None:
        if isinstance(self._ending, TransportError):
            raise self._ending
        return self._ending

    def send(self, data: bytes | memoryview) -> int:
        self.taken += bytes(data[:7])
        return min(7, len(data))

    def wait(self, seconds: float) -> int | None:
        return None

    def said(self) -> str:
        return "Traceback\nMemoryError\n"

    def close(self) -> None:
        for fd in self._pipe:
            os.close(fd)


def probed(errands: dict[str, Errand], seconds: float) -> tuple[dict[str, str], list[str]]:
    """Ask for the clock of these: why they dropped out, and what the user was told."""
    told: list[str] = []
    with Probes(errands, told.append) as probes:
        probes.ask({host: {"do": "clock"} for host in errands}, seconds, "their clocks")
        return probes.failed, told


def test_one_that_never_answers_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch):
    """The clock begins to go when the other one has answered."""
    silent, other = Silent(), LocalErrands().errand("b", "launcher.agent.probe:main", {})
    answered: list[float] = []

    def heard(size: int) -> bytes | None:
        data = LocalErrand.recv(other, size)
        if data:
            answered.append(time.monotonic())
        return data

    def now() -> float:
        return time.monotonic() - answered[0] if answered else 0.0

    monkeypatch.setattr(other, "recv", heard)
    monkeypatch.setattr(probing, "time", SimpleNamespace(time=time.time, monotonic=now))
    failed, told = probed({"a": silent, "b": other}, 2.5)
    assert failed == {"a": "no answer within 2.5 s (their clocks)"}
    assert told == ["waiting for a: their clocks"]
    assert silent.taken == b'{"do": "clock"}\n'


def test_an_answer_that_came_while_we_stood_still_counts(monkeypatch: pytest.MonkeyPatch):
    it = Silent()
    looks = iter([None, b'{"clock": 1}\n', None])
    clock = iter([0.0])
    monkeypatch.setattr(it, "recv", lambda size: next(looks))
    monkeypatch.setattr(probing, "time", SimpleNamespace(time=time.time, monotonic=lambda: next(clock, 1e6)))
    assert probed({"a": it}, 20) == ({}, ["waiting for a: their clocks"])


def test_one_that_ends_and_one_that_breaks():
    broken = TransportError("b: the connection broke")
    failed, told = probed({"a": Silent(b""), "b": Silent(broken)}, 20)
    assert failed == {"a": "the probe there ended: MemoryError", "b": "the connection broke"}
    assert told == []


@pytest.mark.parametrize("line", [b"Traceback (most recent call last):\n", b"[1]\n", b"[" * 100_000 + b"\n"])
def test_one_that_says_what_is_no_answer(line: bytes):
    failed, _ = probed({"a": Silent(line)}, 20)
    assert failed["a"].startswith(f"the probe there said what can't be understood: b'{line[:3].decode()}")
    assert len(failed["a"]) < 300


def test_a_local_errand_that_cannot_even_begin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("launcher.transport.localerrand._BOOTSTRAP", "raise SystemExit('no room')")
    errand = LocalErrands().errand("here", "launcher.agent.probe:main", {"long": "x" * 1_000_000})
    assert errand.wait(40) == 1
    assert (errand.recv(10), errand.said()) == (b"", "no room\n")
    errand.close()


def test_a_local_errand_tells_of_its_end():
    errand = LocalErrands().errand("here", "launcher.agent.probe:nothing", {})
    assert errand.wait(40) == 1
    assert "AttributeError" in errand.said()
    assert errand.recv(10) == b""
    with pytest.raises(TransportError, match="^here: the program there has ended"):
        for _ in range(2):
            errand.send(b"x")
    errand.close()


# ---------------------------------------------------------------------- what is shown


def shown(
    capsys: pytest.CaptureFixture[str], hosts: list[Host], examined: Examined, *found: Finding
) -> list[str]:
    checkview.as_text(hosts, examined, found, 7)
    return capsys.readouterr().out.splitlines()


def test_the_table_of_hosts(capsys: pytest.CaptureFixture[str]):
    gpus = [{"index": str(n), "uuid": "", "name": "A100", "memory": ""} for n in range(2)]
    host = Host("a", address="10.0.0.1")
    seen = sight(1, host, offset=-3.25, gpus={"state": "ok", "said": "", "list": gpus})
    lines = shown(capsys, [host], Examined((seen,), (), {}))
    headers = "host address Python TensorFlow Keras CPUs load memory free disk free GPUs clock"
    assert " ".join(lines[0].split()) == headers
    cells = "a 10.0.0.1 3.11.7 2.21.0 3.15.1 8 0.5 32 GB 50 GB 2 A100 -3.2 s"
    assert lines[1].split() == cells.split()
    assert lines[-1] == "nothing to remark"


def test_pairs_of_many_hosts(capsys: pytest.CaptureFixture[str]):
    hosts = [Host(f"node{n}") for n in range(1, 11)]
    sights = tuple(Sight(host, facts()) for host in hosts)
    pairs = [pair(a, b) for a in range(1, 11) for b in range(1, 10)]
    pairs += [pair(a, 10, Reach.REFUSED) for a in range(1, 10)]
    lines = shown(capsys, hosts, Examined(sights, tuple(pairs), {}))
    at = lines.index("90 of 99 connections work; a round trip takes 0.20 ms (median), 0.20 ms at most")
    assert lines[at + 1] == "tried: a ring, and pairs drawn by chance (--seed 7 draws them again)"
    assert [line.split() for line in lines[at + 2 : at + 4]] == [
        ["from", "to", "connection"], ["node1", "node10", "refused"],
    ]  # fmt: skip


def test_findings(capsys: pytest.CaptureFixture[str]):
    hosts = [Host(name) for name in ("a", "b", "c")]
    found = [
        Finding(Severity.PROBLEM, "x", ("a", "b", "c"), "are all wrong", "be right"),
        Finding(Severity.WARNING, "x", ("a", "b"), "are \x1b[31modd"),
        Finding(Severity.WARNING, "x", (), "the clock of this machine is wrong"),
    ]
    lines = shown(capsys, hosts, Examined((), (), {"a": "down", "b": "down", "c": "down"}), *found)
    assert lines[-5:] == [
        "problem: all hosts: are all wrong",
        "    try: be right",
        "warning: a, b: are \\x1b[31modd",
        "warning: the clock of this machine is wrong",
        "1 problem, 2 warnings; 3 hosts could not be checked",
    ]


def test_a_pair_that_was_not_tried(capsys: pytest.CaptureFixture[str]):
    hosts = [Host("node1"), Host("node2")]
    pairs = (pair(1, 2), Pair("node2", "node1", Reach.UNTRIED))
    lines = shown(capsys, hosts, Examined((), pairs, {}))
    assert any(line.split() == ["node2", "not", "tried"] for line in lines)
