"""The fixture ``cluster`` on real launches."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher import ExitStatus, TaskState
from launcher.job import OnFailure
from launcher.testing import CannotStart, Cluster, ClusterError, Task, WaitFailed
from tests.conftest import executable
from tests.testing.stubs import CHILD_COUNTS, COUNTS, RINGS, SLEEPS

pytestmark = pytest.mark.timeout(180)


def test_a_job_to_its_end(cluster: Cluster):
    job = cluster.start(["sh", "-c", "echo $JOB_NAME $TASK_INDEX at $TASK_ADDRESS"], workers=2, timeout=60)
    ended = job.wait()
    assert ended.exit_code == 0 and ended.failure is None and ended.job == job.name
    assert [(task.task, task.state) for task in ended.tasks] == [
        ("worker/0", TaskState.SUCCEEDED),
        ("worker/1", TaskState.SUCCEEDED),
    ]
    task = job.task("worker/1")
    assert task.lines == [f"worker 1 at {task.address}"] and task.raw == f"{task.lines[0]}\n".encode()
    assert task.address == job.addresses["worker"][1] == f"127.0.0.1:{task.port}"
    assert (task.role, task.index, task.host) == ("worker", 1, "localhost")
    assert not job.running and (job.run_dir / "report.json").exists()
    assert f"job {job.name}: ok" in job.output


@pytest.mark.promise("TensorFlow's start-up messages are hidden everywhere, and nothing else is")
def test_output_has_the_start_up_messages_of_tensorflow(cluster: Cluster):
    message = "I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on"
    job = cluster.start(["echo", message], workers=1, timeout=60)
    job.wait()
    assert f"worker/0 | {message}" in job.output and job.task("worker/0").lines == [message]


def test_the_properties_of_a_running_job(cluster: Cluster):
    job = cluster.start(COUNTS, ps=1, workers=1, left_running=True)
    task = job.task("worker/0")
    assert task.until_prints(re.compile(r"step \d$")).startswith("step ")
    assert task.state is TaskState.RUNNING and task.exit_status is None
    assert job.running and job.exit_code is None and job.report() is None
    assert task.pid is not None and Path(f"/proc/{task.pid}").exists()
    assert [found.name for found in job.tasks] == ["worker/0", "ps/0"]
    assert {"AgentReady", "PortsHeld", "TaskMoved"} <= {event["event"] for event in job.events}
    with pytest.raises(KeyError, match="no task 'worker/7'; there are worker/0, ps/0"):
        job.task("worker/7")
    for cut in (task.cut_network, task.mend_network):
        with pytest.raises(ClusterError, match="worker/0 does not run in a container: only the network of"):
            cut()


def test_everything_a_launch_takes(cluster: Cluster, tmp_path: Path):
    (tmp_path / "show.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['SECRET'], os.getcwd())\n"
    )
    roles = {"ps": 1, "workers": 1, "chief": True, "evaluator": True}
    ends = {"on_failure": "continue", "grace": 2.5, "timeout": 40}
    there = {"env": {"SECRET": "a b='c'"}, "workdir": tmp_path, "python": sys.executable, "flags": True}
    asked: dict[str, Any] = {**roles, **ends, **there, "options": ["--show", "chief"]}
    job = cluster.start(["show.py", "--me={job_name}"], **asked)
    assert job.wait().exit_code == 0
    (line,) = job.task("chief/0").lines
    assert line.startswith("['--me=chief', '--ps_hosts=127.0.0.1:") and line.endswith(f"a b='c' {tmp_path}")
    assert "a b=" not in Path(job.run_dir / "plan.json").read_text()
    words = job.plan["command"]
    assert words[words.index("--on-failure") + 1] == OnFailure.CONTINUE.value
    assert words[words.index("--grace") + 1] == "2.5" and words[words.index("--timeout") + 1] == "40"
    assert {task.role for task in job.tasks} == {"ps", "worker", "chief", "evaluator"}


def test_hosts_and_a_job_file(cluster: Cluster, tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("command: [echo, hello]\nroles: {worker: 2}\n")
    job = cluster.start(str(file), hosts="localhost:1,127.0.0.1:1")
    assert job.wait().exit_code == 0
    assert [task.host for task in job.tasks] == ["localhost", "127.0.0.1"]


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("program", "options", "message", "code"),
    [
        (["true"], {"options": ["--grace", "never"]}, "--grace: 'never'; expected seconds", 2),
        (["nothing.py"], {"workers": 2}, "nothing.py", 127),
        (["./program"], {"workers": 2}, "could not be started", 126),  # there is a plan by then
        (["true"], {"backend": "docker:any"}, "no Docker engine responds.*unix:///no/engine", 125),
    ],
)
def test_a_launch_that_starts_no_task(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    program: list[str], options: dict[str, Any], message: str, code: int,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/engine")
    executable(tmp_path / "program", "#!/no/such/interpreter\n")
    with pytest.raises(CannotStart, match=message) as caught:
        cluster.start(program, **options)
    assert caught.value.exit_code == code and "launch:" in caught.value.output


def test_a_wait_that_fails_names_its_task_and_condition(cluster: Cluster):
    job = cluster.start(SLEEPS, workers=2, left_running=True)
    job.task("worker/1").until_prints("asleep")
    with pytest.raises(WaitFailed) as caught:
        job.task("worker/1").until_prints("awake", timeout=0.1)
    assert str(caught.value) == (
        "worker/1 (running): waited for a line with 'awake': not within 0.1s\nits last lines:\n    asleep"
    )
    with pytest.raises(WaitFailed, match=r"worker/1 \(running\): waited for its end: not within 0.1s"):
        job.task("worker/1").wait(timeout=0.1)
    with pytest.raises(WaitFailed, match=rf"job {job.name}: waited for its end: not within 0.1s\nlaunch:\n"):
        job.wait(timeout=0.1)
    with pytest.raises(WaitFailed, match=r"waited for rain: not within 0.1s(.|\n)*worker/1 \(running\):\n"):
        job.until(lambda: False, "rain", timeout=0.1)


def test_a_wait_ends_when_its_condition_can_no_longer_hold(cluster: Cluster):
    script = "trap 'echo only this; exit 3' USR1; echo up; while :; do sleep 0.05; done"
    job = cluster.start(["sh", "-c", script], workers=2, on_failure="continue", left_running=True)
    since = time.monotonic()
    job.task("worker/0").until_prints("up")
    job.task("worker/0").signal(signal.SIGUSR1)
    with pytest.raises(WaitFailed, match="worker/0 .failed, exit code 3.: .*'that': and it has ended"):
        job.task("worker/0").until_prints("that", timeout=600)
    job.stop()
    with pytest.raises(WaitFailed, match="waited for rain: and launch has exited with 3"):
        job.until(lambda: False, "rain", timeout=600)
    assert time.monotonic() - since < 150


def test_a_launcher_that_was_killed_leaves_no_report(cluster: Cluster):
    job = cluster.start(SLEEPS)
    os.kill(job.launcher_pid, signal.SIGKILL)
    with pytest.raises(WaitFailed, match="waited for its end: and launch has exited with 137"):
        job.wait()


# ---------------------------------------------------------------------- killed and suspended tasks


@pytest.mark.promise("the fixture `cluster` starts, kills, cuts off")
def test_a_task_is_killed(cluster: Cluster):
    job = cluster.start(COUNTS, ps=1, workers=2, on_failure="continue")
    job.task("worker/0").until_prints("step 3")
    job.task("ps/0").kill()
    status = job.task("ps/0").wait()
    assert (status.code, status.signal) == (None, signal.SIGKILL)
    assert job.task("ps/0").state is TaskState.FAILED
    assert job.task("worker/0").state is job.task("worker/1").state is TaskState.RUNNING
    with pytest.raises(ClusterError, match="ps/0 cannot be signalled: it is failed, killed by SIGKILL"):
        job.task("ps/0").kill()
    job.stop()
    ended = job.wait()
    assert ended.exit_code == 137
    assert ended.failure is not None and ended.failure.task == "ps/0"


def test_all_processes_of_a_task_are_killed(cluster: Cluster):
    """Also one that has a session of its own; nothing is left for the agent to end."""
    job = cluster.start(CHILD_COUNTS)
    task = job.task("worker/0")
    task.until_prints("step 2")
    before = _family(task)
    assert len({session for _, session in before.values()}) == 2
    task.kill()
    job.wait()
    assert not any(map(_state, before))


@pytest.mark.parametrize("command", [COUNTS, CHILD_COUNTS], ids=["one process", "a family"])
def test_a_task_is_suspended(cluster: Cluster, tmp_path: Path, command: list[str]):
    roles: dict[str, int | dict[str, Any]] = {"bell": {"count": 1, "command": RINGS}}
    job = cluster.start(command, workers=1, roles=roles, workdir=tmp_path, left_running=True)
    task, bell = job.task("worker/0"), job.task("bell/0")
    task.until_prints("step 2")
    task.stop()
    # D: a shell whose stopped child has not called exec yet (vfork).
    assert {state for state, _ in _family(task).values()} <= {"T", "D"}
    for ring in ("first", "second"):  # with the second, all is in the log that was printed before the first
        (tmp_path / ring).touch()
        bell.until_prints(ring)
    before = task.raw
    (tmp_path / "late").touch()
    bell.until_prints("late")
    assert task.raw == before
    task.resume()
    task.until_prints(f"step {len(task.lines) + 2}")


def _family(task: Task) -> dict[int, tuple[str, int]]:
    """State and session of the processes of a task, by pid."""
    assert task.pid is not None
    family = [psutil.Process(task.pid)]
    family += family[0].children(recursive=True)
    states = {process.pid: _state(process.pid) for process in family}
    return {pid: (state, os.getsid(pid)) for pid, state in states.items() if state}


def _state(pid: int) -> str:
    """``S``, ``T``, ...; empty: there is no such process, or it is a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""
    return "" if state in "ZX" else state


