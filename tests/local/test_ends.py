"""How a job ends: its exit code, the cause in the report, and which tasks are stopped."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch, in_shell
from tests.local.stops import ask_each
from tests.local.terminal import ended_by_ctrl_c, press_ctrl_c
from tests.seeing import Family, alive, last_run, named, soon, stopped, stub


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
    return {event["task"]: event["pid"] for event in events if event["event"] == "TaskMoved" and event["pid"]}


# ---------------------------------------------------------------------- what can't be run


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"#!/no/such/interpreter -x\n", ["'/no/such/interpreter'", "missing"]),
        (b"#! /bin/sh\r\necho x\r\n", [r"'/bin/sh\r'", "sed -i"]),
        (b"\xef\xbb\xbf#!/bin/sh\necho x\n", ["byte order mark", "sed -i"]),
        (b"#!/etc/passwd\n", ["'/etc/passwd'", "cannot be executed"]),
        (b"#!/bin/sh/x\n", ["'/bin/sh/x'", "missing"]),
        (b"no program\n", ["without a #! line"]),
    ],
)
def test_a_script_that_can_not_be_run_names_its_interpreter(
    launch: Launch, weird_path: Path, content: bytes, parts: list[str]
):
    program = weird_path / "foreign"
    program.write_bytes(content)
    program.chmod(0o755)
    ended = launch("--workers", "2", "--", program, code=126)
    assert [part for part in parts if part not in ended.err] == [], ended.err
    assert last_run(launch).report["failure"]["reason"] == "not runnable"


def test_a_script_in_a_weird_place(launch: Launch, weird_path: Path):
    """Spaces, quotes, newlines: in the script's path, the working folder, arguments and environment."""
    script = weird_path / "t rain.py"
    script.write_text("import os, sys\nprint([*sys.argv[1:], os.environ['ODD'], os.getcwd()])\n")
    odd = "a b'c\"d\ne$(f)`g`\\"
    launch("--workdir", weird_path, "-x", f"ODD={odd}", script, odd, "", code=0)
    assert last_run(launch).log("worker/0").decode().strip() == repr([odd, "", odd, str(weird_path)])


# ---------------------------------------------------------------------- one fails


@pytest.mark.promise("the first failure: cause, last lines, traceback")
def test_its_last_lines_and_traceback_are_shown(launch: Launch, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os\ndef train():\n    raise ValueError('no such batch')\n"
        "print('loading')\nif os.environ['TASK_INDEX'] == '1':\n    train()\nimport time; time.sleep(60)\n"
    )
    ended = launch("--workers", "2", script, code=1)
    assert "Traceback" in ended.err and "ValueError: no such batch" in ended.err


@pytest.mark.promise("one failure stops all at once; `--on-failure continue`")
def test_continue_lets_the_others_finish(launch: Launch):
    script = "test $TASK_INDEX != 1 || exit 7; sleep 0.4; echo done"
    ended = launch("--workers", "3", "--on-failure", "continue", "--", "sh", "-c", script, code=7)
    assert [*last_run(launch).states().values()] == ["succeeded", "failed", "succeeded"]
    assert ended.out.count("done") == 2


# ---------------------------------------------------------------------- all is done


#: A job whose evaluator finishes when there is a file.
EVALUATED = """\
roles:
  worker: {count: 1, command: [-c, "print('trained')"]}
  evaluator:
    {count: 1, drain: 30s, command: [sh, -c, "until test -e GO; do sleep 0.05; done; echo evaluated"]}
  ps: {count: 1, command: [sleep, '300']}
  board: {count: 1, sidecar: true, command: [sleep, '300']}
"""


@pytest.mark.promise("a job is done with its chief, or all workers; then ps and evaluator are stopped")
def test_the_evaluator_finishes(launch: Launch, tmp_path: Path):
    """The launcher waits for it and prints that; TensorBoard stays as long."""
    (tmp_path / "job.yaml").write_text(EVALUATED.replace("GO", str(tmp_path / "go")))
    started = launch.start(tmp_path / "job.yaml").until(lambda it: "waiting for evaluator/0" in it.err)
    (tmp_path / "go").touch()
    ended = started.wait(code=0)
    assert "evaluator/0 | evaluated\n" in ended.out
    assert "launch: waiting for evaluator/0 to finish (at most 30s after the job's end)\n" in ended.err
    states = {"worker/0": "succeeded", "ps/0": "stopped", "evaluator/0": "succeeded", "board/0": "stopped"}
    assert last_run(launch).states() == states



# ---------------------------------------------------------------------- signals and time limits


ENDS = {
    signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGQUIT: 131, signal.SIGPWR: 158,
    signal.SIGUSR1: 124, signal.SIGUSR2: 124, signal.SIGXCPU: 124,
}  # fmt: skip


