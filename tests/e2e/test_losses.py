"""Connections break, hosts are lost: no line is, and tasks start again where they may."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.backends import MEETS, SOON, WAITS, Backend, Ssh, on
from tests.seeing import STUBS, soon
from tests.ssh.host import LabHost


@pytest.mark.promise("hosts by name, by hostfile, beside this machine")
@pytest.mark.promise("whole lines with prefixes, never torn")
@on("ssh", "docker", "docker-ssh", "slurm", "kubernetes")
def test_tasks_meet(backend: Backend):
    """Each on a host of its own; a host has its name before its lines unless it is named after its task."""
    ended = backend("--workers", "2", "--", "python3", "-c", MEETS, code=0)
    (met,) = (line for line in ended.out.splitlines() if "| met " in line)
    assert met.startswith(f"{backend.prefix}worker/0 | met "), met
    assert backend.hosts[1] in met.partition(" at ")[0]
    assert [task["host"] for task in backend.run.report["tasks"]] == [*backend.hosts]


@pytest.mark.promise("tasks of a lost host start again on others, never twice at a time")
@pytest.mark.promise("a new container takes the place of a lost one")
@on("docker", "slurm", "kubernetes")
def test_the_tasks_of_a_lost_host_start_again(backend: Backend):
    """On another one, or on a new one of its name; there they meet."""
    first = "print('up'); import os, time; os.environ['LAUNCH_ATTEMPT'] == '2' or time.sleep(300)"
    words = ["--restarts", "1", *backend.brief, "--", "python3", "-u", "-c", first + MEETS]
    started = backend.up(*words)
    backend.lose_host()
    ended = started.wait(120, code=0)
    assert ended.out.count("| up") == 4 and ended.out.count("| met ") == 1
    lost, report = backend.run.task("worker/1"), backend.run.report
    assert [(task["attempt"], task["state"]) for task in report["tasks"]] == [(2, "succeeded")] * 2
    (earlier,) = lost["earlier"]
    assert (earlier["host"], earlier["state"], earlier["reason"]) == (backend.hosts[1], "lost", "host lost")
    assert (lost["host"] == backend.hosts[1]) is backend.renews
    assert report["restarts"] == 1


@pytest.mark.promise("`launch stop RUN TASK`: the others go on, and it is no failure")
@on("ssh", "docker", "kubernetes")
def test_the_host_of_a_task_that_was_stopped_is_not_needed(backend: Backend):
    """Nor does its loss start anything again. The job ends when no task is left that decides."""
    started = backend.up("--restarts", "1", *backend.brief, "--", *WAITS)
    stopped = backend.beside("stop", "latest", "worker/1").wait(SOON, code=0)
    assert stopped.out == f"worker/1: stopped on {backend.hosts[1]} (killed by SIGTERM)\n"
    backend.lose_host()
    started.until(lambda it: f"host {backend.hosts[1]}" in it.err and " lost: " in it.err, SOON)
    assert backend.beside("stop", "latest", "worker/0").wait(SOON, code=0).out.startswith("worker/0: stopped")
    started.wait(SOON, code=143)
    report = backend.run.report
    assert [(task["attempt"], task["state"]) for task in report["tasks"]] == [(1, "stopped")] * 2
    assert (report["failure"]["reason"], report["restarts"]) == ("interrupted", 0)


@pytest.mark.promise("containers on hosts: a cut of 10 s without loss")
@on("docker-ssh", "kubernetes")
def test_connections_that_break_cost_no_line(backend: Backend):
    """The agents listen: other connections lead to them."""
    script = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"
    started = backend.start("--workers", "2", "--", "sh", "-c", script)
    started.until(lambda it: it.out.count("line 3\n") == 2, SOON)
    backend.disconnect(started)
    ended = started.wait(SOON, code=0)
    for number, host in enumerate(backend.hosts):
        assert f"{host}: connected again" in ended.err
        lines = [f"line {line}" for line in range(60)]
        assert re.findall(rf"worker/{number} \| (line \d+)", ended.out) == lines
        assert backend.run.log(f"worker/{number}").decode().splitlines() == lines


@pytest.mark.promise("a host cut off for good stops its tasks itself")
@pytest.mark.promise("an agent stopped on a host")
@on("ssh", "docker-ssh")
def test_a_host_that_is_cut_off_and_one_whose_agent_is_stopped(backend: Ssh):
    """Each ends its task itself by the end of the lease, and counts as lost then."""

    def tasks(host: LabHost) -> list[str]:
        return [process.argv for process in host.processes() if process.argv == "sleep 300"]

    started = backend.up(*backend.brief, "--", *WAITS)
    stopped, cut = backend.machines[:2]
    soon(lambda: tasks(stopped) and tasks(cut))
    cut.cut()
    stopped.kill(signal.SIGSTOP, *(process.pid for process in stopped.processes("launch-agent")))
    # The lease is counted from the last word; a busy machine gets some more.
    soon(lambda: not tasks(stopped) and not tasks(cut), 6 + 15)
    ended = started.wait(SOON, code=125)
    assert all(f"host {host} is lost" in ended.err for host in backend.hosts), ended.err
    assert set(backend.run.states().values()) == {"lost"}


@pytest.mark.promise("silent tasks: which they are; they show their stacks and come back")
@on("local", "ssh")
def test_a_detached_job_that_hangs_comes_back(backend: Backend):
    """It starts again without a terminal, and ends well; who attaches sees that."""
    code = Path(STUBS / "hangs_once.py").read_text()
    words = ["--workers", "2", "--stall", "4s", "--restarts", "1", "--", "python3", "-c", code]
    detached = backend("-q", "-d", *words, code=0)
    ended = backend.beside("attach", detached.out.strip()).wait(120, code=0)
    run = backend.run
    assert run.path.name == detached.out.strip()
    assert b"in hang_here" in run.log("worker/1")
    for index in (0, 1):
        task = run.task(f"worker/{index}")
        assert (task["attempt"], task["state"]) == (2, "succeeded")
        assert re.search(rf"worker/{index} +\| attempt 2 step 2$", ended.out, re.MULTILINE), ended.out
    (earlier,) = run.task("worker/1")["earlier"]
    assert (earlier["reason"], earlier["detail"]) == ("stalled", "stalled, killed by SIGABRT")
