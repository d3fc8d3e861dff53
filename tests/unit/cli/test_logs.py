"""Logs: raw for one task, prefixed for several, the last lines, and while they grow."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from launcher.cli import logs
from launcher.cli.tail import Log, copy, follow, start_of_last
from launcher.errors import InputError, LaunchError
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


def test_a_container_of_its_own_is_not_named_twice(
    runs: Runs, call: Call, capfdbinary: pytest.CaptureFixture[bytes]
):
    hosts = ("my-role-0", "worker-1")
    runs.made(NEW, {"my_role/0": b"a\n", "worker/1": b"b\n"}, hosts)
    call(logs)
    assert capfdbinary.readouterr().out == b"my_role/0 | a\nworker/1  | b\n"


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


#: A title, the clipboard, another screen, a cleared one; and a colour, which is harmless.
HOSTILE = b"a\x1b]0;title\x07b\x1b]52;c;eA==\x07c\x1b[?1049hd\x1b[2Je\r\n\x1b[31mred\n\xc2\x9b2Jend"
_TAMED = [b"abcde", b"\x1b[31mred\x1b[0m", b"end"]


@pytest.mark.parametrize("label", [b"", b"worker/0"])
@pytest.mark.parametrize("following", [False, True])
def test_a_terminal_gets_nothing_to_obey(tmp_path: Path, label: bytes, following: bool):
    (tmp_path / "log").write_bytes(HOSTILE)
    out, log = io.BytesIO(), Log(str(tmp_path / "log"), label, None, terminal=True)
    follow(lambda: [log], lambda: True, out) if following else copy([log], out)
    prefix = label and label + b" | "
    assert out.getvalue().splitlines() == [prefix + line for line in _TAMED]


def test_only_a_terminal_is_spared(
    runs: Runs, call: Call, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
):
    runs.made(NEW, {"worker/0": HOSTILE})
    call(logs)
    assert capfdbinary.readouterr().out == HOSTILE
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    call(logs)
    assert capfdbinary.readouterr().out.splitlines() == _TAMED


def test_a_log_whose_name_a_terminal_would_obey(
    runs: Runs, call: Call, capfdbinary: pytest.CaptureFixture[bytes]
):
    paths = runs.made(NEW, {"a/0": b"a\n", "b/0": b"b\n"})
    Path(paths.plan).unlink()
    Path(f"{paths.logs}/c\x1b[2J-0.log").write_bytes(b"c\n")
    call(logs)
    assert capfdbinary.readouterr().out == b"a/0 | a\nb/0 | b\n"


@pytest.mark.timeout(40)
def test_a_log_that_is_a_pipe(runs: Runs, call: Call):
    paths = runs.made(NEW, {"worker/0": b""})
    log = Path(f"{paths.logs}/worker-0.log")
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(LaunchError, match=r"can't read .*worker-0.log': it is no regular file"):
        call(logs)
