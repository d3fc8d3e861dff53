"""Nothing of a job outlives it, whatever its tasks do to get away, whichever process is killed, and when."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import Family, alive, last_run, named, run_of, soon, stopped, stub

#: Every way to get away at once.
ALL = ("ignore", "child", "setsid", "daemon", "cleared", "stopped", "tree")
_PROCESSES = 9


@pytest.mark.promise("what a task leaves behind is killed and reported")
def test_a_task_that_ends_takes_its_family_along(launch: Launch, family: Family):
    """Also where nothing was stopped: the task itself ended, with exit code 0."""
    ended = launch("--grace", "0.2", "--", *stub("family", *ALL, "exit=0"), code=0)
    assert last_run(launch).task("worker/0")["leftovers"] >= _PROCESSES - 1
    assert "left" in ended.err and "behind" in ended.err
    family.gone(0.2)


# ---------------------------------------------------------------------- the launcher is killed


@pytest.mark.promise("launcher killed at any moment, with any child")
def test_kill_9_of_the_launcher_at_any_moment(launch: Launch, family: Family):
    """Ten moments, from before its first line to after the start of sixteen stubborn tasks."""
    words = ["--workers", "16", "--grace", "30", "--", *stub("family", "ignore", "child", "cleared", "sleep")]
    for moment in range(0, 20, 2):
        started = launch.start(*words)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(moment * 0.03)
        started.kill()
        family.gone(2.0)
        family.forget()


@pytest.mark.promise("launcher killed; agent, watchdog or launcher stopped by SIGSTOP before")
@pytest.mark.parametrize("when", ["running", "stopping", "with its group", "agent", "watchdog", "launcher"])
def test_kill_9_of_the_launcher(launch: Launch, family: Family, when: str):
    """A terminal or a batch system kills its group. One process may be stopped: the others do its work."""
    started = family.started(launch, 4, *ALL)
    (agent,) = named(family.alive(), "launch-agent")
    (watchdog,) = named(family.alive(), "launch-watchdog")
    if when == "stopping":
        started.send(signal.SIGINT)
        started.until(lambda it: "Ctrl-C" in it.err)
    elif when == "with its group":
        os.killpg(started.pid, signal.SIGKILL)
    elif when != "running":
        os.kill({"agent": agent, "watchdog": watchdog, "launcher": started.pid}[when], signal.SIGSTOP)
    started.kill()
    family.gone(2.0)


# ---------------------------------------------------------------------- the agent is killed


@pytest.mark.promise("agent or watchdog killed")
@pytest.mark.parametrize("process", ["launch-agent", "launch-watchdog"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_without_its_agent_a_host_is_lost(launch: Launch, family: Family, process: str, number: int):
    started = family.started(launch, 4, *ALL, grace="5")
    (pid,) = named(family.alive(), process)
    os.kill(pid, number)
    assert "localhost" in started.wait(code=125).err
    assert last_run(launch).report["failure"]["reason"] == "host lost"
    family.gone(0.2)


def test_a_second_ctrl_c_does_not_wait_for_an_agent_that_is_stopped(launch: Launch, family: Family):
    started = family.started(launch, 2, *ALL, grace="300")
    (agent,) = named(family.alive(), "launch-agent")
    os.kill(agent, signal.SIGSTOP)
    soon(lambda: stopped(agent))
    started.send(signal.SIGINT)
    started.until(lambda it: "Ctrl-C: stopping 2 tasks" in it.err)
    started.until(lambda it: "waiting for" in it.err)
    ended = started.stop(signal.SIGINT, code=130)
    assert "its agent did not answer in 1s" in ended.err and "were killed" in ended.err
    assert set(last_run(launch).states().values()) == {"lost"}
    family.gone(0.2)


def test_agent_and_watchdog_killed_together(launch: Launch, family: Family):
    """No process is left to end the tasks: still the launch ends, with exit code 125."""
    started = family.started(launch, 2)
    helpers = [*named(family.alive(), "launch-watchdog"), *named(family.alive(), "launch-agent")]
    for pid in helpers:
        os.kill(pid, signal.SIGSTOP)
    for pid in helpers:
        os.kill(pid, signal.SIGKILL)
    assert started.wait().code == 125
    soon(lambda: not any(map(alive, helpers)))
    family.kill()
    family.gone(1.0)


def _orphaned(launch: Launch, family: Family, others: set[int], killed: bool) -> tuple[Path, set[int]]:
    """A run whose launcher was killed, watchdog and agent killed or stopped: its folder, its processes."""
    family.forget()
    started = family.started(launch, 2, "child", "cleared", "daemon")
    processes = family.alive() - others - {started.pid}
    helpers = [*named(processes, "launch-watchdog"), *named(processes, "launch-agent")]
    run = run_of(launch, started).path
    for pid in (started.pid, *helpers):
        os.kill(pid, signal.SIGSTOP)
    soon(lambda: all(map(stopped, helpers)))
    for pid in helpers if killed else ():
        os.kill(pid, signal.SIGKILL)
    started.kill()
    soon(lambda: not killed or not any(map(alive, helpers)))
    orphans = {pid for pid in processes if alive(pid)}
    assert len(orphans) >= 2 * 4
    return run, orphans


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize("command", [["ps"], ["stop", "RUN"], ["--", "true"]])
def test_the_next_command_kills_orphans(launch: Launch, family: Family, command: list[str], killed: bool):
    """Another job that runs is left alone."""
    other = launch.start("--workers", "1", "--", "sleep", "300")
    soon(lambda: named(family.alive(), "sleep"))
    others = family.alive()
    for _ in range(20):  # a command of another test on this machine may be first, or in the middle of it
        run, orphans = _orphaned(launch, family, others, killed)
        ended = launch(*(word.replace("RUN", run.name) for word in command), code=0)
        if f"job {run.name} died and left {len(orphans)} processes here: killed\n" in ended.err:
            break
        soon(lambda left=orphans: not any(map(alive, left)))  # type: ignore[misc]
    else:
        pytest.fail(f"{len(orphans)} were left; stderr: {ended.err}")
    assert not any(map(alive, orphans))
    assert others <= family.alive()
    assert other.stop(signal.SIGTERM).code == 143
    family.gone(0.5)
    assert "died" not in launch.here("ps").err
    assert "agents" not in json.loads((run / "launcher.json").read_text())


def test_stopping_a_run_whose_launcher_was_killed_waits_for_its_agent(launch: Launch, family: Family):
    started = family.started(launch, 2, "ignore", "child")
    started.kill()
    ended = launch.here("stop", "latest")
    assert not family.alive()
    assert (ended.code, ended.err) == (0, "")
    assert "had already ended without a report" in ended.out


#: A task that stops or traces its agent, keeps the link's pipes open, and survives SIGTERM.
_HOLDER = """
import ctypes, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
agent = os.getppid()
for name in os.listdir(f"/proc/{agent}/fd"):
    try:
        os.open(f"/proc/{agent}/fd/{name}", os.O_RDWR)
    except OSError:
        pass
if "trace" in sys.argv:
    libc = ctypes.CDLL(None, use_errno=True)
    print("seized" if libc.ptrace(0x10, agent, None, None) == 0 else "refused", flush=True)
else:
    os.kill(agent, signal.SIGSTOP)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["stop", "trace"])
def test_a_task_that_stops_or_traces_its_agent(launch: Launch, family: Family, how: str):
    """The watchdog sees that the launcher is gone, whatever keeps the link open; a tracer is ended, too."""
    started = launch.start("--workers", "1", "--", sys.executable, "-c", _HOLDER, how)
    soon(lambda: any(map(stopped, named(family.alive(), "launch-agent"))))
    started.kill()
    family.gone(5)