@pytest.mark.promise("the fixture `cluster` starts, kills, cuts off")
def test_a_killed_task_starts_again(cluster: Cluster):
    """Its state and log are those of its last attempt; a wait for a line bears the time in between."""
    job = cluster.start(
        ["sh", "-c", "echo attempt $LAUNCH_ATTEMPT; exec sleep 300"], ps=1, workers=2, restarts=2
    )
    worker = job.task("worker/1")
    worker.until_prints("attempt 1")
    first = worker.pid
    worker.kill()
    assert worker.wait_restarted() == worker.attempt == 2
    assert worker.until_prints("attempt 2") == "attempt 2"
    assert worker.pid != first and worker.described() == "running"
    worker.kill()
    worker.until_prints("attempt 3")
    assert job.task("worker/0").attempt == 1
    worker.kill()  # no restart is left
    ended = job.wait()
    assert ended.exit_code == 137 and ended.restarts == 2 and worker.exit_status == ExitStatus(None, 9)
    with pytest.raises(WaitFailed, match="a new attempt of worker/1"):
        worker.wait_restarted()


def test_others_start_again_with_it(cluster: Cluster):
    job = cluster.start(SLEEPS, workers=2, restarts=1, restart="job", left_running=True)
    job.task("worker/1").kill()
    assert [task.wait_restarted() for task in job.tasks] == [2, 2]
    job.task("worker/1").signal(signal.SIGCONT)
    with pytest.raises(WaitFailed, match="a new attempt of worker/0: not within 0.5s"):
        job.task("worker/0").wait_restarted(timeout=0.5)
