"""Nothing of a job outlives it: whatever its tasks did to get away, whoever was killed, and when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Launch, Started
from tests.local.seeing import Family, alive, last_run, named, run_of, soon, stopped, stub

#: Every way to get away at once.
ALL = ("ignore", "child", "setsid", "daemon", "cleared", "stopped", "tree")
_PROCESSES = 9


@pytest.mark.parametrize("way", [*ALL[1:], "stop"])
def test_a_task_that_is_stopped_takes_its_family_along(launch: Launch, family: Family, way: str):
    words = stub("family", "ignore", way, "sleep")
    started = launch.start("--workers", "2", "--grace", "0.2", "--", *words)
    started.until(lambda _: family.ready() == 2)
    started.send(signal.SIGTERM)
    assert started.wait().code == 143
    family.gone(0.2)


@pytest.mark.parametrize("way", ALL[1:])
def test_a_task_that_ends_takes_its_family_along(launch: Launch, family: Family, way: str):
    """Also where nothing was stopped: the task itself ended, well."""
    ended = launch("--grace", "0.2", "--", *stub("family", "ignore", way, "exit=0"))
    assert ended.code == 0
    assert last_run(launch).task("worker/0")["leftovers"] >= 1
    assert "left" in ended.err and "behind" in ended.err
    family.gone(0.2)


def test_everything_at_once(launch: Launch, family: Family):
    words = stub("family", *ALL, "sleep")
    started = launch.start("--ps", "2", "--workers", "4", "--grace", "0.3", "--", *words)
    started.until(lambda _: family.ready() == 6)
    assert len(family.alive()) >= 6 * _PROCESSES
    started.send(signal.SIGINT)
    assert started.wait().code == 130
    family.gone(0.2)


def test_a_failure_takes_every_family_along(launch: Launch, family: Family, tmp_path: Path):
    job = tmp_path / "job.yaml"
    words = stub("family", *ALL, "sleep")
    failing = "until test $(ls $PIDS | grep -c ready) = 3; do sleep 0.02; done; exit 7"
    job.write_text(
        f"grace: 0.3\nroles:\n  worker: {{count: 3, program: {words}}}\n"
        f"  failing:\n    program: [sh, -c, '{failing}']\n"
    )
    ended = launch(job)
    assert ended.code == 7
    family.gone(0.2)


def test_background_children_of_a_shell(launch: Launch, family: Family):
    script = "sleep 300 & (sleep 300 &) ; nohup sleep 300 >/dev/null 2>&1 & setsid sleep 300 & exit 0"
    ended = launch("--workers", "2", "--grace", "300", "--", "sh", "-c", script)
    assert ended.code == 0
    family.gone(0.2)


# ---------------------------------------------------------------------- the launcher is killed


@pytest.mark.parametrize("half", [0, 1])
def test_kill_9_of_the_launcher_at_any_moment(launch: Launch, family: Family, half: int):
    """Twenty moments, from before its first line to after the start of sixteen stubborn tasks."""
    words = ["--workers", "16", "--grace", "30", "--", *stub("family", "ignore", "child", "cleared", "sleep")]
    for moment in range(half, 20, 2):
        started = launch.start(*words)
        _pass(started, moment * 0.03)
        started.kill()
        family.gone(2.0)
        family.forget()


def test_kill_9_of_the_launcher_when_all_runs(launch: Launch, family: Family):
    started = launch.start("--workers", "16", "--grace", "30", "--", *stub("family", *ALL, "sleep"))
    started.until(lambda _: family.ready() == 16)
    assert named(family.alive(), "launch-agent") and named(family.alive(), "launch-watchdog")
    started.kill()
    family.gone(2.0)


def test_kill_9_of_the_launcher_while_it_stops(launch: Launch, family: Family):
    started = launch.start("--workers", "4", "--grace", "30", "--", *stub("family", *ALL, "sleep"))
    started.until(lambda _: family.ready() == 4)
    started.send(signal.SIGINT)
    started.until(lambda it: "Ctrl-C" in it.err)
    started.kill()
    family.gone(2.0)


def test_kill_9_of_the_launcher_s_whole_group(launch: Launch, family: Family):
    """What a terminal emulator or a batch system does."""
    started = launch.start("--workers", "4", "--grace", "30", "--", *stub("family", *ALL, "sleep"))
    started.until(lambda _: family.ready() == 4)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    family.gone(2.0)


# ---------------------------------------------------------------------- the agent is killed


@pytest.mark.parametrize("whom", ["launch-agent", "launch-watchdog"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_without_its_agent_a_host_is_lost(launch: Launch, family: Family, whom: str, number: int):
    words = ["--workers", "4", "--grace", "5", "--", *stub("family", *ALL, "sleep")]
    started = launch.start(*words)
    started.until(lambda _: family.ready() == 4)
    (pid,) = named(family.alive(), whom)
    os.kill(pid, number)
    ended = started.wait()
    assert ended.code == 125
    assert "localhost" in ended.err
    assert last_run(launch).report["failure"]["reason"] == "host lost"
    family.gone(0.2)


def test_kill_9_of_the_launcher_while_its_agent_is_stopped(launch: Launch, family: Family):
    """The agent can't end anything: its guardian sees that the launcher is gone, and does."""
    started = launch.start("--workers", "2", "--grace", "30", "--", *stub("family", *ALL, "sleep"))
    started.until(lambda _: family.ready() == 2)
    (agent,) = named(family.alive(), "launch-agent")
    os.kill(agent, signal.SIGSTOP)
    started.kill()
    family.gone(2.0)


