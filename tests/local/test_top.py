"""``launch top`` and ``launch ps --watch`` in a terminal: what stands there, keys, and every way out."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Launch, Started
from tests.local.terminal import Terminal
from tests.seeing import last_run, soon

Open = Callable[..., Terminal]
#: Prints steps with what a terminal would obey, until it is told to end.
STEPS = """
step=0
until test -e enough; do
    step=$((step + 1)); printf "\033]0;title\007\033[2Jstep $step loss 0.5\n"; sleep 0.2
done
"""


@pytest.fixture
def job(launch: Launch, tmp_path: Path) -> Started:
    """A run with three tasks, which the file ``enough`` ends."""
    started = launch.start("--ps", "1", "--workers", "2", "--", "sh", "-c", STEPS, cwd=tmp_path)
    soon(lambda: started.out.count("step 1 ") == 3)
    return started


def test_a_run_to_its_end(launch: Launch, terminal: Open, job: Started, tmp_path: Path):
    top = terminal("top", columns=80, lines=12)
    top.until(lambda it: re.search(r"worker/1 .*running .*step \d+ loss 0.5", it.shown))
    head, *_ = top.shown.splitlines()
    assert last_run(launch).path.name in head and "3 of 3 tasks" in head
    assert b"\x1b]0;" not in top.raw and not top.echoes()
    top.press("/ps\r")
    top.until(lambda it: "worker/" not in it.shown)
    top.press("/\x7f\r" + "lworker/1\r")
    top.until(lambda it: it.shown.count("loss 0.5") > 5)
    top.press("x" + "k")
    top.until(lambda it: "y/n" in it.shown)
    top.press("n\r")
    top.resize(60, 8)
    top.until(lambda it: re.search(r"worker/1 .*running", it.shown) and "q quit" in it.shown)
    top.press("s" * 2)
    top.until(lambda it: "by silent" in it.shown)
    (tmp_path / "enough").touch()
    assert top.wait() == 0 == job.wait().code
    assert "ok in" in top.text.splitlines()[-1] and top.echoes()
    assert top.raw.count(b"\x1b[?1049h") == top.raw.count(b"\x1b[?1049l") == 1
    assert launch("top").out == launch("ps", "-w").out


def test_keys_for_stacks_and_a_stop(terminal: Open, job: Started):
    top = terminal("top")
    top.until(lambda it: "worker/1" in it.shown)
    top.press("pworker/0 worker/1\r")
    top.until(lambda it: "worker[0-1]: " in it.shown and "any key: back" in it.shown)
    top.press("x" + "ky\r")
    assert top.wait() == 0 and "stopped by launch stop" in top.text
    assert job.wait().code == 143


@pytest.mark.promise("`launch top` gives the terminal back however it ends")
@pytest.mark.parametrize(
    ("end", "code"), [("q", 0), ("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_every_way_out_restores_the_terminal(
    terminal: Open, job: Started, tmp_path: Path, end: str | signal.Signals, code: int
):
    top = terminal("ps", "-w", env={"NO_COLOR": "1"})
    top.until(lambda it: "worker/1" in it.shown and not it.echoes())
    if isinstance(end, str):
        top.press(end)
    else:
        top.process.send_signal(end)
    assert top.wait() == code and top.echoes()
    assert top.raw.endswith((b"\x1b[?1049l\x1b[?25h", b"\x1b[?25h")) and b"\x1b[?1049l" in top.raw
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", top.raw), "no colours"
    (tmp_path / "enough").touch()
    assert job.wait().code == 0


@pytest.mark.promise("`launch top` gives the terminal back however it ends")
def test_ctrl_z_gives_the_terminal_back(terminal: Open, job: Started, tmp_path: Path):
    script = 'set -m; "$@"; echo "stopped $?"; stty -a; fg >/dev/null; echo "left $?"'
    top = terminal("top", command=("sh", "-c", script, "sh", *COMMAND))
    top.until(lambda it: "worker/1" in it.shown)
    top.press("\x1a")
    top.until(lambda it: "stopped 148" in it.text and " icanon" in it.text)
    top.until(lambda it: "worker/1" in it.shown and "q quit" in it.shown)
    top.press("q")
    top.until(lambda it: "left 0" in it.shown)
    assert top.wait() == 0
    (tmp_path / "enough").touch()
    assert job.wait().code == 0


def test_a_launcher_that_was_killed(terminal: Open, job: Started, tmp_path: Path):
    top = terminal("top")
    top.until(lambda it: "worker/1" in it.shown)
    job.send(signal.SIGKILL)
    assert top.wait() == 125 and top.echoes()
    assert "died: its launcher was killed" in top.text
    (tmp_path / "enough").touch()


def test_a_pipe_gets_a_table_then_a_line_for_each_change(launch: Launch, job: Started, tmp_path: Path):
    top = launch.start("top")
    soon(lambda: re.search(r"^worker/1 +localhost .* running ", top.out, re.M))
    assert launch("restart", "latest", "worker/1").code == 0
    soon(lambda: re.search(r"^\d\d:\d\d:\d\d worker/1: attempt 2, running", top.out, re.M))
    (tmp_path / "enough").touch()
    assert top.wait().code == 0 and top.out.splitlines()[-1].startswith("job ")
    assert "\x1b" not in top.out