@pytest.mark.promise("Ctrl-C once, twice")
@pytest.mark.parametrize("number", ENDS)
def test_a_signal_ends_it_orderly(launch: Launch, family: Family, number: int):
    # The shell's child would take SIGTERM for the shell's own as long as it is no sleep yet.
    child = "until read -r name </proc/$!/comm && test $name = sleep; do :; done"
    script = f"trap 'echo saved; exit 0' TERM; sleep 60 & {child}; echo up; wait"
    started = launch.start("--workers", "3", "--grace", "60", "--", "sh", "-c", script).up(3)
    ended = started.stop(number, code=ENDS[signal.Signals(number)])
    assert ended.out.count("saved") == 3
    assert set(last_run(launch).states().values()) == {"stopped"}
    reason = last_run(launch).report["failure"]["reason"]
    assert reason == ("timeout" if ended.code == 124 else "interrupted")
    family.gone(0.5)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_other_signals_kill_it(launch: Launch, family: Family, number: int):
    started = launch.start("--grace", "1", "--", "sh", "-c", "ulimit -c 0; echo up; sleep 300").up(1)
    resource.prlimit(started.pid, resource.RLIMIT_CORE, (0, 0))
    assert started.stop(number).code == -number
    family.gone(4.0)


#: Ways to stop a launch, one shortly after the other. All of them: ``tests/soak/test_signals.py``.
TWO_WAYS = [
    ("Ctrl-C", "pipe"), ("Ctrl-C", "SIGTERM"), ("SIGTERM", "terminal"), ("SIGTERM", "SIGTERM"),
    ("SIGHUP", "Ctrl-C"), ("pipe", "SIGHUP"), ("group", "SIGHUP"), ("terminal", "group"),
    ("SIGTERM", "service"), ("service", "Ctrl-C"),
]  # fmt: skip


@pytest.mark.promise("a stop is one stop: no signal, `scancel` or closed pipe or terminal shortens it")
def test_a_stop_is_one_stop(launch: Launch, tmp_path: Path):
    """Tasks keep their time to save their state, whatever else asks for the end."""
    assert ask_each(launch, tmp_path, TWO_WAYS, 0.05, 1.5) == []


def test_forks_of_a_preloaded_process_keep_their_grace(launch: Launch, tmp_path: Path):
    assert ask_each(launch, tmp_path, [("service", "Ctrl-C")], 0.05, 1.0, "--preload", "json") == []


def test_nohup_is_respected(launch: Launch, family: Family):
    command = in_shell('trap "" HUP INT; exec "$@"')
    started = launch.start("--", "sh", "-c", "echo up; sleep 0.5", command=command).up(1)
    started.send(signal.SIGHUP)
    assert started.stop(signal.SIGINT).code == 0


def test_ctrl_c_before_anything_runs(launch: Launch, family: Family):
    """At any moment: no process is left."""
    for delay in range(12):
        started = launch.start("--workers", "4", "--", *stub("family", "child", "sleep"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(delay * 0.03)
        press_ctrl_c(started)
        ended_by_ctrl_c(started.wait())
        family.gone(0.5)


_INTERRUPTED = """
import os, signal, sys
class Finder:
    left = int(sys.argv.pop(1))
    def find_spec(self, name, path, target=None):
        if "launcher.__main__" in sys.modules:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv[0] = "launch"
from launcher.__main__ import main
main()
"""


@pytest.mark.timeout(300)
def test_ctrl_c_during_any_import_leaves_no_traceback(launch: Launch):
    for number in range(1, 1000, 7):
        command = (sys.executable, "-c", _INTERRUPTED, str(number))
        ended = launch.start("--dry-run", "true", command=command).wait()
        if ended.code == 0:
            break
        assert ended.code == 130, number
        assert ended.err in ("", "launch: Ctrl-C: no task was started\n"), number
    assert 10 < number < 999


@pytest.mark.promise("SIGTERM, then stacks, then SIGKILL after `--grace`")
def test_grace_is_followed_by_stacks_and_sigkill(launch: Launch, family: Family, tmp_path: Path):
    """A Python program that hangs shows where, in its log."""
    script = tmp_path / "hung.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def hang_here():\n    print('up', flush=True)\n    time.sleep(60)\nhang_here()\n"
    )
    started = launch.start("--grace", "2", script).up(1)  # the stacks have as long: two seconds at most
    started.stop(signal.SIGTERM, code=143)
    assert b"in hang_here" in last_run(launch).log("worker/0")
    assert last_run(launch).task("worker/0")["status"]["signal"] == signal.SIGABRT
    family.gone(0.5)