def test_a_second_ctrl_c_does_not_wait_for_an_agent_that_is_stopped(launch: Launch, family: Family):
    started = launch.start("--workers", "2", "--grace", "300", "--", *stub("family", *ALL, "sleep"))
    started.until(lambda _: family.ready() == 2)
    (agent,) = named(family.alive(), "launch-agent")
    os.kill(agent, signal.SIGSTOP)
    soon(lambda: stopped(agent))
    started.send(signal.SIGINT)
    started.until(lambda it: "Ctrl-C: stopping 2 tasks" in it.err)
    started.until(lambda it: "waiting for" in it.err)
    started.send(signal.SIGINT)
    ended = started.wait()
    assert ended.code == 130
    assert "its agent did not answer in 1 s" in ended.err and "were killed" in ended.err
    assert set(last_run(launch).states().values()) == {"lost"}
    family.gone(0.2)


def test_agent_and_guardian_killed_together(launch: Launch, family: Family):
    """Nobody is left to end the tasks: still the launch ends, and says 125."""
    started = launch.start("--workers", "2", "--", *stub("family", "sleep"))
    started.until(lambda _: family.ready() == 2)
    helpers = [*named(family.alive(), "launch-watchdog"), *named(family.alive(), "launch-agent")]
    for pid in helpers:
        os.kill(pid, signal.SIGSTOP)
    for pid in helpers:
        os.kill(pid, signal.SIGKILL)
    assert started.wait().code == 125
    soon(lambda: not any(map(alive, helpers)))
    family.kill()
    family.gone(1.0)


def _orphaned(launch: Launch, family: Family, others: set[int]) -> tuple[Path, set[int]]:
    """The folder of a run whose launcher, guardian and agent were killed at once, and what is left of it."""
    family.forget()
    started = launch.start("--workers", "2", "--", *stub("family", "child", "cleared", "daemon", "sleep"))
    started.until(lambda _: family.ready() == 2)
    doomed = family.alive() - others
    helpers = [*named(doomed, "launch-watchdog"), *named(doomed, "launch-agent")]
    run = run_of(launch, started).path
    for pid in (started.pid, *helpers):
        os.kill(pid, signal.SIGSTOP)
    for pid in (started.pid, *helpers):
        os.kill(pid, signal.SIGKILL)
    started.wait()
    soon(lambda: not any(map(alive, helpers)))
    orphans = {pid for pid in doomed if alive(pid)}
    assert len(orphans) >= 2 * 4, "nobody has ended them"
    return run, orphans


@pytest.mark.parametrize("command", [["ps"], ["stop", "latest"], ["--", "true"]])
def test_what_is_left_when_all_three_are_killed_is_swept_later(
    launch: Launch, family: Family, command: list[str]
):
    """By the next command; another job that runs is left alone."""
    other = launch.start("--workers", "1", "--", "sleep", "300")
    (sleeper,) = soon(lambda: named(family.alive(), "sleep"))
    others = family.alive()
    for _ in range(20):  # any porter on this machine, of another test, may be first, or in the middle of it
        run, orphans = _orphaned(launch, family, others)
        ended = launch(*command)
        if f"job {run.name} died and had left {len(orphans)} processes here: killed" in ended.err:
            break
        soon(lambda left=orphans: not any(map(alive, left)))  # type: ignore[misc]
    else:
        pytest.fail(f"{len(orphans)} were left, and it said: {ended.err}")
    assert not any(map(alive, orphans))
    assert alive(sleeper)
    other.send(signal.SIGTERM)
    assert other.wait().code == 143
    family.gone(0.5)
    assert "died" not in launch("ps").err
    assert "agents" not in json.loads((run / "launcher.json").read_text())


