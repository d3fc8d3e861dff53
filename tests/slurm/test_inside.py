"""Launch inside an allocation of Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.slurm_node import without_step
from launcher.backends.slurm.job import SlurmJob, parse_task_counts
from launcher.backends.slurm.steps import Step
from tests.backends import STAYS, WAITS
from tests.conftest import Launch, Started, executable
from tests.seeing import command_line, last_run, pid_namespace, soon
from tests.slurm.cluster import SRUN_PARTS, Cluster, kill_srun, sruns

Start = Callable[..., Started]

Words = tuple[str, ...]


def test_the_nodes_of_salloc_are_used(start: Start):
    words = ("--ps", "1", "--workers", "3", "--", "sh", "-c", "echo at $SLURMD_NODENAME")
    ended = start(*words, before=("salloc", "-N3", "--quiet")).wait(60, code=0)
    places = dict(re.findall(r"^n\d (\S+) +\| at (n\d)", ended.out, re.M))
    assert sorted(places.values()) in (["n1", "n1", "n2", "n3"], ["n1", "n2", "n3"]), ended.out
    assert re.search(r"Slurm's job \d+: 3 nodes, tasks spread evenly \(--no-slurm", ended.err), ended.err
    assert set(re.findall(r"^worker/\d+ +(n\d) ", ended.out, re.M)) == {"n1", "n2", "n3"}


def test_as_many_tasks_as_were_asked_of_slurm(start: Start):
    """``-n``, and ``--ntasks-per-node``; one more does not fit, wherever tasks of a lost node may move."""
    words = ("salloc", "--quiet", "-N2", "--ntasks-per-node=2")
    ended = start("--workers", "4", "--dry-run", "true", before=words).wait(code=0)
    assert re.findall(r"^# worker/\d on (n\d)", ended.out, re.M) == ["n1", "n1", "n2", "n2"]
    for more in ((), ("--restarts", "1")):
        ended = start("--workers", "5", *more, "--dry-run", "true", before=words).wait(code=2)
        assert re.search(r"5 tasks do not fit: Slurm's job \d+ was asked for 4 .* --ntasks=5", ended.err)


def test_one_task_asked_of_slurm_is_no_limit(start: Start):
    """As in the usual script, which starts one program on whole nodes."""
    words = ("salloc", "--quiet", "-N2", "--ntasks-per-node=1", "--cpus-per-task=4")
    ended = start("--ps", "1", "--workers", "2", "--dry-run", "true", before=words).wait()
    assert len(re.findall(r"^# \w+/\d on n[12]", ended.out, re.M)) == 3, ended.out + ended.err
    ended = start("hosts", before=words).wait()
    assert re.findall(r"^(n\d) +\S+ +4 +4 ", ended.out, re.M) == ["n1", "n2"], ended.out
    assert "2 hosts, any number of tasks" in ended.out


def test_a_heterogeneous_job(start: Start):
    """The nodes of all its components are used."""
    words = ("salloc", "--quiet", "-N1", "-n1", ":", "-N2", "-n4")
    script = "echo at $SLURMD_NODENAME of $SLURM_JOB_NODELIST"
    ended = start("--workers", "5", "--", "sh", "-c", script, before=words).wait(90, code=0)
    places = re.findall(r"\| at (n\d) of n1,n2,n3$", ended.out, re.M)
    assert sorted(places) == ["n1", "n2", "n2", "n2", "n3"], ended.out
    ended = start("--workers", "6", "--dry-run", "true", before=words).wait(90, code=2)
    assert "was asked for 5 (n1 1, n2 3, n3 1)" in ended.err


def test_gpus_are_shared_out(start: Start, tmp_path: Path):
    """The workers wait until the ps has printed, because it is stopped when they end."""
    script = "echo sees $SLURMD_NODENAME:$CUDA_VISIBLE_DEVICES; test $JOB_NAME != ps || touch $0"
    script += "; until test -e $0; do sleep 0.05; done"
    words = ("--ps", "1", "--workers", "4", "--", "sh", "-c", script, f"{tmp_path}/printed")
    ended = start(*words, before=("salloc", "--quiet", "-N2", "--gpus-per-node=2")).wait(60, code=0)
    assert sorted(re.findall(r"worker/\d +\| sees (\S+)", ended.out)) == ["n1:0", "n1:1", "n2:0", "n2:1"]
    assert re.search(r"ps/0 +\| sees n\d:$", ended.out, re.M)


def test_from_an_sbatch_script(sbatch: Callable[..., str], slurm: Cluster, tmp_path: Path):
    job = sbatch(("--workers", "3", "--", "sh", "-c", "exit $TASK_INDEX"), "-N2", "-n3")
    soon(lambda: job not in slurm.jobs(), 60)
    out = (tmp_path / "out").read_text()
    assert re.search(r"failed, exit code [12] \(worker/[12]\)", out), out
    assert {"n1", "n2"} == set(re.findall(r"^worker/\d+ +(n\d) ", out, re.M)), out


def test_a_step_of_several_tasks_is_a_mistake(start: Start, held: dict[str, str]):
    ended = start("true", before=("srun", "--overlap", "-n", "3"), env=held).wait(code=2)
    (line,) = (line for line in ended.err.splitlines() if line.startswith("launch:"))
    assert "srun has started launch 3 times" in line and line.endswith("launch --workers 3 ...")


def test_a_step_of_one_task(start: Start, held: dict[str, str]):
    step = ("srun", "--overlap", "-N1", "-n1")
    ended = start("--workers", "3", "true", before=step, env=held).wait(60, code=0)
    assert {"n1", "n2", "n3"} == set(re.findall(r"^worker/\d+ +(n\d) ", ended.out, re.M))


COMMANDS = [("--workers", "2", "true"), ("hosts",), ("check",)]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_variables_without_commands(
    start: Start, held: dict[str, str], without_slurm: Words, tmp_path: Path, words: Words
):
    """As in a container of a job: the error names the way out, which every command takes."""
    how: dict[str, Any] = {"before": without_slurm, "env": held, "cwd": tmp_path}
    ended = start(*words, **how).wait(30, code=125)
    assert re.search("there is no scontrol along PATH; --no-slurm ignores the job", ended.err), ended.err
    way_out = ("--no-slurm", *words) if words[0].startswith("-") else (*words, "--no-slurm")
    start(*way_out, **how).wait(60, code=0)


@pytest.mark.parametrize("words", [("--hosts", "localhost"), ("--no-slurm",)])
def test_without_the_nodes(start: Start, held: dict[str, str], words: Words):
    ended = start(*words, "--workers", "2", "true", env=held).wait(code=0)
    assert re.findall(r"^worker/\d+ +(\w+) ", ended.out, re.M) == ["localhost"] * 2
    line = f"--hosts: the tasks run there, not on the nodes of Slurm's job {held['SLURM_JOB_ID']}"
    assert (line in ended.err) == ("--hosts" in words)


def test_options_that_ask_for_an_allocation_have_no_effect(start: Start, held: dict[str, str]):
    ended = start("--slurm", "-N", "2", "--time", "5", "true", env=held).wait(60, code=0)
    assert "no allocation is asked for (--nodes=2 --time=5): launch runs in Slurm's job" in ended.err


def test_hosts_shows_the_nodes(start: Start, held: dict[str, str], slurm: Cluster):
    found = json.loads(start("hosts", "--json", env=held).wait().out)
    places = [(host["name"], host["address"]) for host in found]
    assert places == [(f"n{number}", f"10.98.0.1{number}") for number in (1, 2, 3)]
    assert slurm.steps() == []


# ---------------------------------------------------------------------- the environment and the files


STEP = {
    "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NPROCS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_STEP_ID": "3", "SLURM_STEPID": "3", "SLURM_STEP_NODELIST": "n2", "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1",
    "SLURM_NNODES": "1", "SLURM_NODELIST": "n2", "SLURM_CPU_BIND": "quiet,none",
    "SLURM_CPU_BIND_TYPE": "none", "SLURM_CPU_BIND_LIST": "", "SLURM_CPUS_PER_TASK": "1",
    "SLURM_CPUS_ON_NODE": "1", "SLURM_GTIDS": "0",
    "SLURM_TASK_PID": "21", "SLURM_LAUNCH_NODE_IPADDR": "10.98.0.1", "SLURM_SRUN_COMM_HOST": "10.98.0.1",
    "SLURM_MEM_PER_NODE": "0", "SLURM_EXPORT_ENV": "NONE", "SLURM_OVERLAP": "1", "SRUN_DEBUG": "2",
    "PMI_RANK": "0", "PMIX_RANK": "0",
}  # fmt: skip
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3"}


@pytest.mark.parametrize("name", STEP)
def test_a_variable_of_the_step_is_removed(name: str):
    step = {name: STEP[name], "SLURM_JOB_NODELIST": "n2", "SLURMD_NODENAME": "n2", "HOME": "/root"}
    assert without_step(step, JOB) == {**JOB, "SLURMD_NODENAME": "n2", "HOME": "/root"}


def test_the_environment_of_a_task(start: Start, held: dict[str, str]):
    """What describes the job, and what was passed; nothing of the step."""
    code = "import json, os; print('ENV', json.dumps(dict(os.environ)))"
    environ = {**held, "SECRET": "hunter2", "NOT_PASSED": "x", "SLURM_CPU_BIND": "cores", "SLURM_NTASKS": "9"}
    ended = start("-x", "SECRET", "-c", code, env=environ).wait(60, code=0)
    found = json.loads(ended.out.partition("ENV ")[2].partition("\n")[0])
    assert found["SECRET"] == "hunter2" and "NOT_PASSED" not in found
    names = {name for name in found if name.startswith(("SLURM", "SRUN", "PMI"))}
    assert names == {"SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURMD_NODENAME"}
    assert (found["SLURM_JOB_ID"], found["SLURM_JOB_NODELIST"]) == (held["SLURM_JOB_ID"], "n[1-3]")


def test_files_are_not_copied_to_nodes_that_have_them(start: Start, held: dict[str, str], tmp_path: Path):
    words = ("--sync", ".", "--workers", "2", "--output-dirs", "--", "sh", "-c")
    ended = start(*words, "pwd; touch $OUTPUT_DIR/made", env=held, cwd=tmp_path).wait(60, code=0)
    assert "--sync: nothing is copied: all hosts have the files of this machine" in ended.err
    assert ended.out.count(f"| {tmp_path}\n") == 2


def test_files_are_copied_to_a_node_that_does_not_have_them(
    start: Start, held: dict[str, str], tmp_path: Path, slurm: Cluster
):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/word").write_text("carried")
    words = ("--workers", "3", "--sync", ".", "--", "sh", "-c", "cat word; pwd")
    with slurm.hidden(tmp_path / "own", "n2"):
        ended = start(*words, env=held, cwd=tmp_path / "own").wait(60, code=0)
    assert "n2 does not have the files of this machine" in ended.err
    assert ended.out.count("carried") == 3
    assert len(re.findall(rf"^n[13].*\| (?:carried)?{tmp_path}/own$", ended.out, re.M)) == 2, ended.out


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", [4]), ("2(x3)", [2, 2, 2]), ("3(x2),1", [3, 3, 1]), ("1,2(x2),5", [1, 2, 2, 5]), ("", []),
        ("1(x999999999),2", []),
    ],
)  # fmt: skip
def test_tasks_of_nodes(text: str, numbers: list[int]):
    assert parse_task_counts(text) == numbers


@pytest.mark.parametrize(
    ("environ", "code", "expected"),
    [
        ({"SLURM_JOB_ID": "abc"}, 2, "SLURM_JOB_ID: 'abc'; expected the number of a job; or --no-slurm"),
        ({"SLURM_JOB_ID": "1 --help"}, 2, "SLURM_JOB_ID: '1 --help'; expected the number of a job"),
        ({"SLURM_CONF": "/nosuch"}, 2, "SLURM_CONF: there is no file '/nosuch'"),
        ({"SLURM_JOB_ID": "99999"}, 125, "Slurm's job 99999 has ended; --no-slurm ignores the job"),
        ({"SLURM_JOB_NODELIST": "--version"}, 2, "SLURM_JOB_NODELIST: '--version' names no nodes"),
        ({"SLURM_JOB_NODELIST": "n1;$(touch made)"}, 2, "'n1;$(touch made)' names no nodes"),
        ({"SLURM_JOB_NODELIST": "n[1-999999]"}, 2, "'n[1-999999]' names no nodes"),
        ({"SLURM_JOB_NODELIST": "n[1-9]"}, 125, "n4, n5, n6, n7 and 2 more: the agent cannot be started"),
    ],
)
def test_variables_of_no_job(
    start: Start, held: dict[str, str], tmp_path: Path, environ: dict[str, str], code: int, expected: str
):
    """Those of an old shell, or nonsense."""
    if environ.get("SLURM_JOB_ID"):
        held = {name: value for name, value in held.items() if name != "SLURM_JOB_NODELIST"}
    ended = start("true", env={**held, **environ}, cwd=tmp_path).wait(30, code=code)
    assert expected in ended.err
    assert len(ended.said) == 1 and not (tmp_path / "made").exists(), ended.err


def test_munge_does_not_run(start: Start, held: dict[str, str], slurm: Cluster, tmp_path: Path):
    environ = {**held, **slurm.another_conf(tmp_path, munge="/nosuch"), "SLURM_JOB_NODELIST": ""}
    ended = start("true", env=environ).wait(30, code=125)
    assert "--no-slurm ignores the job, and uses this machine" in ended.err and len(ended.said) == 1


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("part", SRUN_PARTS)
def test_an_srun_is_killed(start: Start, held: dict[str, str], part: str):
    """The agent lives on: another step connects to it, and no line is lost."""
    count = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.05; done"
    started = start("--workers", "2", "--", "sh", "-c", f"echo up; {count}", env=held).up(2)
    kill_srun(sruns(held)[0], part)
    ended = started.wait(60, code=0)
    assert (part == "child") != bool(
        re.search(r"connection lost \(srun was killed by SIGKILL\).*connected again after", ended.err, re.S)
    ), ended.err
    lines = re.findall(r"(worker/\d) +\| line (\d+)", ended.out)
    for task in ("worker/0", "worker/1"):
        assert [int(number) for name, number in lines if name == task] == list(range(1, 41))


def test_a_broken_stream_is_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What srun may print if a step is killed before it has read all that was sent to it is not shown."""
    lines = [
        "srun: error: n1: task 0: Killed",
        "srun: error: _server_read: fd 18 error reading header: Connection reset by peer",
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 0",
    ]
    executable(tmp_path / "srun", f"#!/bin/sh\nprintf '%s\\n' {shlex.join(lines)} >&2\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with closing(Step("n1", SlurmJob("7", {}), "python3", is_agent=False)) as step:
        step.wait(10)
        assert step.stderr().splitlines() == lines[:1]


@pytest.mark.parametrize("victim", ["srun", "agent"])
def test_the_first_step_is_killed(start: Start, held: dict[str, str], slurm: Cluster, victim: str):
    """Another one takes its place, with the same Python, if the step dies before it has answered.

    On a busy machine the kill may come later, when the loss of the host is right: then it is tried again.
    """
    for _ in range(5):
        earlier = set(os.listdir("/proc"))
        started = start("--workers", "3", "--", "sh", "-c", "echo up", env=held)
        killed, node = first_agent(started, slurm, earlier)
        if victim == "srun":
            killed = next(pid for pid in sruns(held) if f" --nodelist={node} " in command_line(pid))
        os.kill(killed, signal.SIGKILL)
        ended = started.wait(60)
        if ended.code != 125 or "the agent was killed" not in ended.err:
            break
    assert (ended.code, ended.out.count("| up")) == (0, 3), ended.err
    assert "scancel" not in ended.err


def first_agent(started: Started, slurm: Cluster, earlier: set[str]) -> tuple[int, str]:
    """Wait for the first step of a launch that begins on its node. Returns its agent's pid, and the node.

    Slurm keeps a step whose srun is killed between its creation and its start.

    Args:
        earlier: The processes from before the launch. A look at all takes longer than the start of a step.
    """
    nodes = {pid_namespace(slurm.pid(name)): name for name in ("n1", "n2", "n3")}
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for pid in map(int, filter(str.isdigit, set(os.listdir("/proc")) - earlier)):
            node = nodes.get(pid_namespace(pid))
            if node and re.match(rf"{re.escape(sys.executable)} .*import sys", command_line(pid), re.S):
                return pid, node
        time.sleep(0.002)
    raise AssertionError(started.err)


def test_a_step_is_cancelled(start: Start, held: dict[str, str], slurm: Cluster):
    """Its tasks start again on another node, or the job fails at once with the reason."""
    started = start("--workers", "3", "--grace", "1", "--", *WAITS, env=held).up(3)
    slurm.run("scancel", slurm.steps()[0])
    ended = started.wait(30, code=125)
    # The agent tells, unless Slurm is quicker to kill it.
    assert re.search(r"host n\d is lost: .*(scancel of its step|STEP [\d.]+ ON n\d CANCELLED)", ended.err), (
        ended.err
    )


def test_the_job_is_cancelled(start: Start, slurm: Cluster, launch: Launch):
    with slurm.allocation("-N3", "--overcommit") as job:
        started = start("--workers", "3", "--restarts", "1", "--", *STAYS, env=job).up(3)
        since = time.monotonic()
        slurm.run("scancel", job["SLURM_JOB_ID"])
        ended = started.wait(60)
    assert ended.code == 125, ended.err
    why = f"Slurm's job {job['SLURM_JOB_ID']} was cancelled (scancel)"
    assert why in ended.err and "network" not in ended.err and "start again" not in ended.err, ended.err
    assert why in last_run(launch).report["failure"]["text"]
    assert time.monotonic() - since < 20


def test_a_node_is_cut_off_from_the_beginning(start: Start, slurm: Cluster):
    """It is waited for, in sight, and Ctrl-C does not wait for its srun."""
    with slurm.allocation("-N3", "--overcommit") as job:
        slurm.link("n3", "down")
        try:
            started = start("--workers", "3", "true", env=job)
            started.until(lambda it: re.search(r"for [^:]*\bn3\b[^:]*: its first step", it.err), 30)
            since = time.monotonic()
            ended = started.stop(signal.SIGINT, 30)
            assert ended.code == 130 and time.monotonic() - since < 20, ended.err
        finally:
            slurm.link("n3", "up")
    soon(lambda: slurm.run("sinfo", "-h", "-t", "idle,mix,alloc", "-o", "%D") == "3", 60)


def test_check(start: Start, held: dict[str, str], tmp_path: Path, slurm: Cluster):
    (tmp_path / "own").mkdir()
    with slurm.hidden(tmp_path / "own", "n2"):
        ended = start("check", env=held, cwd=tmp_path / "own").wait(60)
    # Slurm's backfill scheduler gives a job without a limit that of a year.
    line = rf"Slurm's job {held['SLURM_JOB_ID']}: partition p, 3 nodes, (no time limit|364d23h left)"
    assert re.search(line, ended.err), ended.err
    assert re.findall(r"^(n\d) +10\.98\.0\.1\d", ended.out, re.M) == ["n1", "n2", "n3"], ended.out
    assert "9 of 9 connections between the hosts work" in ended.out
    assert re.search(rf"warning: n2: it does not have the files of {tmp_path}/own here", ended.out), ended.out
    found = json.loads(start("check", "--json", env=held).wait(60).out)
    assert "files" not in {finding["kind"] for finding in found["findings"]}
