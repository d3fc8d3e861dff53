"""``--on-end COMMAND``: run once when the job is over, however it ended, and never twice."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from launcher.job import RunPaths
from launcher.runs import end_command
from launcher.runs.end_command import UserCommand
from launcher.runs.run import Run
from tests.conftest import Ended, Launch, executable, in_shell
from tests.seeing import RunFolder, alive, last_run, run_of, soon

#: A word of the command that nobody may see.
SECRET = "T0K3N"
#: A task that runs until it is stopped.
WAITS = ("--", "sh", "-c", "echo up; exec sleep 300")


class Notifier:
    """A command that notes how it was called. Its arguments are a secret, and its exit code."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "notes"
        names = "$LAUNCH_STATUS $LAUNCH_RUN <$LAUNCH_NAME> $LAUNCH_REPORT $(cut -d' ' -f5,6 /proc/$$/stat) $$"
        script = f'#!/bin/sh\nread line\necho "{names} $PWD" >>{self._notes}\necho noted; exit ${{2:-0}}\n'
        self.path = executable(folder / "notify", script)
        self.option = ("--on-end", f"{self.path} {SECRET}")

    def notes(self) -> list[list[str]]:
        """The words of each note."""
        return [line.split() for line in self._notes.read_text().splitlines()] if self._notes.exists() else []

    def note(self, run: RunFolder) -> str:
        """The status in the only note, which is about this run. The command had a group of its own."""
        ((status, name, _, report, group, session, pid, _),) = self.notes()
        assert (name, report) == (run.path.name, str(run.path / "report.json"))
        assert group == session == pid
        assert not (run.path / "on-end.json").exists()
        return status


@pytest.fixture
def notifier(tmp_path: Path) -> Notifier:
    return Notifier(tmp_path / "it")


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["--", "true"], "succeeded", 0),
        (["--", "sh", "-c", "exit 3"], "failed", 3),
        (["--timeout", "0.2", "--", "sleep", "300"], "failed", 124),
        (["--report", "/dev/full", "--", "true"], "failed", 125),
    ],
)
def test_it_runs_at_each_end(launch: Launch, notifier: Notifier, words: list[str], status: str, code: int):
    ended = launch(*notifier.option, "--name", "tells", *words, code=code)
    assert notifier.note(last_run(launch)) == status
    assert notifier.notes()[0][2] == "<tells>"
    assert ended.said[-1] == "launch: --on-end notify: noted"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_it_runs_after_a_signal(launch: Launch, notifier: Notifier, number: int, code: int):
    launch.start(*notifier.option, *WAITS).up(1).stop(number, code=code)
    assert notifier.note(last_run(launch)) == "stopped"


@pytest.mark.parametrize("words", [("stop",), ("stop", "--now")])
def test_it_runs_after_a_stop_in_the_background(launch: Launch, notifier: Notifier, words: tuple[str, ...]):
    launch("-d", *notifier.option, *WAITS, code=0)
    launch(*words, code=0)
    assert notifier.note(last_run(launch)) == "stopped"
    assert "launch: --on-end notify: noted\n" in (last_run(launch).path / "launcher.log").read_text()


def test_its_failure_is_a_line(launch: Launch, notifier: Notifier):
    ended = launch("--on-end", f"{notifier.path} {SECRET} 7", "true", code=0)
    assert ended.said[-1] == "launch: --on-end notify: exit code 7"
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize("change", ["chmod 0777", "rm"])
def test_it_runs_if_a_task_has_changed_its_file(launch: Launch, notifier: Notifier, change: str):
    """The launcher itself need not believe it. There are file systems without permissions, too."""
    launch(*notifier.option, "--", "sh", "-c", f"{change} {launch.state}/*/on-end.json", code=0)
    assert notifier.note(last_run(launch)) == "succeeded"


def test_nobody_can_read_its_output(launch: Launch, notifier: Notifier):
    command = in_shell('exec "$@" 2>/dev/full')
    launch.start(*notifier.option, "true", command=command).wait(code=0)
    assert notifier.note(last_run(launch)) == "succeeded"


def test_it_runs_if_no_task_can_start(launch: Launch, notifier: Notifier):
    launch("--hosts", "no-such-host.invalid", *notifier.option, "--", "true", code=125)
    assert notifier.note(last_run(launch)) == "failed"