@pytest.mark.parametrize("command", [["ps"], ["stop", "latest"], ["--", "true"]])
def test_what_a_stopped_agent_and_guardian_keep_is_swept_later(
    launch: Launch, family: Family, command: list[str]
):
    """Neither can end anything, and nobody tells them to go on: they go, too. Another job is left alone."""
    other = launch.start("--workers", "1", "--", "sleep", "300")
    soon(lambda: named(family.alive(), "sleep"))
    others = family.alive()
    started = launch.start("--workers", "2", "--", *stub("family", "child", "cleared", "daemon", "sleep"))
    started.until(lambda _: family.ready() == 2)
    doomed = family.alive() - others - {started.pid}
    helpers = [*named(doomed, "launch-watchdog"), *named(doomed, "launch-agent")]
    for pid in helpers:
        os.kill(pid, signal.SIGSTOP)
    soon(lambda: all(map(stopped, helpers)))
    run = run_of(launch, started).path
    started.kill()
    ended = launch(*command)
    assert ended.code == 0
    assert f"job {run.name} died and had left {len(doomed)} processes here: killed\n" in ended.err
    assert others <= family.alive()
    other.send(signal.SIGTERM)
    assert other.wait().code == 143
    family.gone(0.5)
    assert "agents" not in json.loads((run / "launcher.json").read_text())


def test_stopping_a_run_whose_launcher_was_killed_waits_for_its_agent(launch: Launch, family: Family):
    started = launch.start(
        "--workers", "2", "--grace", "30", "--", *stub("family", "ignore", "child", "sleep")
    )
    started.until(lambda _: family.ready() == 2)
    started.kill()
    ended = launch("stop", "latest")
    assert not family.alive()
    assert (ended.code, ended.err) == (0, "")
    assert "had already ended without a report" in ended.out


_TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
seize = libc.ptrace(0x4206, int(sys.argv[1]), None, None)
print("seized" if seize == 0 else "refused", flush=True)
time.sleep(600)
"""


#: A task that takes its agent prisoner: it stops it, holds the link's pipes, and survives SIGTERM.
_CAPTOR = """
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
def test_a_task_that_holds_its_agent_prisoner(launch: Launch, family: Family, how: str):
    """The guardian sees that its launcher is gone, whoever holds the link; a tracer is ended, too."""
    started = launch.start("--workers", "1", "--", sys.executable, "-c", _CAPTOR, how)
    soon(lambda: any(map(stopped, named(family.alive(), "launch-agent"))))
    started.kill()
    family.gone(5)


@pytest.mark.timeout(120)
def test_a_debugger_that_does_not_let_go_of_a_dead_task(launch: Launch, family: Family):
    """What it keeps is called unkillable in time, and nobody looks at it all the time meanwhile."""
    started = launch.start("--workers", "1", "--grace", "0", "--", "sleep", "600")
    (task,) = soon(lambda: named(family.alive(), "sleep"))
    (agent,) = named(family.alive(), "launch-agent")
    with subprocess.Popen([sys.executable, "-c", _TRACER, str(task)], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        try:
            if tracer.stdout.readline() != b"seized\n":
                pytest.skip("tracing is not allowed here")
            started.send(signal.SIGINT)
            until = time.monotonic() + 40
            spent = 0.0
            while started.process.poll() is None and time.monotonic() < until:
                spent = max(spent, _cpu_seconds(agent))
                time.sleep(0.05)
            ended = started.wait(1)
            assert tracer.poll() is None, "it has not let go"
        finally:
            tracer.kill()
    assert spent < 2
    assert ended.code == 130
    assert "worker/0" in ended.err and str(task) in ended.err
    family.gone(1.0)


def _cpu_seconds(pid: int) -> float:
    """What a process has used of the CPU; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_one_of_two_hosts_is_lost(launch: Launch, family: Family):
    words = ["--hosts", "hostfiles/two-local.yaml", "--workers", "4", "--grace", "5"]
    started = launch.start(*words, "--", *stub("family", "child", "sleep"))
    started.until(lambda _: family.ready() == 4)
    agents = named(family.alive(), "launch-agent")
    assert len(agents) == 2
    os.kill(max(agents), signal.SIGKILL)
    ended = started.wait()
    assert ended.code == 125
    states = last_run(launch).states()
    assert sorted(states.values()) == ["lost", "lost", "stopped", "stopped"]
    lost = {task["host"] for task in last_run(launch).report["tasks"] if task["state"] == "lost"}
    assert len(lost) == 1 and lost.pop() in ended.err
    family.gone(0.2)


def _pass(started: Started, seconds: float) -> None:
    """Let so much time pass since it was started."""
    try:
        started.process.wait(seconds)
    except Exception:  # noqa: BLE001 - still running, as it should be
        return
