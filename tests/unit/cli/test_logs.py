"""Logs: raw for one task, prefixed for several, the last lines, and while they grow."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from launcher.cli import logs
from launcher.cli.tail import Log, follow, start_of_last
from launcher.errors import InputError
from tests.unit.cli.conftest import Call, Runs

OLD, NEW = "20261120-070912-aaaaa", "20261121-070912-bbbbb"
RAW = b"one\ntwo\r\xff\0\nno newline"


@pytest.fixture
def old(runs: Runs) -> None:
    """Two runs of which the newer, by name, has three tasks."""
    runs.made(OLD, {"chief/0": b"old\n"})
    runs.made(NEW, {"worker/0": RAW, "worker/1": b"hello\n", "ps/0": b""})


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["worker/0"], RAW),
        ([NEW, "worker/1"], b"hello\n"),
        (["latest", "worker/1"], b"hello\n"),
        (["aaaaa"], b"old\n"),
        (["--lines", "1", "worker/0"], b"no newline"),
        (["worker"], b"worker/0 | one\nworker/0 | two\r\xff\0\nworker/0 | no newline\nworker/1 | hello\n"),
        (["-n", "1"], b"worker/0 | no newline\nworker/1 | hello\n"),
        (["-n", "0"], b""),
        (["ps"], b""),
    ],
)
def test_what_is_printed(
    old: None, call: Call, capfdbinary: pytest.CaptureFixture[bytes], words: list[str], out: bytes
):
    assert call(logs, *words) == 0
    assert capfdbinary.readouterr().out == out


def test_hosts_are_named_where_there_are_several(
    runs: Runs, call: Call, capfdbinary: pytest.CaptureFixture[bytes]
):
    runs.made(NEW, {"worker/0": b"a\n", "worker/1": b"b\n"}, hosts=("n1", "n2"))
    call(logs)
    assert capfdbinary.readouterr().out == b"n1 worker/0 | a\nn2 worker/1 | b\n"


def test_without_a_plan_there_are_still_logs(
    runs: Runs, call: Call, capfdbinary: pytest.CaptureFixture[bytes]
):
    Path(runs.made(NEW, {"my-role/10": b"b\n", "my-role/9": b"a\n"}).plan).unlink()
    call(logs, NEW)
    assert capfdbinary.readouterr().out == b"my-role/9  | a\nmy-role/10 | b\n"


def test_nothing_was_started(runs: Runs, call: Call, capfd: pytest.CaptureFixture[str]):
    runs.made(NEW, {})
    assert call(logs) == 0
    assert capfd.readouterr() == ("", f"{NEW} has no logs: nothing was started\n")


@pytest.mark.parametrize("words", [["worker/7"], [NEW, "chief"], ["chief", "worker/0"], ["zzz"]])
def test_what_is_not_there(old: None, call: Call, words: list[str]):
    with pytest.raises(InputError):
        call(logs, *words)


def test_following_ends_with_the_run(runs: Runs, call: Call, capfdbinary: pytest.CaptureFixture[bytes]):
    paths = runs.made(NEW, {"worker/0": b"first\n", "worker/1": b""})
    process = runs.running(paths, "sh", "-c", f"sleep 0.3; printf 'last' >> '{paths.logs}/worker-1.log'")
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    assert call(logs, "-f") == 0
    reaper.join()
    assert capfdbinary.readouterr().out == b"worker/0 | first\nworker/1 | last\n"


def test_a_line_is_held_until_it_is_whole(tmp_path: Path):
    path, out = tmp_path / "log", io.BytesIO()
    log = Log(str(path), b">", None)
    assert not log.write_new(out)
    with open(path, "ab", buffering=0) as file:
        for data, shown in [(b"ab", b""), (b"c\nd", b"> | abc\n"), (b"\n\n", b"> | abc\n> | d\n> | \n")]:
            file.write(data)
            log.write_new(out)
            assert out.getvalue() == shown
        file.write(b"x" * 100_000)
        log.write_new(out)
        assert out.getvalue().endswith(b"x\n")
    log.close()


def test_a_progress_bar_is_shown_before_its_newline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr("launcher.cli.tail.time.monotonic", lambda: now)
    path, out = tmp_path / "log", io.BytesIO()
    log = Log(str(path), b"a/0", None)
    path.write_bytes(b"\r10%\r20%")
    log.write_new(out)
    assert out.getvalue() == b""
    now = 5.0
    assert not log.write_new(out)
    assert out.getvalue() == b"a/0 | 20%\n"
    log.write_all(out)
    log.close()
    assert out.getvalue() == b"a/0 | 20%\n"


def test_following_one_log_is_raw(tmp_path: Path):
    (tmp_path / "log").write_bytes(RAW)
    out, log = io.BytesIO(), Log(str(tmp_path / "log"), b"", None)
    follow(lambda: [log], lambda: True, out)
    assert out.getvalue() == RAW


SHORT = [b"", b"\n", b"a", b"a\n", b"a\nb", b"\n\n\na\n\n"]
LONG = [b"x" * 300_000 + b"\ny\n", b"l\n" * 200_000]


@pytest.mark.parametrize("data", SHORT + LONG, ids=range(len(SHORT + LONG)))
@pytest.mark.parametrize("lines", [0, 1, 2, 3, 150_000])
def test_the_last_lines(data: bytes, lines: int):
    expected = b"".join(data.splitlines(keepends=True)[-lines:] if lines else [])
    assert data[start_of_last(lines, io.BytesIO(data)) :] == expected
