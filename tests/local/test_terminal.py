"""The command in a terminal: colours, the live line, the table, keys, its size."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Launch, in_shell
from tests.local.terminal import Terminal
from tests.seeing import last_run

Open = Callable[..., Terminal]


@pytest.mark.promise("the table")
def test_colours_a_live_line_and_a_table(terminal: Open, tmp_path: Path):
    """Each drawing of the live line is erased before anything else is written."""
    script = f"echo first; until test -e {tmp_path / 'go'}; do sleep 0.05; done; echo second"
    it = terminal("--workers", "2", "--", "sh", "-c", script)
    it.until(lambda it: "2 running" in it.text)
    (tmp_path / "go").touch()
    assert it.wait() == 0
    assert b"\x1b[36mworker/0 |\x1b[0m first" in it.raw
    assert "worker/1 | second" in it.text
    assert "succeeded" in it.text and "ok in" in it.text
    table = it.raw[it.raw.rindex(b"TASK") :]
    assert b"\x1b[32m" in table, "success is green"
    assert it.text.rstrip().splitlines()[-2].startswith("logs: ")
    assert not [line for line in it.screen if "running" in line]
    assert {"worker/0 | first", "worker/1 | second"} <= {*it.screen}


@pytest.mark.parametrize(
    ("options", "environment", "absent", "lines"),
    [
        ([], {"NO_COLOR": "1"}, (b"\x1b[3", b"\x1b[1m"), 2),
        ([], {"TERM": "dumb"}, (b"\x1b",), 2),
        (["--quiet"], {}, (b"\x1b", b"\n"), 0),
    ],
    ids=["NO_COLOR", "dumb", "quiet"],
)
def test_less_than_a_terminal_can_do(
    terminal: Open, options: list[str], environment: dict[str, str], absent: tuple[bytes, ...], lines: int
):
    script = "echo first; sleep 0.7; echo second"
    it = terminal(*options, "--workers", "2", "--", "sh", "-c", script, env=environment)
    assert it.wait() == 0
    assert not [sequence for sequence in absent if sequence in it.raw]
    assert it.text.count("| second") == lines


def test_a_small_window_and_one_that_changes(terminal: Open, tmp_path: Path):
    script = f"echo up; until test -e {tmp_path / 'go'}; do sleep 0.05; done"
    it = terminal("--ps", "1", "--workers", "3", "--", "sh", "-c", script)
    it.until(lambda it: "4 running" in it.text)
    it.resize(12, 5)
    it.until(lambda it: any(0 < len(part) <= 12 for part in it.text.split("\r")[-4:]))
    it.resize(30, 5)
    (tmp_path / "go").touch()
    assert it.wait() == 0
    assert "Traceback" not in it.text
    assert "ok in" in it.text


NOTICE = "I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on"
CRASH = f"print('{NOTICE}', flush=True); raise ValueError('no such thing')"
FOLDED = "launch: hid 2 TensorFlow start-up messages (-v shows them)"


@pytest.mark.promise("the verdict is the last line")
def test_the_verdict_is_last(terminal: Open, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    script = f"rmdir {tmp_path}/folder; echo made > {tmp_path}/file"
    options = ["--report", f"{tmp_path}/folder/report.json", "--collect", f"{tmp_path}/file:{tmp_path}/here"]
    it = terminal(*options, "--workers", "1", "--", "sh", "-c", script, columns=300)
    assert it.wait() == 125
    lines = [line for line in it.screen if line]
    files = ["launch: collected 1 file", "launch: cannot write the report"]
    starts = [*files, "TASK ", "worker/0", "logs: ", "job "]
    assert all(line.startswith(start) for line, start in zip(lines[-7:-1], starts, strict=True)), lines
    assert lines[-1].startswith("launch: exit code 125: the job is ok, but some files")


@pytest.mark.promise("TensorFlow's start-up messages are hidden everywhere, and nothing else is")
@pytest.mark.parametrize("verbose", [False, True])
def test_notices_are_folded(terminal: Open, launch: Launch, verbose: bool):
    options = ["--verbose"] if verbose else []
    it = terminal(*options, "--workers", "2", "--on-failure", "continue", "-c", CRASH, columns=200)
    assert it.wait() == 1
    lines = [re.sub(r" +\|", " |", line) for line in it.screen]
    task_lines = [line for line in lines if line.startswith("worker/")]
    assert sum(NOTICE in line for line in task_lines) == (2 if verbose else 0)
    assert sum("| Traceback" in line for line in task_lines) == 2
    assert (FOLDED in lines) is not verbose
    assert verbose or lines.index(FOLDED) < next(n for n, line in enumerate(lines) if "TASK" in line)
    run = last_run(launch)
    assert all(NOTICE.encode() in run.log(task) for task in ("worker/0", "worker/1"))


def test_in_the_background_of_a_terminal_with_tostop(terminal: Open, launch: Launch):
    shell = in_shell('stty tostop; set -m; "$@" & wait $!')
    it = terminal("--workers", "2", "--", "sh", "-c", "echo up; exec sleep 60", command=shell)
    it.until(lambda it: it.text.count("| up") == 2)
    assert launch("stop").code == 0
    assert it.wait() == 143
