"""SIGKILL and scancel of all that belongs to a job at Slurm: nothing is left, code and reason are right.

``LAUNCH_SOAK=N`` kills each victim N times (``make soak``: 50), at the moments in turn; without it, once.
"""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from tests.conftest import Launch, Started
from tests.seeing import kill, last_run, soon
from tests.slurm.cluster import SRUN_PARTS, Cluster, child_with, kill_srun, sruns
from tests.soak.test_kills import repeated, until_moment

Start = Callable[..., Started]

MOMENTS = ("pending", "start", "run", "restart", "stop")
VICTIMS = ("launch", "salloc", "holder", "job", "step")
#: Moments at which processes of an srun are killed.
SRUN_MOMENTS = ("start", "run", "restart")
#: Up after the second attempt, if there is one; with children in sessions of their own, deaf to SIGTERM.
SCRIPT = """test $LAUNCH_ATTEMPT = $FIRST && { sleep 0.3; exit 3; }
trap '' TERM; (setsid sleep 300 &); echo up; sleep 300 & wait; sleep 300"""
WORDS = ("--workers", "2", "--grace", "1", "--lease", "6", "--restarts", "1")
#: Why a job that was cancelled has ended, in the order of what may notice it.
CANCELLED = (
    r"was cancelled \(scancel\)|scancel of its step|STEP \S+ ON n\d CANCELLED|Slurm did not grant any nodes: "
    r"|stopped by SIGTERM, as scancel sends it|JOB \d+ ON n\d CANCELLED|revoked"
)

pytestmark = pytest.mark.timeout(240)


def moment_of(victim: str, turn: int) -> str:
    """The moment of a kill: those of one victim come in turn."""
    return MOMENTS[(turn + (*VICTIMS, "script").index(victim)) % len(MOMENTS)]


def first(moment: str) -> tuple[str, ...]:
    """The option that lets tasks fail in their first attempt, where a moment needs it."""
    return ("-x", f"FIRST={1 if moment == 'restart' else 0}")


@repeated
@pytest.mark.parametrize("victim", VICTIMS)
def test_an_allocation(start: Start, launch: Launch, slurm: Cluster, victim: str, turn: int, clean: None):
    moment = moment_of(victim, turn)
    if moment == "pending" and victim == "step":
        moment = "run"  # there is none yet
    full = slurm.allocation("-N3", "--ntasks-per-node=7") if moment == "pending" else nullcontext()
    with full:
        _attack(start, slurm, victim, moment)


def _attack(start: Start, slurm: Cluster, victim: str, moment: str) -> None:
    others, tasks = slurm.jobs(), ("--workers", "24") if moment == "pending" else ()
    nodes = "3" if moment == "pending" else "2"
    # scancel of a step may kill the agent and its watchdog in the same moment. Then only Slurm can end tasks
    # that are deaf to SIGTERM, and the clusters of the tests have no cgroups by which it would find them.
    script = SCRIPT.replace("trap '' TERM; ", "") if victim == "step" else SCRIPT
    started = start("--slurm", "-N", nodes, *WORDS, *tasks, *first(moment), "--", "sh", "-c", script)
    if moment == "pending":
        started.until(lambda it: "is pending: Resources" in it.err, 60)
    else:
        until_moment(started, moment, lambda: started.out.count("| up") == 2, start=1.5)
    (job,) = re.findall(r"Slurm's job (\d+)", started.err)[:1] or [""]
    holder = child_with(started.pid, "trap", "salloc")
    if victim == "launch":
        started.kill()
    elif victim in ("salloc", "holder"):
        found = holder if victim == "holder" or holder is None else child_with(holder, "salloc")
        if found is not None:
            kill(found)
    elif victim == "job":
        new = lambda: [number for number in slurm.jobs() if number not in others]  # noqa: E731
        soon(lambda: job or new(), 30)  # launch may not have asked yet
        slurm.run("scancel", job or new()[0], check=False)
    elif step := next((step for step in slurm.steps() if step.startswith(f"{job}.")), ""):
        slurm.run("scancel", step, check=False)
    if victim == "launch":
        assert started.process.wait() == -signal.SIGKILL
        return  # the fixture `clean` looks at the nodes and at the queue
    if victim != "job":  # the job goes on, or its tasks move
        time.sleep(1.0)
        if started.process.poll() is None:
            started.send(signal.SIGINT)
    ended = started.wait(60)
    if victim in ("job", "step") and ended.code != 130:
        assert ended.code == 125 and re.search(CANCELLED, ended.err + ended.out), (ended.code, ended.err)
    elif victim in ("salloc", "holder") and ended.code == 125:
        assert moment in ("pending", "start") and "Slurm did not grant any nodes" in ended.err, ended.err
    else:
        assert ended.code == 130, (ended.code, ended.err)
    assert "network" not in ended.err, ended.err