# ---------------------------------------------------------------------- a launcher that was killed


def kill_launcher(launch: Launch, *words: str) -> RunFolder:
    """Start a job, and kill its launcher when its task runs."""
    started = launch.start(*words, *WAITS).up(1)
    run = run_of(launch, started)
    started.kill()
    return run


def test_after_sigkill_one_of_many_sweeps_runs_it(launch: Launch, notifier: Notifier, tmp_path: Path):
    run = kill_launcher(launch, *notifier.option, "--name", "nightly")
    assert (run.path / "on-end.json").stat().st_mode & 0o777 == 0o600
    sweeps = [launch.start("ps", cwd=tmp_path) for _ in range(4)]
    sweeps += [launch.start("--", "true", cwd=tmp_path) for _ in range(2)]
    ends = [each.wait(code=0) for each in sweeps]
    assert notifier.note(run) == "lost"
    assert notifier.notes()[0][-1] == os.getcwd(), "the folder of the launch that was killed"
    assert notifier.notes()[0][2] == "<nightly>"
    assert sum("its command of --on-end runs now: notify" in ended.err for ended in ends) == 1
    assert sum("--on-end notify: noted" in ended.err for ended in ends) == 1


def test_stop_runs_it(launch: Launch, notifier: Notifier):
    run = kill_launcher(launch, *notifier.option)
    launch("stop", run.path.name, code=0)
    assert notifier.note(run) == "lost"


def test_a_launcher_killed_after_its_report(launch: Launch, notifier: Notifier):
    started = launch.start(*notifier.option, *WAITS).up(1)
    run = run_of(launch, started)
    stored = (run.path / "on-end.json").read_bytes()
    started.stop(signal.SIGTERM)
    assert notifier.note(run) == "stopped"
    (run.path / "on-end.json").touch(0o600)
    (run.path / "on-end.json").write_bytes(stored)
    launch("--", "true", code=0)
    assert [note[0] for note in notifier.notes()] == ["stopped", "stopped"]


@pytest.mark.parametrize("change", ["mode", "link", "second link", "content"])
def test_a_file_of_somebody_else_runs_nothing(
    launch: Launch, notifier: Notifier, tmp_path: Path, change: str
):
    run = kill_launcher(launch, *notifier.option)
    file, other = run.path / "on-end.json", tmp_path / "other"
    if change == "mode":
        file.chmod(0o640)
    elif change == "link":
        shutil.move(file, other)
        file.symlink_to(other)
    elif change == "second link":
        os.link(file, other)
    else:
        file.write_text('{"words": 3}')
        launch("ps", code=0)
        file.write_text("[" * 200_000)
    launch("ps", code=0)
    launch("stop", run.path.name, code=0)
    assert notifier.notes() == []


# ---------------------------------------------------------------------- input


@pytest.mark.parametrize(
    "command",
    [
        "",
        "no-such-program x",
        "./no-such-program",
        "/etc/passwd",
        "/tmp",
        "'unbalanced",
        f"'/bin/echo {SECRET}'",
        f"https://hooks.example.com/{SECRET}",
    ],
)
@pytest.mark.parametrize("place", ["option", "job.yaml", "launch.toml"])
def test_a_command_that_cannot_run_is_bad_input(launch: Launch, tmp_path: Path, command: str, place: str):
    ended = given_in(launch, tmp_path, place, command)
    assert ended.code == 2
    assert ("--on-end:" if place == "option" else f"{place}:1") in ended.err
    assert SECRET not in ended.err
    assert not launch.state.exists()


def given_in(launch: Launch, folder: Path, place: str, command: object, *words: str) -> Ended:
    """Run ``true`` with this command for the end, from an option or a file."""
    if place == "option":
        return launch("--on-end", str(command), *words, "true", cwd=folder)
    key = f"on_end: {json.dumps(command)}\n"
    if place == "job.yaml":
        (folder / place).write_text(f"{key}command: 'true'\nroles: {{worker: 1}}\n")
        return launch(place, *words, cwd=folder)
    (folder / place).write_text(key.replace(":", " =", 1))
    return launch(*words, "true", cwd=folder)


