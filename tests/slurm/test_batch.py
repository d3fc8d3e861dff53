"""Slurm starts the launcher: ``--slurm --detach``, and a script for sbatch."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends import STAYS, WAITS
from tests.clusters import watched
from tests.conftest import COMMAND, Ended, Launch, Started, executable
from tests.local.terminal import Terminal, last_step
from tests.page.viewer import followed_elsewhere
from tests.seeing import last_run, soon
from tests.slurm.cluster import Cluster

Start = Callable[..., Started]
Submit = Callable[..., str]

#: Counts steps, saves the number on SIGTERM, and goes on from there.
TRAINS = """
import os, signal, sys, time
file = f"saved-{os.environ['TASK_INDEX']}"
step = int(open(file).read()) if os.path.exists(file) else 0
def end(*_):
    open(file, "w").write(str(step))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up, attempt", os.environ["LAUNCH_ATTEMPT"], flush=True)
while not os.path.exists("enough"):
    step += 1
    os.write(1, b"step %d\\n" % step)  # never a part of it
    signal.sigtimedwait([], 0.05)
print("attempt", os.environ["LAUNCH_ATTEMPT"], "ends")
"""


#: Notes in the working folder how a run has ended.
TELL = ("--on-end", "sh -c 'echo $LAUNCH_STATUS >>told'")


@pytest.fixture
def submit(start: Start, tmp_path: Path) -> Submit:
    """Submits a launcher: the name of the run."""

    def submitted(*words: str, **more) -> str:
        ended = start("--slurm", "--detach", *words, cwd=tmp_path, **more).wait(60, code=0)
        assert re.search(r"Slurm's job \d+ is submitted; launch attach \S+ shows it", ended.err)
        return ended.out.strip()

    return submitted


def logged(launch: Launch, text: str, count: int) -> Callable[[], bool]:
    """Whether so many tasks of the newest run have printed this."""

    def look() -> bool:
        logs = [file.read_text() for file in last_run(launch).path.glob("logs/*")]
        return sum(text in log for log in logs) >= count

    return look


def job(slurm: Cluster, name: str) -> str:
    """The number of the job of a run; empty: it has ended."""
    return slurm.run("squeue", "--noheader", f"--name=launch-{name}", "--format=%i")


def waits_for_its_time(slurm: Cluster, number: str) -> bool:
    """Whether a requeued job is pending. It has this reason even before its nodes have ended it."""
    return slurm.run("squeue", "-h", "-j", number, "-o", "%T %r") == "PENDING BeginTime"


def start_now(slurm: Cluster, number: str, has_begun: Callable[[], object]) -> None:
    """Start a requeued job before its time.

    Slurm may set the time once more, at the end of the job; so this asks until it has begun again.
    """
    soon(lambda: not slurm.run("squeue", "--noheader", f"--jobs={number}", "--states=completing"), 60)
    # A slurmd does not start a job in the second in which it killed it: "already killed, do not launch".
    time.sleep(2)

    def begun() -> object:
        slurm.run("scontrol", "update", f"jobid={number}", "starttime=now", check=False)
        return has_begun()

    soon(begun, 120)


def attached(start: Start, name: str, seconds: float = 60) -> Ended:
    """``launch attach`` to the end of the run."""
    return start("attach", name).wait(seconds)


def test_a_run_is_watched_from_the_login_node(start: Start, launch: Launch, submit: Submit):
    script = "test $LAUNCH_ATTEMPT = 2 || { echo up $SECRET; exec sleep 300; }; exit 7"
    name = submit("-N", "2", "--workers", "2", "-x", "SECRET", "--", "sh", "-c", script,
                  env={"SECRET": "hunter2"})  # fmt: skip
    soon(logged(launch, "up hunter2", 2), 60)
    shown = watched(start, name)
    assert re.search(r"^n2 worker/1 \| launch: attempt 2 starts here", shown, re.M)
    assert re.search(r"^worker/1 +n2 +\d+ +failed", shown, re.M), shown
    assert "hunter2" not in (last_run(launch).path / "plan.json").read_text()


@pytest.mark.long
def test_top_shows_it_on_the_login_node(launch: Launch, submit: Submit, slurm: Cluster):
    """By the files of the run, which both machines see."""
    script = "for step in $(seq 60); do echo step $step loss 0.5; sleep 0.5; done; exit 7"
    name = submit("-N", "2", "--workers", "2", "--", "sh", "-c", script)
    top = Terminal(launch, "top", name, command=(*slurm.enter, *COMMAND), env=slurm.environ)
    try:
        top.until(lambda it: re.search(r"worker/1 +n2 .* running .* step \d", it.shown), 90)
        first = last_step(top)
        top.until(lambda it: last_step(it) >= first + 5, 60)
        assert top.wait(120) == 0
        assert re.search(r"worker/[01] .* failed +7 ", top.text), top.text
    finally:
        top.close()


@pytest.mark.long
def test_its_page_on_the_login_node(launch: Launch, submit: Submit, slurm: Cluster):
    script = "for step in $(seq 40); do echo step $step loss 0.5; sleep 0.5; done; exit 7"
    name = submit("-N", "2", "--workers", "2", "--", "sh", "-c", script)
    verdict = followed_elsewhere(launch, name, slurm.enter, slurm.environ)
    assert "exit code 7" in verdict


@pytest.mark.long
@pytest.mark.promise("results and reports at URLs")
def test_results_at_urls_of_a_submitted_launcher(start: Start, submit: Submit, tmp_path: Path):
    """The first of them are copied before the restart."""
    script = """
        if [ $LAUNCH_ATTEMPT = 1 ]; then echo one >$OUTPUT_DIR/1; exit 5; fi
        rm -f $OUTPUT_DIR/1; echo two >$OUTPUT_DIR/2
    """
    url = f"file://{tmp_path}/out"
    options = ["--restarts", "2", "--output-to", url, "--report", f"{url}/report.json"]
    name = submit("-N", "2", "--workers", "2", "--restart", "task", *options, "--", "sh", "-c", script)
    assert attached(start, name).code == 0
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("?*"))
    tasks = [f"worker-{task}{file}" for task in (0, 1) for file in ("", "/1", "/2")]
    assert found == ["report.json", *tasks]


@pytest.mark.parametrize("now", [(), ("--now",)])
def test_it_is_stopped(start: Start, launch: Launch, submit: Submit, now: tuple[str, ...]):
    name = submit("-N", "2", "--workers", "2", "--grace", "30", "--", *(STAYS if now else WAITS))
    soon(logged(launch, "up", 2), 60)
    if not now:  # First one of its tasks, then all that is left.
        assert start("stop", name, "worker/1").wait(40, code=0).out.startswith("worker/1: stopped on n")
    ended = start("stop", *now).wait(40)
    assert (ended.code, ended.out) == (0, f"{name} ended with exit code 143\n"), ended.err
    assert "stopped by launch stop" in attached(start, name).out


def test_it_is_withdrawn_while_it_is_pending(start: Start, slurm: Cluster, submit: Submit, tmp_path: Path):
    with slurm.allocation("-N3", "--ntasks-per-node=7"):
        name = submit("-N", "3", "--workers", "24", *TELL, "true")
        soon(lambda: "is pending: Resources" in start("ps").wait().out)
        attach = start("attach", name).until(lambda it: "is pending: Resources" in it.err)
        asked = start("restart", name, "worker/0").wait()
        assert asked.code == 125 and "is pending" in asked.err
        stopped = start("stop", name).wait()
        assert stopped.code == 0 and f"{name} is withdrawn" in stopped.out, stopped.err
        ended = attach.wait(40)
        assert ended.code == 125 and "was cancelled (scancel)" in ended.err
        assert not job(slurm, name)
        assert (tmp_path / "told").read_text() == "stopped\n"


@pytest.mark.promise("a name belongs to one run that goes on, in queues, too, and wins over folders")
def test_names_of_runs_that_wait(start: Start, launch: Launch, slurm: Cluster, submit: Submit):
    with slurm.allocation("-N3", "--ntasks-per-node=7"):
        words = ("--name", "night", "-N", "3", "--workers", "24", "-x", "SECRET=hunter2")
        names = [submit(*words, "--", "sh", "-c", "echo up $SECRET") for _ in range(2)]
        assert names[0] in start("stop", "night").wait().out
        # The newest run has ended; `latest` is the one that waits.
        assert start("rerun", "latest").wait().code == 2
        options = ("-x", "SECRET=hunter3", "--workers", "3")
        again = start("rerun", "night-2", *options).wait(60, code=0).out.strip()
        runs = json.loads(start("ps", "--json").wait().out)
        assert [(run["run"], run["name"]) for run in runs] == [(again, "night"), (names[1], "night-2")]
        assert start("stop", names[1]).wait().code == 0
    assert attached(start, "night").code == 0
    assert start("logs", "latest", "worker/2").wait().out == "up hunter3\n"
    assert last_run(launch).path.name == again


def test_its_launcher_is_killed(start: Start, launch: Launch, slurm: Cluster, submit: Submit, tmp_path: Path):
    """Slurm knows when the job is over. Then one of two commands runs that of the end."""
    name = submit("-N", "1", "--workers", "1", *TELL, "--", *WAITS)
    soon(logged(launch, "up", 1), 60)
    slurm.run("scancel", "--batch", "--signal=KILL", job(slurm, name))
    soon(lambda: not job(slurm, name), 60)
    for ended in [start("ps"), start("ps")]:
        ended.wait(30, code=0)
    soon(lambda: start("ps").wait() and (tmp_path / "told").exists())
    start("stop", name).wait(30)
    assert (tmp_path / "told").read_text() == "lost\n"


#: Saves its state for a second and a half, whatever signals come meanwhile.
SAVES = """\
trap 'for turn in 1 2 3; do sleep 0.5; done; echo saved; exit 0' TERM
echo up
while :; do sleep 0.2; done
"""


@pytest.mark.promise("a stop is one stop: no signal, `scancel` or closed pipe or terminal shortens it")
@pytest.mark.parametrize("options", [(), ("--full", "--signal=TERM"), ("--batch", "--signal=TERM")])
def test_scancel(
    start: Start, launch: Launch, slurm: Cluster, submit: Submit, tmp_path: Path, options: tuple[str, ...]
):
    """Slurm signals the launcher, the agents and the tasks, in any order: tasks have time to save."""
    words = ("-N", "2", "--workers", "2", "--restarts", "1", "--grace", "20", *TELL)
    name = submit(*words, "--", "sh", "-c", SAVES)
    soon(logged(launch, "up", 2), 60)
    slurm.run("scancel", *options, job(slurm, name))
    ended = attached(start, name)
    report = last_run(launch).report
    assert ended.code == report["exit_code"] == 143, ended
    assert report["failure"]["reason"] == "interrupted"
    assert logged(launch, "saved", 2)(), ended.out
    assert "scancel" in ended.out, ended
    assert "network" not in ended.out
    soon((tmp_path / "told").exists)
    assert (tmp_path / "told").read_text() == "stopped\n"


@pytest.mark.promise("a `-d` that fails is the newest run, and has its exit code")
def test_sbatch_refuses(start: Start, launch: Launch, tmp_path: Path):
    ended = start("--slurm", "-d", "--partition", "nope", *TELL, "true", cwd=tmp_path).wait()
    assert (tmp_path / "told").read_text() == "failed\n"
    assert ended.code == 125 and "invalid partition specified: nope" in ended.err
    assert len(ended.err.splitlines()) == 2  # One says that the command of --on-end runs.
    again = start("attach").wait()
    assert again.code == 125 and "invalid partition specified: nope" in again.out + again.err, again
    assert start("--slurm", "-d", "nosuch.py").wait().code == 127


def test_the_nodes_do_not_have_the_folder(start: Start, launch: Launch, slurm: Cluster, submit: Submit):
    launch.state.mkdir(parents=True)
    with slurm.hidden(launch.state, "n1", "n2", "n3"):
        ended = attached(start, submit("true"))
    assert ended.code == 125
    assert re.search(r"has ended without a report: Slurm's job \d+ has ended", ended.err), ended.err


# ---------------------------------------------------------------------- limits


@pytest.fixture
def goes_on(start: Start, launch: Launch, slurm: Cluster, tmp_path: Path) -> Callable[..., Ended]:
    """Interrupts a run of `TRAINS`, which Slurm queues again: what is seen of it until its end."""

    def interrupted(name: str, tasks: int, interrupt: Callable[[str], object]) -> Ended:
        attach = start("attach", "-n", "10000", name)
        soon(logged(launch, "step 5\n", tasks), 60)
        number = job(slurm, name)
        interrupt(number)
        soon(lambda: waits_for_its_time(slurm, number), 60)
        assert "is pending: BeginTime" in start("ps").wait().out
        start_now(slurm, number, logged(launch, "up, attempt 2", tasks))
        (tmp_path / "enough").touch()
        ended = attach.wait(60, code=0)
        assert "the job is queued again: restart 1 of 1" in ended.out
        assert last_run(launch).report["restarts"] == 1
        return ended

    return interrupted


def test_a_notice_queues_the_job_again(
    goes_on: Callable[..., Ended], launch: Launch, slurm: Cluster, submit: Submit, tmp_path: Path
):
    """It goes on from its checkpoint: no step is run twice, and the attempt is counted."""
    (tmp_path / "train.py").write_text(TRAINS)
    name = submit("-N", "2", "--workers", "2", "--restarts", "1", *TELL, "train.py")
    ended = goes_on(name, 2, lambda number: slurm.run("scancel", "--batch", "--signal=USR1", number))
    (cause,) = re.findall(r"(SIGUSR1 to Slurm's job \d+ .*): stopping 2 tasks", ended.out)
    assert "scancel" in cause
    assert "the time limit of" not in ended.out
    assert re.search(r"^job \S+: stopped after \S+, queued again$", ended.out, re.M)
    assert "exit code 124" not in ended.out
    run = last_run(launch)
    for task in ("worker/0", "worker/1"):
        log = run.log(task).decode()
        steps = [int(step) for step in re.findall(r"^step (\d+)$", log, re.M)]
        assert steps == list(range(1, len(steps) + 1)), log
        assert "attempt 2 ends" in log and "launch: attempt 2 starts here" in log
        assert run.task(task)["attempt"] == 2
        stamped = launch.here("logs", "--timestamps", "--since", "1h", task).out
        assert re.sub(r"(?m)^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d ", "", stamped) == log, (
            "both launchers noted times"
        )
    messages = (run.path / "launcher.log").read_text()
    assert re.search(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d launch: SIGUSR1 to Slurm's job", messages, re.M)
    soon((tmp_path / "told").exists)
    assert (tmp_path / "told").read_text() == "succeeded\n"


def test_a_run_that_slurm_does_not_queue_again_has_a_report(
    start: Start, launch: Launch, slurm: Cluster, submit: Submit, tmp_path: Path
):
    (tmp_path / "train.py").write_text(TRAINS)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    refuse = 'test "$1" != requeue || { echo refused >&2; exit 1; }'
    executable(scontrol, f'#!/bin/sh\n{refuse}\nexec {shutil.which("scontrol")} "$@"\n')
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    name = submit("-N", "1", "--workers", "1", "--restarts", "1", *TELL, "train.py", env={"PATH": path})
    soon(logged(launch, "step 5\n", 1), 60)
    slurm.run("scancel", "--batch", "--signal=USR1", job(slurm, name))
    ended = attached(start, name)
    assert "refused" in ended.out + ended.err
    folder = last_run(launch).path
    assert json.loads((folder / "report.json").read_text())["exit_code"] == ended.code == 124
    assert not (folder / "earlier.json").exists()
    soon((tmp_path / "told").exists)
    assert (tmp_path / "told").read_text() == "failed\n"


#: Jobs of the second partition displace those of the first one.
PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode={}
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def test_a_preempted_job_goes_on_later(
    goes_on: Callable[..., Ended], slurm: Cluster, submit: Submit, tmp_path: Path
):
    """Slurm queues it again by itself: whoever attaches follows it."""
    (tmp_path / "train.py").write_text(TRAINS)
    with slurm.configured(PREEMPTION.format("REQUEUE")):
        name = submit("--partition", "low", "-N", "3", "--workers", "3", "--restarts", "1", "train.py")
        goes_on(name, 3, lambda _: slurm.run("srun", "--partition=high", "--nodes=3", "--exclusive", "true"))


def test_a_preempted_job_ends(start: Start, slurm: Cluster):
    """Where the partition cancels it: the reason is known, and its tasks do not move."""
    with slurm.configured(PREEMPTION.format("CANCEL")):
        words = ("--slurm", "--partition", "low", "-N", "3", "--workers", "3", "--restarts", "1")
        started = start(*words, "--", *WAITS).up(3)
        slurm.run("srun", "--partition=high", "--nodes=3", "--exclusive", "true")
        ended = started.wait(30)
    assert ended.code == 125, ended.err
    assert re.search(r"Slurm's job \d+ was preempted$", ended.err, re.M), ended.err
    assert "start again" not in ended.err


def test_the_background_of_a_script(sbatch: Submit, launch: Launch, tmp_path: Path):
    """Its job would end with the script."""
    sbatch(("-d", "true"), "--wait", "-N1")
    assert "--detach: in a script for sbatch" in (tmp_path / "out").read_text()
    assert not launch.state.exists() or not list(launch.state.iterdir())


@pytest.mark.parametrize("restarts", [pytest.param(0, marks=pytest.mark.long), 1])
@pytest.mark.slow
def test_a_time_limit(slurm: Cluster, sbatch: Submit, tmp_path: Path, restarts: int):
    """In a script of the user's: the last half of a minute is for the end of the tasks."""
    (tmp_path / "train.py").write_text(TRAINS)
    words = ("--workers", "2", "--restarts", str(restarts), "train.py")
    number = sbatch(words, "--requeue", "-N2", "--time=1", "--open-mode=append")
    out = tmp_path / "out"
    why = f"stopped by SIGUSR1 to Slurm's job {number} (for its --time, "
    soon(lambda: out.exists() and why in out.read_text(), 60)
    if not restarts:
        soon(lambda: number not in slurm.jobs())
        assert re.search(r": timed out after [1-3]\d\.?\d*s, exit code 124$", out.read_text(), re.M)
        return
    soon(lambda: waits_for_its_time(slurm, number), 60)
    (tmp_path / "enough").touch()
    start_now(slurm, number, lambda: out.read_text().count("attempt 2 ends") == 2)
