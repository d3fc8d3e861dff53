"""How a job ends: its exit code, who is blamed, who is stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.local.seeing import ROOT, Family, RunFolder, alive, last_run, named, soon, stopped, stub
from tests.local.starting import ended_by_ctrl_c, press_ctrl_c

#: Signals that end no process (SIGCHLD, SIGCONT, those that stop, SIGURG, SIGWINCH), and the two that
#: the C library keeps for itself.
_HARMLESS = {17, 18, 19, 20, 21, 22, 23, 28, 32, 33}
DEADLY = [number for number in range(1, 65) if number not in _HARMLESS]


def _exits(*codes: int) -> list[str]:
    """Task N exits with the Nth of these."""
    return ["sh", "-c", f"set -- {' '.join(map(str, codes))}; shift $TASK_INDEX; exit $1"]


@pytest.mark.parametrize("code", [0, 2, 125, 255])
def test_its_exit_code_is_the_task_s(launch: Launch, code: int):
    ended = launch("--", *_exits(code))
    assert ended.code == code
    assert last_run(launch).codes() == [code]


def test_each_exit_code_is_told_as_it_is(launch: Launch):
    codes = [*range(1, 256)]
    ended = launch("--workers", "255", "--on-failure", "continue", "--", *_exits(*codes))
    run = last_run(launch)
    assert run.codes() == codes
    assert set(run.states().values()) == {"failed"}
    first = run.report["failure"]["task"]
    assert ended.code == run.report["exit_code"] == run.task(first)["status"]["code"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139), (signal.SIGTERM, 143), (64, 192)]
)
def test_a_signal_n_is_128_and_n(launch: Launch, number: int, code: int):
    assert launch("--", "sh", "-c", f"kill -{int(number)} $$").code == code
    assert last_run(launch).task("worker/0")["status"] == {"code": None, "signal": number}


def test_each_deadly_signal_is_told_as_it_is(launch: Launch, tmp_path: Path):
    numbers = " ".join(map(str, DEADLY))
    script = f"ulimit -c 0; set -- {numbers}; shift $TASK_INDEX; kill -$1 $$; sleep 5"
    words = ["--workers", str(len(DEADLY)), "--on-failure", "continue", "--workdir", str(tmp_path)]
    launch(*words, "--", "sh", "-c", script)
    assert last_run(launch).codes() == [128 + number for number in DEADLY]


def test_the_first_to_fail_is_the_first_to_end(launch: Launch, family: Family):
    """However short the time between: the agent sees two ends at once, the younger task's came first."""
    started = launch.start("--workers", "6", "--", "sleep", "300")
    soon(lambda: len(_pids(launch)) == 6)
    pids = _pids(launch)
    (agent,) = named(family.alive(), "launch-agent")
    os.kill(agent, signal.SIGSTOP)
    soon(lambda: stopped(agent))
    for number in (5, 2):
        os.kill(pids[f"worker/{number}"], signal.SIGKILL)
        soon(lambda number=number: not alive(pids[f"worker/{number}"]))  # type: ignore[misc]
    os.kill(agent, signal.SIGCONT)
    assert started.wait().code == 137
    assert last_run(launch).report["failure"]["task"] == "worker/5"


def _pids(launch: Launch) -> dict[str, int]:
    """The main processes of the tasks that were started."""
    events = last_run(launch).events if any(launch.state.glob("*/events.jsonl")) else []
    return {event["task"]: event["pid"] for event in events if event["event"] == "TaskStarted"}


# ---------------------------------------------------------------------- what can't be run


def test_a_module_that_is_not_there(launch: Launch):
    ended = launch("-m", "no_such_module_anywhere")
    assert ended.code != 0
    assert "no_such_module_anywhere" in ended.err


@pytest.mark.parametrize(
    ("name", "text", "mode", "said"),
    [
        ("plain", "#!/bin/sh\n", 0o644, "not executable"),
        ("script", "echo no interpreter\n", 0o755, "#!"),
        ("foreign", "#!/no/such/interpreter\n", 0o755, "interpreter"),
        ("elf", "\x7fELF and nothing else", 0o755, "no program for this machine"),
    ],
)
def test_a_file_that_cannot_be_run(
    launch: Launch, weird_path: Path, name: str, text: str, mode: int, said: str
):
    program = weird_path / name
    program.write_text(text)
    program.chmod(mode)
    ended = launch("--workers", "2", "--", program)
    assert ended.code == 126
    assert said in ended.err
    if mode & 0o111:  # else it was known before anything was started
        assert last_run(launch).report["failure"]["reason"] == "not runnable"


def test_a_script_in_a_weird_place(launch: Launch, weird_path: Path):
    """Spaces, quotes, newlines: in the script's path, the working folder, arguments and environment."""
    script = weird_path / "t rain.py"
    script.write_text("import os, sys\nprint([*sys.argv[1:], os.environ['ODD'], os.getcwd()])\n")
    odd = "a b'c\"d\ne$(f)`g`\\"
    ended = launch("--workdir", weird_path, "-x", f"ODD={odd}", script, odd, "")
    assert ended.code == 0
    assert last_run(launch).log("worker/0").decode().strip() == repr([odd, "", odd, str(weird_path)])