@pytest.mark.parametrize("place", ["option", "job.yaml", "launch.toml"])
def test_nobody_sees_its_words(launch: Launch, notifier: Notifier, tmp_path: Path, place: str):
    command = shlex.join([str(notifier.path), SECRET])
    dry = [
        given_in(launch, tmp_path, place, command, *words)
        for words in (["--dry-run"], ["--dry-run", "--json"])
    ]
    ends = [*dry, given_in(launch, tmp_path, place, command, "--json", "--report", "report")]
    assert [ended.code for ended in ends] == [0, 0, 0]
    assert notifier.note(last_run(launch)) == "succeeded"
    listed = [launch("ps", "--all"), launch("ps", "--all", "--json"), launch("attach")]
    files = [
        path.read_text()
        for path in [*last_run(launch).path.rglob("*"), tmp_path / "report"]
        if path.is_file()
    ]
    shown = [text for ended in (*ends, *listed) for text in (ended.out, ended.err)]
    assert not [text for text in (*files, *shown) if SECRET in text]


def test_a_list_in_a_job_file(launch: Launch, notifier: Notifier, tmp_path: Path):
    given_in(launch, tmp_path, "job.yaml", [str(notifier.path), "a b", "3"]).expected(0)
    assert notifier.note(last_run(launch)) == "succeeded"


def test_what_only_a_shell_reads_is_noted(launch: Launch):
    ended = launch("--on-end", f"true ${SECRET} ", "--", "true", code=0)
    assert "no shell reads it" in ended.err and SECRET not in ended.err
    assert "no shell reads it" in launch("--on-end", "true && false", "--", "true", code=0).err
    assert "no shell" not in launch("--on-end", "sh -c 'true && true $HOME'", "--", "true", code=0).err


# ---------------------------------------------------------------------- commands that behave badly


def test_ctrl_c_ends_one_that_hangs(launch: Launch, tmp_path: Path):
    """It, and what it has started; the exit code is that of the job."""
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 300 & echo $! $$ >{pids}; wait; sleep 300"
    started = launch.start("--on-end", shlex.join(["sh", "-c", script]), "--", "sh", "-c", "exit 5")
    soon(lambda: pids.exists() and pids.read_text())
    started.send(signal.SIGTERM)  # It does not end it.
    ended = started.stop(signal.SIGINT, code=5)
    assert ended.said[-1] == "launch: --on-end sh: killed after Ctrl-C"
    assert ended.elapsed < 20
    soon(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def run_in(folder: Path) -> Run:
    return Run("20261129-120205-jrqh3", RunPaths(str(folder)), owner=None, started_at=0.0)


TOO_LONG = "it, or what it started, did not end within 1s: killed"


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("sleep 300", TOO_LONG),
        ("kill -STOP $$", TOO_LONG),
        ("yes", TOO_LONG),
        ("sleep 300 & exit 3", TOO_LONG),
        ("sleep 300 >/dev/null 2>&1 & true", TOO_LONG),
        ("sleep 0.1 & true", ""),
        ("setsid sh -c 'exec sleep 1.5' & true", ""),
        ("head -c 500000 /dev/zero | tr '\\0' x", ""),
    ],
)
def test_any_command_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, failure: str):
    monkeypatch.setattr(end_command, "LIMIT_SECONDS", 1.0)
    command = UserCommand(("/bin/sh", "-c", script), str(tmp_path))
    lines = end_command.run_command("--on-end", command, run_in(tmp_path), "lost")
    known = [line for line in lines if "killed" in line or "exit code" in line]
    assert known == ([f"--on-end sh: {failure}"] if failure else [])
    assert sum(len(line.removeprefix("--on-end sh: ")) for line in lines) < 5000


def test_one_that_cannot_be_started(tmp_path: Path):
    gone = UserCommand((str(tmp_path / "gone"),), str(tmp_path))
    folder_gone = UserCommand(("/bin/true",), str(tmp_path / "gone"))
    for command in (gone, folder_gone, UserCommand(("/bin/true", "\0"), str(tmp_path))):
        (line,) = end_command.run_command("--on-end", command, run_in(tmp_path), "lost")
        assert ": it cannot be started: " in line
