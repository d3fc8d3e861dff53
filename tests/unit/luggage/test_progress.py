"""What is shown while files travel."""

from __future__ import annotations

import io
import os
import pty

import pytest

from launcher.errors import TransportError
from launcher.luggage.meter import Meter
from launcher.luggage.parallel import on_all
from launcher.luggage.progress import Bar, Lines, counted, human, shortened, shown
from launcher.luggage.talk import Cancelled


def test_a_line_after_two_seconds_and_one_at_the_end():
    said: list[str] = []
    now = [100.0]
    lines = Lines(said.append, lambda: now[0])
    meter = Meter(["a", "b"])
    lines.begin("syncing", meter)
    meter.expect(14_000_000)
    meter.move(3_000_000)
    meter.done("a")
    lines.tick()
    assert said == []
    for now[0] in (102.1, 105.0, 200.0):
        lines.tick()
    lines.end("synced 20 files\nleft out")
    assert said == ["syncing: 3.0 MB of 14 MB so far, waiting for b", "synced 20 files", "left out"]


def test_many_hosts_are_not_all_named():
    said: list[str] = []
    lines = Lines(said.append, iter([0.0, 10.0]).__next__)
    lines.begin("collecting", Meter([f"n{number}" for number in range(40)]))
    lines.tick()
    assert said == ["collecting: waiting for n0, n1, n2, n3 and 36 more"]


def test_what_is_no_terminal_gets_lines():
    out = io.StringIO()
    progress = shown(out)
    progress.begin("syncing", Meter(["a"]))
    progress.tick()
    progress.end("synced 1 file")
    assert out.getvalue() == "launch: synced 1 file\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("launcher.luggage.progress._SHORT", 0.0)
    master, slave = pty.openpty()
    with open(slave, "w") as terminal, open(master, "rb", buffering=0) as screen:
        progress = shown(terminal)
        assert isinstance(progress, Bar)
        meter = Meter(["a", "b"])
        progress.begin("syncing", meter)
        meter.expect(2_000_000)
        meter.move(1_000_000)
        progress.tick()
        progress.end("synced")
        terminal.flush()
        written = b""
        while b"launch: synced" not in written:
            written += os.read(screen.fileno(), 100_000)
    text = written.decode()
    assert "1.0 MB of 2.0 MB" in text
    assert "2 hosts to go" in text


def test_numbers():
    assert [human(size) for size in (0, 1, 999, 1000, 99_000, 300_000, 14_000_000, 3_400_000_000)] == [
        "0 bytes", "1 byte", "999 bytes", "1 kB", "99 kB", "0.3 MB", "14 MB", "3.4 GB",
    ]  # fmt: skip
    assert [counted(number, "file") for number in (0, 1, 2013)] == ["0 files", "1 file", "2,013 files"]


def test_nothing_that_a_host_says_reaches_the_terminal_raw():
    out = io.StringIO()
    progress = shown(out)
    progress.begin("collecting", Meter(["a"]))
    progress.end("a: '\x1b]0;MINE\x07' is not there")
    assert out.getvalue() == r"launch: a: '\x1b]0;MINE\x07' is not there" + "\n"


def test_paths(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me/")
    paths = ["/home/me/x", "/home/me", "/home/mean", "/x"]
    assert list(map(shortened, paths)) == ["~/x", "~", "/home/mean", "/x"]
    monkeypatch.setenv("HOME", "/")
    assert shortened("/x") == "/x"


def test_hosts_that_fail_keep_nobody_from_being_done():
    def work(host: str, wanted: object) -> str:
        if host in "bd":
            raise TransportError(f"{host}: broke")
        if host == "e":
            raise TransportError("no name here")
        return host.upper()

    outcome = on_all("abcde", work, 2, lambda: None)
    assert outcome.done == {"a": "A", "c": "C"}
    assert outcome.failed == {"b": "b: broke", "d": "d: broke", "e": "e: no name here"}


def test_giving_up_ends_the_threads():
    def work(host: str, wanted):
        while wanted():
            pass
        raise Cancelled

    def tick() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_all("abc", work, 2, tick)


def test_a_mistake_of_ours_is_not_hidden():
    def work(host: str, wanted: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        on_all("ab", work, 2, lambda: None)