def test_one_of_many_cannot_be_started(launch: Launch, family: Family, tmp_path: Path):
    job = tmp_path / "job.yaml"
    workers = f"worker: {{count: 3, program: {stub('family', 'child', 'sleep')}}}"
    job.write_text(f"roles:\n  {workers}\n  odd: {{program: [no-such-program]}}\n")
    ended = launch(job)
    assert ended.code == 127
    assert "odd/0" in ended.err
    family.gone(0.5)


# ---------------------------------------------------------------------- one fails


def test_one_failure_stops_the_others_at_once(launch: Launch, family: Family):
    script = "test $TASK_INDEX != 1 || exit 7; exec sleep 300"
    ended = launch("--workers", "3", "--grace", "300", "--", "sh", "-c", script)
    assert ended.code == 7
    assert "worker/1 failed" in ended.err and "exit code 7" in ended.err
    run = last_run(launch)
    assert [run.task(f"worker/{n}")["status"]["signal"] for n in (0, 2)] == [signal.SIGTERM] * 2
    assert run.states() == {"worker/0": "stopped", "worker/1": "failed", "worker/2": "stopped"}
    assert run.report["failure"]["task"] == "worker/1"
    assert (run.report["failure"]["reason"], run.report["exit_code"]) == ("exit", 7)
    family.gone(0.5)


def test_the_first_failure_is_the_cause(launch: Launch):
    """What falls with it, here with another code on SIGTERM, is not."""
    script = "trap 'exit 9' TERM; if test $TASK_INDEX = 2; then sleep 0.3; exit 3; fi; sleep 60 & wait"
    ended = launch("--workers", "4", "--", "sh", "-c", script)
    assert ended.code == 3
    states = last_run(launch).states()
    assert [states[f"worker/{n}"] for n in range(4)] == ["stopped", "stopped", "failed", "stopped"]


def test_its_last_lines_and_traceback_are_shown(launch: Launch, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os\ndef train():\n    raise ValueError('no such batch')\n"
        "print('loading')\nif os.environ['TASK_INDEX'] == '1':\n    train()\nimport time; time.sleep(60)\n"
    )
    ended = launch("--workers", "2", script)
    assert ended.code == 1
    assert "Traceback" in ended.err and "ValueError: no such batch" in ended.err


def test_continue_lets_the_others_finish(launch: Launch):
    script = "test $TASK_INDEX != 1 || exit 7; sleep 0.4; echo done"
    ended = launch("--workers", "3", "--on-failure", "continue", "--", "sh", "-c", script)
    assert ended.code == 7
    assert [*last_run(launch).states().values()] == ["succeeded", "failed", "succeeded"]
    assert ended.out.count("done") == 2


# ---------------------------------------------------------------------- who decides


def test_ps_and_evaluator_are_stopped_when_the_workers_are_done(launch: Launch):
    script = 'case $JOB_NAME in ps|evaluator) exec sleep 300;; esac; echo "$JOB_NAME is done"'
    words = ["--ps", "2", "--workers", "2", "--evaluator", "--grace", "300"]
    ended = launch(*words, "--", "sh", "-c", script)
    assert ended.code == 0
    states = last_run(launch).states()
    assert {states[task] for task in ("ps/0", "ps/1", "evaluator/0")} == {"stopped"}
    assert {states[task] for task in ("worker/0", "worker/1")} == {"succeeded"}


def test_a_ps_that_dies_before_is_a_failure(launch: Launch):
    script = "test $JOB_NAME = worker || exit 5; sleep 60"
    ended = launch("--ps", "1", "--workers", "2", "--", "sh", "-c", script)
    assert ended.code == 5
    assert last_run(launch).report["failure"]["task"] == "ps/0"


def test_the_chief_s_end_is_the_job_s(launch: Launch):
    script = "test $JOB_NAME = chief || sleep 60"
    ended = launch("--chief", "--workers", "2", "--ps", "1", "--", "sh", "-c", script)
    assert ended.code == 0
    states = last_run(launch).states()
    assert states.pop("chief/0") == "succeeded"
    assert set(states.values()) == {"stopped"}


def test_roles_of_one_s_own(launch: Launch, tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "roles:\n"
        "  reader:\n    count: 2\n    program: sh -c 'echo read; exec sleep 60'\n    service: true\n"
        "  trainer:\n    count: 2\n    program: [sh, -c, 'echo \"train {reader_hosts} $EXTRA\"']\n"
        "    env: {EXTRA: more}\n"
    )
    ended = launch(job)
    assert ended.code == 0
    run = last_run(launch)
    assert run.states() == {
        "reader/0": "stopped", "reader/1": "stopped", "trainer/0": "succeeded", "trainer/1": "succeeded",
    }  # fmt: skip
    readers = ",".join(run.plan["cluster"]["reader"])
    assert f"trainer/1 | train {readers} more" in ended.out


