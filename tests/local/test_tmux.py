"""``--tmux``: a real tmux, a pane a task."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Launch, Started
from tests.local.terminal import Terminal
from tests.seeing import Family, last_run, soon, stub

pytestmark = pytest.mark.tmux


@pytest.fixture(autouse=True)
def tmux_is_here() -> None:
    """A test that can't be run is no test that passed."""
    if shutil.which("tmux") is None:
        pytest.fail("these tests need tmux: apt-get install tmux")


class Session:
    """The session of a job, seen from outside."""

    def __init__(self, text: str) -> None:
        found = re.search(r"tmux -L (\S+) attach", text)
        assert found, text
        self._socket = found[1]

    def __call__(self, *words: str) -> str:
        """What a tmux command prints; empty if there is no such session (any more)."""
        command = ["tmux", "-L", self._socket, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def titles(self) -> dict[str, str]:
        """Pane -> its title."""
        listed = self("list-panes", "-a", "-F", "#{pane_id}=#{@task} #{@state}")
        return dict(line.split("=", 1) for line in listed.splitlines())

    def pane(self, task: str) -> str:
        """What the pane of a task shows; empty if it has none (yet)."""
        panes = [pane for pane, title in self.titles().items() if title.startswith(f"{task} ")]
        return self("capture-pane", "-p", "-t", panes[0]) if panes else ""

    def is_there(self) -> bool:
        """Whether its server runs."""
        return bool(self("list-sessions"))

    def socket(self) -> Path:
        """Where its server listens, or did."""
        return Path(os.environ.get("TMUX_TMPDIR", "/tmp"), f"tmux-{os.getuid()}", self._socket)


def _started(launch: Launch, *words: str) -> tuple[Started, Session]:
    started = launch.start("--tmux", *words).until(lambda it: "attach" in it.err)
    return started, Session(started.err)


def test_a_pane_a_task_titled_and_live(launch: Launch, family: Family, tmp_path):
    go, end = tmp_path / "go", tmp_path / "end"
    script = (
        f"echo I am $JOB_NAME $TASK_INDEX; until test -e {go}; do sleep 0.05; done; echo more; "
        f"test $JOB_NAME = ps && exec sleep 60; until test -e {end}; do sleep 0.05; done"
    )
    started, session = _started(launch, "--ps", "1", "--workers", "2", "--", "sh", "-c", script)
    soon(lambda: sum("pid" in title for title in session.titles().values()) == 3)
    tasks = ("worker/0", "worker/1", "ps/0")
    assert [title.partition(" ")[0] for title in session.titles().values()] == [*tasks]
    assert session.socket().is_socket()
    soon(lambda: all(f"I am {task.replace('/', ' ')}" in session.pane(task) for task in tasks))
    go.touch()
    soon(lambda: "more" in session.pane("worker/0"))
    end.touch()
    started.wait(code=0)
    assert last_run(launch).states() == {"worker/0": "succeeded", "worker/1": "succeeded", "ps/0": "stopped"}
    assert not session.is_there()
    assert not session.socket().exists()
    family.gone(0.5)


def test_more_tasks_than_fit_into_a_window(launch: Launch):
    started, session = _started(launch, "--workers", "20", "--", "sleep", "60")
    soon(lambda: sum("pid" in title for title in session.titles().values()) == 20)
    assert len(session("list-windows", "-F", "#{window_id}").split()) == 3
    assert started.stop(signal.SIGTERM).code == 143


def test_closing_the_session_ends_the_job(launch: Launch, family: Family):
    words = ["--workers", "2", "--grace", "0.3", "--", *stub("family", "ignore", "child", "daemon", "sleep")]
    started, session = _started(launch, *words)
    started.until(lambda _: family.ready() == 2)
    session("kill-session")
    assert "tmux session" in started.wait(code=129).err
    assert set(last_run(launch).states().values()) == {"stopped"}
    family.gone(0.5)


def test_kill_9_of_the_launcher_leaves_no_tmux(launch: Launch, family: Family):
    words = ["--workers", "3", "--", *stub("family", "ignore", "child", "sleep")]
    started, session = _started(launch, *words)
    started.until(lambda _: family.ready() == 3)
    started.kill()
    family.gone(4.0)
    assert not session.is_there()


def test_kill_9_of_the_launcher_while_the_session_is_made(launch: Launch, family: Family):
    for moment in range(0, 8, 2):
        started = launch.start("--tmux", "--workers", "4", "--", *stub("family", "ignore", "sleep"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(0.1 + moment * 0.03)
        started.kill()
        family.gone(4.0)
        family.forget()


def test_a_tmux_that_is_stuck_holds_nothing_up(launch: Launch, family: Family):
    started, session = _started(launch, "--workers", "2", "--", *stub("family", "child", "sleep"))
    started.until(lambda _: family.ready() == 2)
    server = int(session("display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    started.process.terminate()
    started.wait(40, code=143)
    soon(lambda: not os.path.exists(f"/proc/{server}"))
    family.gone(0.5)


def test_weird_names_and_colours_do_no_harm(launch: Launch, weird_path):
    """The folder's name is in tmux's command line."""
    folder = weird_path / "run #{pid} 100%"
    script = r"printf '\033[31mred\033[0m\n'; sleep 60"
    words = ["--run-dir", str(folder), "--workers", "2"]
    started, session = _started(launch, *words, "--", "sh", "-c", script)
    soon(lambda: "red" in session.pane("worker/1"))
    assert started.stop(signal.SIGTERM).code == 143


def test_without_tmux(launch: Launch, tmp_path):
    """Reported before anything is started."""
    ended = launch("--tmux", "--", "/bin/touch", tmp_path / "started", env={"PATH": str(tmp_path)}, code=125)
    assert "apt-get install tmux" in ended.err
    assert not (tmp_path / "started").exists() and not launch.state.exists()


# ---------------------------------------------------------------------- in a terminal

Open = Callable[..., Terminal]


@pytest.mark.parametrize(("code", "over"), [(0, "ok"), (7, "failed: worker/0, exit code 7")])
def test_attached(terminal: Open, launch: Launch, family: Family, tmp_path: Path, code: int, over: str):
    """The session fills the terminal; when the job is over, q leaves it, and the table is printed."""
    script = f"echo I am $TASK_INDEX; until test -e {tmp_path / 'go'}; do sleep 0.05; done; exit {code}"
    it = terminal("--tmux", "--", "sh", "-c", script)
    it.until(lambda it: "I am 0" in it.text and "worker/0 pid" in it.text)
    (tmp_path / "go").touch()
    it.until(lambda it: f"job over: {over}" in it.text)
    assert it.process.poll() is None, "it stays until a key is pressed"
    it.press("q")
    assert it.wait() == code
    assert "STATE" in it.text[it.text.rindex("TASK") :]
    family.gone(0.5)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda it: it.press("\x03"), 130),
        (lambda it: it.process.send_signal(signal.SIGTERM), 143),
        (Terminal.close, 129),
    ],
    ids=["Ctrl-C", "SIGTERM", "window closed"],
)
def test_ends_of_an_attached_job(
    terminal: Open, launch: Launch, family: Family, act: Callable[[Terminal], None], code: int
):
    """None of them waits for a key: neither while the job runs nor when it is over."""
    it = terminal("--tmux", "--workers", "2", "--", "sh", "-c", "echo I am $TASK_INDEX; exec sleep 60")
    it.until(lambda it: "I am 0" in it.text and "I am 1" in it.text)
    act(it)
    if code != 129:
        assert it.wait() == code
    assert it.process.returncode == code
    assert set(last_run(launch).states().values()) == {"stopped"}
    family.gone(1.0)


def test_a_session_that_is_only_looked_at_ends_on_a_signal(terminal: Open, launch: Launch, family: Family):
    it = terminal("--tmux", "--", "echo", "hi")
    it.until(lambda it: "job over" in it.text)
    it.process.send_signal(signal.SIGTERM)
    assert it.wait() == 0
    assert "succeeded" in it.text
    family.gone(0.5)
