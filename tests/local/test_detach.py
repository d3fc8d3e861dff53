"""``launch -d`` and ``launch attach``: a job outlives its terminal, and is watched from another."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Launch, executable, in_shell
from tests.local.terminal import Terminal
from tests.seeing import Family, last_run, soon

Open = Callable[..., Terminal]
NAME = re.compile(r"\d{8}-\d{6}-\w{5}")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def counting(folder: Path) -> list[str]:
    """A command that prints numbered lines until there is a file ``go``; the last line has no newline.

    worker/1 fails when worker/0 has printed all: its failure stops that.
    """
    go, end = folder / "go", folder / "end"
    prints = f"until test -e {go}; do i=$((i+1)); echo line $i of it; sleep 0.02; done; printf end"
    fails = f"until test -e {end}; do sleep 0.02; done; exit 7"
    return ["sh", "-c", f"i=0; {prints}; test $TASK_INDEX = 1 || exec touch {end}; {fails}"]


def pid_of(launch: Launch) -> int:
    """The launcher of the newest run."""
    return int(json.loads((last_run(launch).path / "launcher.json").read_text())["pid"])


def numbers(text: str, task: str) -> list[int]:
    """The numbers of the lines of a task."""
    return [int(number) for number in re.findall(rf"{task} +\| line (\d+) of it", text)]


@pytest.mark.promise("`-d`, the terminal is closed, `attach`: no line is lost")
def test_no_line_is_lost_by_a_closed_terminal(terminal: Open, launch: Launch, family: Family, tmp_path: Path):
    first = terminal("-d", "--workers", "2", "--", *counting(tmp_path))
    assert first.wait() == 0
    name = first.text.splitlines()[-1]
    assert NAME.fullmatch(name)
    assert "launch: job" in first.text and "| line" not in first.text
    first.close()
    launcher = pid_of(launch)
    os.kill(launcher, signal.SIGHUP)
    second = terminal("attach", name)
    second.until(lambda it: len(numbers(it.text, "worker/1")) > 20)
    (tmp_path / "go").touch()
    assert second.wait() == 7
    for task in ("worker/0", "worker/1"):
        found = numbers(second.text, task)
        logged = numbers(re.sub("^", f"{task} | ", last_run(launch).log(task).decode(), flags=re.M), task)
        assert logged == list(range(1, logged[-1] + 1))
        assert found == logged[found[0] - 1 :]
        assert f"{task} | end" in second.text
    assert second.text.count("job " + name) == 2, "the first line and the verdict"
    assert second.text.rstrip().splitlines()[-1] == f"job {name}: failed, exit code 7 (worker/1)"
    assert "first to fail: worker/1" in second.text and "TASK" in second.text
    family.gone(0.5)


def test_only_the_name_is_printed(launch: Launch, tmp_path: Path):
    """No process keeps the pipes of the command, so that ``name=$(launch -d ...)`` returns."""
    shell = in_shell('name=$("$@"); echo "<$name>"; "$@" 2>&1 | tail -n 1')
    ended = launch.start("-q", "-d", "--", *counting(tmp_path), command=shell).wait()
    names = ended.out.replace("<", "").replace(">", "").split()
    assert sorted(names) == sorted(path.name for path in launch.state.iterdir())
    attached = [launch.start("attach", name) for name in names]
    (tmp_path / "go").touch()
    ends = [each.wait() for each in attached]
    assert [ended.code for ended in ends] == [0, 0]
    assert "TASK" not in ends[0].out, "--quiet"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--workers", "2", "--", "./broken"], 126, "first to fail: worker/"),
        (["one-starts.yaml"], 126, "first to fail: later/0"),
        (["--", "no-such-program"], 127, "program not found"),
        (["--workers", "0", "--", "true"], 2, "no task"),
        (["--json", "--", "true"], 2, "--detach and --json both"),
        (["--tmux", "--", "true"], 2, "--detach and --tmux both"),
        (["--show", "worker", "--", "true"], 2, "--detach and --show both"),
    ],
    ids=str,
)
def test_a_job_that_does_not_start(launch: Launch, tmp_path: Path, words: list[str], code: int, message: str):
    executable(tmp_path / "broken", "#!/no/such/interpreter\n")
    roles = "roles: {first: {command: sleep 60}, later: {command: ./broken}}\n"
    (tmp_path / "one-starts.yaml").write_text(roles)
    ended = launch("--detach", *words, cwd=tmp_path)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err
    assert launch.state.exists() == (code == 126)


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        ("\x03y\n", 143, "stopped by SIGTERM"),
        ("\x03n\n", 130, "runs on; launch attach"),
        ("\x03\x03", 130, "runs on; launch attach"),
        ("\x03\ny", 7, "failed, exit code 7"),
    ],
    ids=["stop", "leave", "twice", "go on"],
)
def test_ctrl_c_asks(
    terminal: Open, launch: Launch, family: Family, tmp_path: Path, keys: str, code: int, message: str
):
    assert launch("-d", "--workers", "2", "--", *counting(tmp_path)).code == 0
    it = terminal("attach")
    it.until(lambda it: numbers(it.text, "worker/0"))
    it.press(keys[0])
    it.until(lambda it: "[y] stop, [n] detach, [Enter] continue" in it.text)
    it.press(keys[1:])
    if code == 7:
        seen = len(numbers(it.text, "worker/0"))
        it.until(lambda it: len(numbers(it.text, "worker/0")) > seen + 10)
        (tmp_path / "go").touch()
    assert it.wait() == code
    assert message in it.text
    assert (b"\x1b[1;31mjob " in it.raw) == (code != 130), "the end in colours"
    if code == 130:
        assert launch.here("stop").code == 0
    family.gone(0.5)


def test_ctrl_c_without_a_terminal_leaves(launch: Launch, tmp_path: Path):
    started = launch.start("--", *counting(tmp_path)).until(lambda it: "worker/0 | line" in it.out)
    attached = launch.start("attach", "-n", "0").until(lambda it: "worker/0 | line" in it.out)
    assert attached.stop(signal.SIGINT).code == 130
    assert " ago with" not in attached.err
    attached = launch.start("attach")
    (tmp_path / "go").touch()
    ended = started.wait()
    assert attached.wait().code == ended.code == 0
    assert attached.out.splitlines()[-4:] == ended.out.splitlines()[-4:], "the table"
    later = launch("attach")
    assert later.code == 0, "the newest, when none is running"
    assert re.search(rf"^launch: {NAME.pattern} ended [\d.]+s ago with exit code 0$", later.err, re.MULTILINE)


def test_the_first_line_of_the_launcher_is_the_first_that_is_shown(launch: Launch, tmp_path: Path):
    name = launch("-d", "--", *counting(tmp_path)).out.strip()
    launch.start("logs", "-f").until(lambda it: "line 3" in it.out)
    attached = launch.start("attach").until(lambda it: "line 3" in it.out)
    (tmp_path / "go").touch()
    assert attached.wait().code == 0
    assert re.match(rf"{TIME.pattern} launch: job {name}: ", attached.out)


def test_each_message_in_the_file_of_the_launcher_has_its_time(launch: Launch):
    started = launch(
        "-d", "--restarts", "1", "--", "sh", "-c", "test $LAUNCH_ATTEMPT = 1 && exit 3; sleep 60"
    )
    assert not TIME.search(started.err), "whoever waits for the start needs none"
    soon(lambda: b"attempt 2" in last_run(launch).log("worker/0"))
    assert launch("stop").code == 0
    text = (last_run(launch).path / "launcher.log").read_text()
    messages, _, _ = text.partition("TASK ")  # where the table begins
    assert [line for line in messages.splitlines() if not re.match(rf"{TIME.pattern} launch: ", line)] == []
    assert len(messages.splitlines()) >= 2
    failed = launch("-d", "/missing/program", code=127)
    assert not TIME.search(failed.err)


def test_a_launcher_that_is_killed(launch: Launch, family: Family, tmp_path: Path):
    assert launch("-d", "--", *counting(tmp_path)).code == 0
    watching = [launch.start("attach"), launch.start("logs", "-f")]
    for each in watching:
        each.until(lambda it: "line 3" in it.out)
    os.kill(pid_of(launch), signal.SIGKILL)
    for each in watching:
        assert "has ended without a report: its launcher died" in each.wait(10, code=125).err
    family.gone(2.0)