@repeated
@pytest.mark.parametrize("part", SRUN_PARTS)
def test_an_srun(start: Start, slurm: Cluster, held: dict[str, str], part: str, turn: int, clean: None):
    """The job goes on, and no task starts again because of it."""
    moment = SRUN_MOMENTS[(turn + SRUN_PARTS.index(part)) % len(SRUN_MOMENTS)]
    script = "test $LAUNCH_ATTEMPT = $FIRST && { sleep 0.3; exit 3; }; echo up; exec sleep 4"
    started = start(*WORDS, *first(moment), "--", "sh", "-c", script, env=held)
    if moment == "start":
        soon(lambda: sruns(held))
        time.sleep(random.random() * 0.6)
    else:
        until_moment(started, moment, lambda: started.out.count("| up") == 2)
    with suppress(FileNotFoundError, ProcessLookupError):  # the child of an srun that is just starting
        kill_srun(random.choice(sruns(held)), part)
    ended = started.wait(60, code=0)
    assert ended.out.count("| up") == 2, ended.out + ended.err
    assert ended.err.count("restart 1 of 1") == (moment == "restart"), ended.err


@repeated
def test_a_script(start: Start, launch: Launch, slurm: Cluster, turn: int, tmp_path: Path):
    """The launcher that Slurm has started: its tasks end, and the run has a reason."""
    moment, others = moment_of("script", turn), slurm.jobs()
    words = (*WORDS, *first(moment), "--", "sh", "-c", SCRIPT)
    submitted = start("--slurm", "-N", "2", "-d", *words, cwd=tmp_path).wait(60, code=0)
    name = submitted.out.strip()
    run = last_run(launch).path
    messages = run / "launcher.log"
    logs = lambda: [file.read_text() for file in run.glob("logs/*")]  # noqa: E731
    owned = lambda: "pid" in json.loads((run / "launcher.json").read_text())  # noqa: E731
    soon(owned, 60)
    if moment in ("run", "stop"):
        soon(lambda: sum("up" in log for log in logs()) == 2, 60)
    elif moment == "restart":
        soon(lambda: "restart 1 of 1" in messages.read_text(), 60)
    time.sleep(random.random())
    stop = start("stop", name) if moment == "stop" else None
    if stop is not None:
        soon(lambda: "launch stop" in messages.read_text() or (run / "report.json").exists(), 30)
    record = json.loads((run / "launcher.json").read_text())
    node = record["batch"][2]
    slurm.run(*slurm.inside(node), "kill", "-KILL", str(record["pid"]), check=False)
    soon(lambda: not slurm.left(others), 20, lambda: slurm.left(others))
    ended = start("attach", name).wait(60)
    if (run / "report.json").exists():
        assert moment == "stop" and ended.code == 143, ended.out
    else:
        assert ended.code == 125 and re.search(r"Slurm's job \d+ has ended", ended.err), ended.err
    if stop is not None:
        assert stop.wait(60).code == 0