def test_paths_in_a_job_file_are_relative_to_it(launch: Launch, tmp_path: Path):
    """Wherever it is started from."""
    for name in ("here/bin", "here/sub", "here/main"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here/bin/python").symlink_to(sys.executable)
    (tmp_path / "here/main/where.py").write_text("import os\nprint(os.getcwd())\n")
    (tmp_path / "here/sub/where.py").write_text("import os\nprint(os.getcwd())\n")
    (tmp_path / "here/hosts").write_text("localhost slots=2\n")
    job = tmp_path / "here/job.yaml"
    job.write_text(
        "program: [where.py]\nworkdir: main\npython: bin/python\nrun_dir: run\nhosts: hosts\n"
        "roles: {worker: 1, other: {workdir: sub}}\n"
    )
    environment = {"PYTHONPATH": str(ROOT)}
    ended = launch("here/job.yaml", cwd=tmp_path, env=environment)
    assert ended.code == 0, ended.err
    run = RunFolder(tmp_path / "here/run")
    assert run.log("worker/0").decode().strip() == str(tmp_path / "here/main")
    assert run.log("other/0").decode().strip() == str(tmp_path / "here/sub")
    assert run.plan["tasks"][0]["argv"][0] == str(tmp_path / "here/bin/python")


# ---------------------------------------------------------------------- somebody ends it


def test_timeout(launch: Launch, family: Family):
    ended = launch("--workers", "2", "--timeout", "0.3s", "--grace", "300", "--", "sleep", "300")
    assert ended.code == 124
    assert last_run(launch).report["failure"]["reason"] == "timeout"
    assert ": timed out after 0.3s, exit code 124\n" in ended.err + ended.out
    family.gone(0.5)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_orderly(launch: Launch, family: Family, number: int, code: int):
    # The shell's child would take SIGTERM for the shell's own as long as it is no sleep yet.
    child = "until read -r name </proc/$!/comm && test $name = sleep; do :; done"
    script = f"trap 'echo saved; exit 0' TERM; sleep 60 & {child}; echo up; wait"
    started = launch.start("--workers", "3", "--grace", "60", "--", "sh", "-c", script)
    started.until(lambda it: it.out.count("| up\n") == 3)
    started.send(number)
    ended = started.wait()
    assert ended.code == code
    assert ended.out.count("saved") == 3
    assert set(last_run(launch).states().values()) == {"stopped"}
    assert last_run(launch).report["failure"]["reason"] == "interrupted"
    family.gone(0.5)


def test_nohup_is_respected(launch: Launch, family: Family):
    command = ("sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", sys.executable, "-m", "launcher")
    started = launch.start("--", "sh", "-c", "echo up; sleep 0.5", command=command)
    started.until(lambda it: "| up\n" in it.out)
    started.send(signal.SIGHUP)
    started.send(signal.SIGINT)
    assert started.wait().code == 0


def test_a_time_limit_of_0_is_none(launch: Launch):
    assert launch("--timeout", "0", "--", "sleep", "0.2").code == 0


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_ctrl_c_twice_kills_at_once(launch: Launch, family: Family, seconds: float):
    words = ["--workers", "3", "--grace", "300"]
    started = launch.start(*words, "--", *stub("family", "ignore", "child", "daemon", "sleep"))
    started.until(lambda _: family.ready() == 3)
    started.send(signal.SIGINT)
    started.until(lambda it: "Ctrl-C" in it.err)
    time.sleep(seconds)
    started.send(signal.SIGINT)
    ended = started.wait()
    assert ended.code == 130
    family.gone(0.5)


def test_ctrl_c_before_anything_runs(launch: Launch, family: Family):
    """Whenever it comes: nothing is left."""
    for delay in range(12):
        started = launch.start("--workers", "4", "--", *stub("family", "child", "sleep"))
        try:
            started.process.wait(delay * 0.03)
        except Exception:  # noqa: BLE001 - it runs, as it should
            pass
        press_ctrl_c(started)
        ended_by_ctrl_c(started.wait())
        family.gone(0.5)


def test_grace_is_followed_by_stacks_and_sigkill(launch: Launch, family: Family, tmp_path: Path):
    """A Python program that hangs shows where, in its log."""
    script = tmp_path / "hung.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def hang_here():\n    print('up', flush=True)\n    time.sleep(60)\nhang_here()\n"
    )
    started = launch.start("--grace", "2", script)  # the stacks have as long: two seconds at most
    started.until(lambda it: "| up\n" in it.out)
    started.send(signal.SIGTERM)
    ended = started.wait()
    assert ended.code == 143
    assert b"in hang_here" in last_run(launch).log("worker/0")
    assert last_run(launch).task("worker/0")["status"]["signal"] == signal.SIGABRT
    family.gone(0.5)
