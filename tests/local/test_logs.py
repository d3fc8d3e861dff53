"""``launch logs`` by the clock: when a line was printed, and what was printed in a time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from launcher.cli import logs
from launcher.cli.arguments import parse_command
from launcher.clock_times import parse_time
from launcher.runs.run import Run
from tests.conftest import Launch
from tests.seeing import last_run, soon

STAMP = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:worker/\d \| )?(.*)$", re.MULTILINE)
YESTERDAY = datetime.now().replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=1)


def index(launch: Launch, task: str = "worker-0") -> Path:
    return last_run(launch).path / "logs" / f"{task}.times"


def last_night(launch: Launch) -> None:
    """A run of two tasks, each of which has printed a line at two, one at three and one at four at night."""
    launch("--workers", "2", "--", "sh", "-c", "echo two; echo three; echo four", code=0)
    two = int(YESTERDAY.timestamp())
    for task in ("worker-0", "worker-1"):
        index(launch, task).write_text(f"{two} 0 1\n{two + 3600} 4 1\n{two + 7200} 10 1\n")


def test_what_was_printed_last_night(launch: Launch):
    last_night(launch)
    stamped = launch.here("logs", "--timestamps", "worker/1").out
    assert STAMP.findall(stamped) == [
        (f"{YESTERDAY + timedelta(hours=hours):%Y-%m-%d %H:%M:%S}", line)
        for hours, line in enumerate(("two", "three", "four"))
    ]
    windows = {
        ("--since", "yesterday 03:00"): ["three", "four"],
        ("--since", "yesterday 02:30", "--until", "yesterday 04:00"): ["three"],
        ("--until", f"{YESTERDAY:%Y-%m-%d} 3:00"): ["two"],
        ("--since", "yesterday", "--until", "yesterday 04:00", "-n", "1"): ["three"],
        ("--since", "3d", "--follow"): ["two", "three", "four"],
    }
    for words, lines in windows.items():
        both = "".join(f"worker/{number} | {line}\n" for number in (0, 1) for line in lines)
        assert launch.here("logs", *words).out == both, words
        assert launch.here("logs", *words, "worker/0").out == "".join(f"{line}\n" for line in lines), words
    nothing = launch.here("logs", "--since", "10m")
    assert (nothing.code, nothing.out) == (0, "")
    assert "worker/0, worker/1 printed nothing" in nothing.err


@pytest.mark.parametrize("detached", [(), ("-d",)])
def test_a_run_that_runs_is_followed_with_times(launch: Launch, tmp_path: Path, detached: tuple[str, ...]):
    began = int(time.time())
    script = f"echo first; until test -e {tmp_path}/go; do sleep 0.05; done; sleep 1; printf last"
    started = launch.start(*detached, "--workers", "2", "--", "sh", "-c", script)
    soon(lambda: any(launch.state.glob("*")) and all(index(launch, f"worker-{n}").exists() for n in (0, 1)))
    asked = launch.here("logs", "--timestamps", "--since", "1h", "worker/0").out
    following = launch.start(
        "logs", "-f", "--timestamps", "--since", f"{datetime.fromtimestamp(began):%H:%M:%S}"
    )
    following.until(lambda it: it.out.count("first") == 2)
    (tmp_path / "go").touch()
    shown = following.wait(code=0).out
    started.wait(code=0)
    lines = sorted((text, datetime.fromisoformat(at).timestamp()) for at, text in STAMP.findall(shown))
    assert [text for text, _ in lines] == ["first", "first", "last", "last"]
    assert STAMP.fullmatch(asked.rstrip())
    assert began <= lines[0][1] <= lines[1][1] < lines[2][1] <= lines[3][1] <= time.time()


def test_a_log_that_is_truncated_is_followed(launch: Launch, tmp_path: Path):
    script = "echo a long line; until test -e $0/go; do sleep 0.05; done; echo new"
    started = launch.start("--", "sh", "-c", script, tmp_path)
    soon(lambda: any(launch.state.glob("*/logs/worker-0.log")))
    following = launch.start("logs", "-f").until(lambda it: "long" in it.out)
    os.truncate(last_run(launch).path / "logs/worker-0.log", 0)
    (tmp_path / "go").touch()
    assert following.wait(code=0).out == "a long line\nnew\n"
    started.wait(code=0)


def test_a_run_of_an_older_version_has_no_times(launch: Launch):
    last_night(launch)
    for task in ("worker-0", "worker-1"):
        index(launch, task).unlink()
    for words in (
        ["--timestamps"],
        ["--since", "10m"],
        ["--until", "0s", "worker/1"],
        ["-f", "--since", "3d"],
    ):
        asked = launch.here("logs", *words)
        assert (asked.code, asked.out) == (125, ""), words
        assert ".times" in asked.err
    assert launch.here("logs", "worker/0").out == "two\nthree\nfour\n"


def test_the_machine_of_the_launcher_shows_the_same(launch: Launch, monkeypatch: pytest.MonkeyPatch):
    """Another machine gets moments that its clock and its time zone do not change."""
    last_night(launch)
    asked: list[tuple[str, ...]] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(launch.state.parents[1]))

    def show_there(_: Run, __: str, *words: str, follow: bool) -> int:
        asked.append(words)
        return 0

    monkeypatch.setattr(logs, "show_there", show_there)
    words: Sequence[str] = ["-n3", "--timestamps", "--since", "90m", "--until", "0s", "latest", "worker/0"]
    for zone in ("America/New_York", "Asia/Kolkata"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert logs.run(parse_command("logs", words)) == 0
        words = asked[-1]
    monkeypatch.undo()
    time.tzset()
    moments = [
        [parse_time(each[each.index(flag) + 1], 0) for flag in ("--since", "--until")] for each in asked
    ]
    assert moments[0] == moments[1]
    assert moments[0][1] - moments[0][0] == pytest.approx(5400, abs=1)
    rest = [[word for word in each if not word.startswith("20")] for each in asked]
    assert rest[0] == rest[1] and {"--timestamps", "3", "worker/0"} < set(rest[0])


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (["--since", "last night"], "--since"),
        (["--since", "10"], "--since"),
        (["--until", "25:00"], "--until"),
    ]
    + [(["--since", ""], "--since"), (["--since", "10m", "--until", "20m"], "--until")]
    + [(["-f", "--until", "0s"], "--until")],
)
def test_times_that_are_none_are_refused(launch: Launch, words: list[str], source: str):
    last_night(launch)
    refused = launch.here("logs", *words)
    assert (refused.code, refused.out) == (2, "")
    assert f"{source}: " in refused.err and "expected" in refused.err
