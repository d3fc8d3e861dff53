"""``--on-event COMMAND``: told of restarts, lost hosts and stalls, at most once a minute of each kind."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.common.cluster import TaskId
from launcher.common.events import AgentLost, Noticed, Restarting
from launcher.job import Placement, RunPaths
from launcher.launch.event_command import EventCommandRunner
from launcher.output.renderers import DisplayEvent, RunInfo
from launcher.runs.end_command import UserCommand
from tests.conftest import Launch, executable
from tests.seeing import Family, alive, last_run, named, soon

#: A word of the command that nobody may see.
SECRET = "T0K3N"
#: Tasks that fail once and twice.
FAILS_ONCE = ("--restarts", "1", "--", "sh", "-c", "test $LAUNCH_ATTEMPT -gt 1 || exit 3")
FAILS_TWICE = ("--restarts", "5", "--", "sh", "-c", "test $LAUNCH_ATTEMPT -gt 2 || exit 3")


class Listener:
    """A command that notes what it was told, a line a call."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "notes"
        names = "$LAUNCH_EVENT|$LAUNCH_EVENT_TEXT|$LAUNCH_STATUS|$LAUNCH_RUN|$LAUNCH_NAME|$LAUNCH_REPORT"
        self.path = executable(folder / "listen", f'#!/bin/sh\necho "{names}" >>{self._notes}\necho heard\n')
        self.option = ("--on-event", f"{self.path} {SECRET}")

    def notes(self) -> list[list[str]]:
        """The words of each call."""
        return (
            [line.split("|") for line in self._notes.read_text().splitlines()] if self._notes.exists() else []
        )


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    return Listener(tmp_path / "it")


@pytest.mark.promise("`--on-event`: a restart, a lost host, a stall; one call a minute for each kind")
def test_of_two_restarts_within_a_minute_it_is_told_once(launch: Launch, listener: Listener):
    ended = launch(*listener.option, "--name", "tells", *FAILS_TWICE, code=0)
    ((kind, text, *known),) = listener.notes()
    assert kind == "restart" and "worker/0" in text and "exit code 3" in text
    run = last_run(launch)
    assert known == ["running", run.path.name, "tells", str(run.path / "report.json")]
    assert ended.err.count("launch: --on-event listen: heard") == 1
    assert SECRET not in ended.out + ended.err
    assert not [path for path in run.path.rglob("*") if path.is_file() and SECRET in path.read_text()]


def test_a_stall_that_ends_the_job(launch: Launch, listener: Listener, tmp_path: Path):
    """The launcher waits for the call. The command stands in a job file, too."""
    (tmp_path / "job.yaml").write_text(
        f"command: [sh, -c, 'exec sleep 300']\nroles: {{worker: 1}}\nstall: 0.5\n"
        f"on_event: [{listener.path}, {SECRET}]\n"
    )
    launch(tmp_path / "job.yaml", code=124)
    ((kind, text, *_),) = listener.notes()
    assert kind == "stall" and "worker/0" in text and "stalled" in text


def test_a_lost_host(launch: Launch, listener: Listener, family: Family):
    started = launch.start(*listener.option, "--", "sh", "-c", "echo up; exec sleep 300").up(1)
    (agent,) = named(family.alive(), "launch-agent")
    os.kill(agent, signal.SIGKILL)
    started.wait(code=125)
    ((kind, text, *_),) = listener.notes()
    assert kind == "host-lost" and "localhost" in text


def test_one_that_hangs_holds_nothing_up(launch: Launch, tmp_path: Path):
    """The job runs on beside it. At the end Ctrl-C ends it and what it has started."""
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 300 & echo $! $$ >{pids}; wait; sleep 300"
    started = launch.start("--on-event", shlex.join(["sh", "-c", script]), *FAILS_ONCE)
    soon(lambda: pids.exists() and pids.read_text())
    started.until(lambda it: "waiting for the command of --on-event" in it.err)
    ended = started.stop(signal.SIGINT, code=0)
    assert ended.said[-1] == "launch: --on-event sh: killed after Ctrl-C"
    # The kernel may take a moment to end what was killed.
    soon(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), 5)


@pytest.mark.parametrize("command", ["no-such-program x", f"'/bin/echo {SECRET}'"])
def test_a_command_that_cannot_run_is_bad_input(launch: Launch, command: str):
    ended = launch("--on-event", command, "--", "true", code=2)
    assert "--on-event:" in ended.err and SECRET not in ended.err


def lost(host: str) -> AgentLost:
    return AgentLost(host, 1.0, f"{host}: no \x1b[2Janswer")


def nan(metric: str) -> Noticed:
    return Noticed(1.0, "nan", TaskId("worker/0"), f"worker/0: {metric} is nan")


RESTART = Restarting({TaskId("worker/0"): 1})


@pytest.mark.parametrize(
    ("moments", "told"),
    [
        ([(0, [lost("a"), lost("b")]), (30, [lost("c")]), (59, [])], ["host b is lost (1 more)"]),
        ([(0, [lost("a")]), (30, [lost("b")]), (61, [])], ["host a is lost", "host b is lost"]),
        ([(0, [lost("a")]), (30, [RESTART, RESTART]), (61, [])], ["host a is lost", "worker/0 (1 more)"]),
        ([(0, [nan("loss"), nan("acc")]), (9, [])], ["worker/0: acc is nan (1 more)"]),
        ([(0, [lost(f"h{number}") for number in range(5000)])], ["host h4999 is lost (4999 more)"]),
    ],
)
def test_when_it_is_told_what(
    moments: Sequence[tuple[float, Sequence[DisplayEvent]]], told: Sequence[str], tmp_path: Path
):
    script = 'echo "$LAUNCH_EVENT_TEXT" >>notes'
    runner = EventCommandRunner(UserCommand(("/bin/sh", "-c", script), str(tmp_path)))
    runner.begin(RunInfo("20261129-120205-jrqh3", Placement(()), RunPaths(str(tmp_path)), started_at=0.0))
    for now, happened in moments:
        for event in happened:
            runner.on(event)
        runner.tick(now)
        runner.end(lambda: False)
    lines = (tmp_path / "notes").read_text().splitlines()
    for line, text in zip(lines, told, strict=True):
        assert text.partition(" (")[0] in line and text.partition("(")[2].removesuffix(")") in line
        assert "\x1b" not in line
