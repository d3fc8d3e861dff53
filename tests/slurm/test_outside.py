"""Launch asks Slurm for an allocation, and gives it back."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.agent.processes import all_pids
from launcher.backends.slurm.rows import time_limit
from tests.backends import WAITS
from tests.conftest import Started
from tests.seeing import command_line, is_soon, kill, soon, stat_field
from tests.slurm.cluster import Cluster, child_with

Start = Callable[..., Started]


def test_an_allocation_is_asked_for_and_given_back(start: Start, slurm: Cluster):
    started = start("--slurm", "-N", "3", "--ps", "1", "--workers", "3", "--time", "10m", "--", *WAITS).up(4)
    (job,) = re.findall(r"Slurm's job (\d+): 3 nodes", started.err)
    assert slurm.run("squeue", "-h", "-j", job, "-o", "%l %C %D %j").startswith("10:00 6 3 launch-2")
    assert started.stop(signal.SIGTERM, 30).code == 143
    assert job not in slurm.jobs()


def test_tasks_are_spread_evenly(start: Start):
    """Slurm gives the first of several nodes more CPUs than the others, unless told the share of each."""
    ended = start("--slurm", "-N", "3", "--ps", "1", "--workers", "8", "true").wait(60, code=0)
    places = re.findall(r"^(?:ps|worker)/\d+ +(n\d) ", ended.out, re.M)
    assert sorted(places) == ["n1"] * 3 + ["n2"] * 3 + ["n3"] * 3


def test_the_exit_code_is_that_of_the_job(start: Start, tmp_path: Path):
    (tmp_path / "job.yaml").write_text(
        "slurm: {nodes: 2, time: 5, options: --overcommit}\n"
        "roles: {worker: {count: 2, command: sh -c 'exit 7'}}\n"
    )
    start("job.yaml", cwd=tmp_path).wait(30, code=7)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--slurm --partition nope true", "Slurm did not grant any nodes: invalid partition specified: nope"),
        ("--slurm --gpus-per-node 3 true", "Slurm did not grant any nodes: "),
        ("--slurm --slurm-options=--nonsense true", "any nodes: unrecognized option '--nonsense'"),
        ("--slurm -N 2 --workers 30 true", "--nodes=2 --ntasks-per-node=15 "),
        ("--slurm -N 9 -d true", "the partition does not have, or does not allow, so many nodes"),
        ("--slurm -N 9 true", "the partition does not have, or does not allow, so many nodes"),
        ("--slurm --slurm-options=--no-shell true", "salloc was killed, or has started nothing"),
    ],
)
def test_mistakes(start: Start, slurm: Cluster, tmp_path: Path, words: str, expected: str):
    ended = start(*words.split(), cwd=tmp_path).wait(30)
    assert (ended.code, expected in ended.err) == (125, True), ended.err
    assert len(ended.said) <= 2, ended.err
    assert slurm.run("squeue", "--noheader", "--states=PENDING") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10", "10"), ("1:30", "1:30"), ("2:00:00", "2:00:00"),
        ("1-12", "1-12"), ("1-12:30:00", "1-12:30:00"),
        ("UNLIMITED", "UNLIMITED"), ("5m", "0-00:05:00"), ("36h", "1-12:00:00"), ("90s", "0-00:01:30"),
        ("2d", "2-00:00:00"), ("1.5h", "0-01:30:00"),
        ("soon", None), ("5min", None), ("", None), ("1-", None),
    ],
)  # fmt: skip
def test_time_limits(text: str, expected: str | None):
    """Those of Slurm, and those of --timeout."""
    if expected is not None:
        assert time_limit(text) == expected
        return
    with pytest.raises(ValueError, match="expected a time limit: minutes, 5m, "):
        time_limit(text)


@pytest.mark.parametrize("words", [(), ("-d",)])
def test_munge_is_frozen(start: Start, slurm: Cluster, tmp_path: Path, words: tuple[str, ...]):
    """A line says that launch waits for it."""
    environ = slurm.another_conf(tmp_path, munge=f"{tmp_path}/m")
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"{tmp_path}/m")
        deaf.listen()
        started = start("--slurm", *words, "true", env=environ)
        started.until(lambda it: "waiting for an answer from Slurm" in it.err, 30)
        assert started.stop(signal.SIGINT, 30).code in (130, -signal.SIGINT)


@pytest.mark.parametrize(("words", "command"), [((), "salloc"), (("-d",), "sbatch")])
def test_slurm_is_not_installed(
    start: Start, without_slurm: tuple[str, ...], words: tuple[str, ...], command: str
):
    ended = start("--slurm", *words, "true", before=without_slurm).wait(code=125)
    assert ended.err == f"launch: Slurm is not installed here: there is no {command} along PATH\n"


def test_munge_does_not_run(start: Start, slurm: Cluster, tmp_path: Path):
    environ = slurm.another_conf(tmp_path, munge=f"{tmp_path}/none")
    ended = start("--slurm", "true", env=environ).wait(60, code=125)
    assert "munge" in ended.err.lower() and len(ended.said) == 1, ended.err


@pytest.mark.parametrize(("words", "job"), [(("--slurm",), {}), ((), {"SLURM_JOB_ID": "1"})])
def test_the_controller_does_not_run(
    start: Start, slurm: Cluster, tmp_path: Path, words: tuple[str, ...], job: dict[str, str]
):
    """A line says that launch waits for it; Ctrl-C stops the wait."""
    environ = slurm.another_conf(tmp_path, lines="\nSlurmctldPort=9\n")
    started = start(*words, "true", env={**environ, **job})
    started.until(lambda it: "waiting for an answer from Slurm" in it.err, 30)
    ended = started.stop(signal.SIGINT, 30)
    assert ended.code == 130 and len(ended.said) <= 1, ended.err


def test_a_full_cluster_is_waited_for_and_ctrl_c_cancels(start: Start, slurm: Cluster):
    with slurm.allocation("-N3", "--ntasks-per-node=7"):
        started = start("--slurm", "-N", "3", "--workers", "24", "true")
        started.until(lambda it: "is pending: Resources" in it.err, 30)
        assert len(slurm.jobs()) >= 2
        (job,) = re.findall(r"job (\d+) is pending", started.err)
        assert started.stop(signal.SIGINT, 20).code == 130
        assert job not in slurm.jobs()


@pytest.mark.parametrize(
    ("who", "code"),
    [
        ("launch", -signal.SIGKILL),
        ("salloc", 125),
        ("holder", 128 + signal.SIGTERM),
        ("salloc launch", -signal.SIGKILL),
        ("launch salloc", -signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("quiet", [False, True])
def test_a_process_is_killed_while_the_job_is_pending(
    start: Start, slurm: Cluster, who: str, code: int, quiet: bool
):
    """The job does not stay in the queue. Without the holder it goes on waiting, until launch ends."""
    with slurm.allocation("-N3", "--ntasks-per-node=7"):
        options = ("--slurm-options=-Q",) if quiet else ()
        started = start("--slurm", *options, "-N", "3", "--workers", "24", "true")
        started.until(lambda it: "is pending: Resources" in it.err, 30)
        (job,) = re.findall(r"job (\d+) is pending", started.err)
        pids = processes(started)
        for each in who.split():
            os.kill(pids[each], signal.SIGKILL)
        if who == "holder":
            started.send(signal.SIGTERM)
        assert started.wait(20).code == code, started.err
        soon(lambda: job not in slurm.jobs(), 10)
        soon(lambda: not any(map(command_line, pids.values())), 10)


@pytest.mark.parametrize("who", ["launch", "salloc", "holder", "launch and holder", "launch and salloc"])
def test_a_process_is_killed(start: Start, slurm: Cluster, who: str):
    """No allocation is leaked; without launch all ends, and without the others the job goes on."""
    started = start("--slurm", "-N", "2", "--workers", "2", "--", *WAITS).up(2)
    (job,) = re.findall(r"Slurm's job (\d+): 2 nodes", started.err)
    pids = processes(started)
    for name, pid in pids.items():
        if name in who.split():
            os.kill(pid, signal.SIGKILL)
    if "launch" not in who:
        assert job in slurm.jobs() and started.process.poll() is None
        assert started.stop(signal.SIGTERM, 40).code == 143
    soon(lambda: job not in slurm.jobs(), 20)
    if who == "launch and holder" and not is_soon(lambda: not command_line(pids["salloc"]), 10):
        os.kill(pids.pop("salloc"), signal.SIGKILL)  # salloc 22.05 may hang when its job is revoked
    soon(lambda: not any(map(command_line, pids.values())), 20)


def processes(started: Started) -> dict[str, int]:
    """Launch, and what waits for the allocation."""
    holder = child_with(started.pid, "trap", "salloc")
    salloc = holder and child_with(holder, "salloc ")
    assert holder and salloc, started.err
    return {"launch": started.pid, "salloc": salloc, "holder": holder}


def test_the_job_is_cancelled(start: Start, slurm: Cluster):
    started = start("--slurm", "-N", "2", "--workers", "2", "--", *WAITS).up(2)
    (job,) = re.findall(r"Slurm's job (\d+): 2 nodes", started.err)
    slurm.run("scancel", job)
    assert f"Slurm's job {job} was cancelled (scancel)" in started.wait(30, code=125).err


@pytest.mark.parametrize(("command", "options"), [("salloc", ()), ("sbatch", ("--detach",))])
def test_a_dry_run_asks_for_nothing(start: Start, slurm: Cluster, command: str, options: tuple[str, ...]):
    before = slurm.jobs()
    words = ("-N", "2", *options, "--workers", "3", "--dry-run", "true")
    ended = start("--slurm", *words).wait(code=0)
    assert f"# Slurm names the nodes: {command} --nodes=2 --ntasks-per-node=2" in ended.out
    assert slurm.jobs() == before


def test_check_asks_for_nodes(start: Start, slurm: Cluster, tmp_path: Path):
    before = slurm.jobs()
    words = ("--python", sys.executable, "--url", "file:///usr")
    ended = start("check", "--slurm", "-N", "2", *words, cwd=tmp_path).wait(60, code=0)
    line = r"Slurm's job \d+: partition p, 2 nodes, (5m00s|4m\d+s) left"
    assert re.search(line, ended.err) and "4 of 4 connections between the hosts work" in ended.out
    assert "file:///usr is reached by 2 of 2 hosts\n" in ended.out
    assert slurm.jobs() == before
    ended = start("check", "--slurm", "n1,n2").wait()
    assert ended.code == 2 and "--slurm: the hosts are named, too" in ended.err


def test_clean_frees_what_nobody_looks_after(start: Start, slurm: Cluster):
    """A job that a process holds stays."""
    started = start("--slurm", "-N", "1", "--", *WAITS).up(1)
    (job,) = re.findall(r"Slurm's job (\d+)", started.err)
    assert job not in start("clean", "--dry-run").wait().out
    holder = str(child_with(started.pid, "trap", "salloc")).encode()
    session = [pid for pid in sorted(all_pids()) if stat_field(pid, 6) == holder]
    for pid in (started.pid, *session):
        os.kill(pid, signal.SIGSTOP)
    # Children first: a group of stopped processes goes on if the parent that could continue it is killed.
    for pid in (*reversed(session), started.pid):
        kill(pid)
    started.process.wait()
    assert job in slurm.jobs()

    def cleaned(done: str, *words: str) -> object:
        ended = start("clean", *words).wait(60)  # where no Docker is, it says so
        return re.search(rf"^{done} Slurm's job {job}, launch-\S+ \(running\)$", ended.out, re.M)

    # A killed process may be there for a moment.
    soon(lambda: cleaned("would cancel", "--dry-run"), 40)
    soon(lambda: cleaned("cancelled"), 40)
    soon(lambda: job not in slurm.jobs())


def test_clean_leaves_alone_what_was_asked_for_elsewhere(start: Start, slurm: Cluster):
    """An earlier version wrote only the host name of the machine, which another one may have."""
    run = "20260101-000000-abcde"
    words = ("--no-shell", "-N1", f"--job-name=launch-{run}", f"--comment=launch@{os.uname().nodename}")
    slurm.run("salloc", *words)
    (job,) = [number for number in slurm.jobs() if slurm.run("squeue", "-hj", number, "-o%j").endswith(run)]
    try:
        ended = start("clean").wait(60)
        assert job not in ended.out  # where no Docker engine runs, clean fails
        assert f"Slurm's job {job}: left alone" in ended.err
        assert f"`launch clean --foreign {run}`" in ended.err
        assert job in slurm.jobs()
        assert f"cancelled Slurm's job {job}, " in start("clean", "--foreign", run).wait(60).out
        soon(lambda: job not in slurm.jobs())
    finally:
        slurm.run("scancel", job, check=False)
