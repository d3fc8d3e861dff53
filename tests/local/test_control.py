"""``launch ps RUN``, ``launch ps --watch`` and ``launch restart`` ask the launcher of a running job."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.identity import this_process
from launcher.common.record import as_dict, replace
from tests.conftest import COMMAND, Launch, Started, executable
from tests.local.terminal import Terminal
from tests.seeing import asked, connected, last_run, soon, stat_field

#: worker/1 has a child with 100 MB; each task prints two lines, the last with a control sequence.
MEMORY = """
import os, sys, time
if os.environ["TASK_INDEX"] == "1" and os.fork() == 0:
    big = b"x" * (100 << 20)
    os.write(1, b"big\\n")
    time.sleep(300)
os.write(1, b"first\\nstep \\x1b[31m7\\x1b[0m\\n")
os.write(1, b"I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on\\n")
time.sleep(300)
"""


WAITS = ("sh", "-c", "echo up; exec sleep 300")
Running = Callable[..., Started]

#: Prints its attempt.
ATTEMPTS = "echo up: attempt $LAUNCH_ATTEMPT of $JOB_NAME/$TASK_INDEX at $TASK_ADDRESS; exec sleep 300"


@pytest.fixture
def running(launch: Launch) -> Iterator[Callable[..., Started]]:
    """Starts jobs whose tasks have printed ``up``; those that still run after the test get a Ctrl-C."""
    jobs: list[Started] = []

    def job(*words: str) -> Started:
        jobs.append(launch.start(*(words or ("--workers", "2", "--", *WAITS))))
        jobs[-1].until(lambda it: it.out.count("| up") == 2)
        return jobs[-1]

    yield job
    for each in jobs:
        if each.process.poll() is None:
            assert each.stop(signal.SIGINT).code == 130


def tasks_of(launch: Launch) -> dict[str, dict[str, Any]]:
    """The tasks, as the launcher of the newest run has them."""
    return {task["task"]: task for task in json.loads(launch.here("ps", "latest", "--json").out)}


# ---------------------------------------------------------------------- launch ps RUN


@pytest.mark.promise("`launch ps RUN`: tasks, memory on all hosts")
def test_the_tasks_of_a_run(launch: Launch):
    started = launch.start("--ps", "1", "--workers", "2", "--", sys.executable, "-I", "-S", "-c", MEMORY)
    started.until(lambda it: "big" in it.out and it.out.count("step") == 3)
    run, name = last_run(launch), last_run(launch).path.name
    ended = launch.here("ps", name, code=0)
    header, *lines = ended.out.splitlines()
    # Their CPU is known after four seconds.
    names = " ".join(header.replace(" CPU ", " ").split())
    assert names == "TASK HOST ADDRESS STATE PID MEMORY ATTEMPT LAST LINE"
    plan = {task["task"]: task["address"] for task in run.plan["tasks"]}
    pids = {event["task"]: event["pid"] for event in run.events if event["event"] == "TaskMoved"}
    for line, task in zip(lines, ("worker/0", "worker/1", "ps/0"), strict=True):
        assert line.split()[:5] == [task, "localhost", plan[task], "running", str(pids[task])]
        assert re.search(r"\d [kMG]B +1  step 7$", line) or task == "worker/1"

    # It was measured two seconds ago at most, perhaps before the task used so much.
    soon(lambda: tasks_of(launch)["worker/1"]["memory"] > 100 << 20)
    tasks = tasks_of(launch)
    assert 50 << 20 > tasks["worker/0"]["memory"] > 1 << 20
    assert tasks["ps/0"]["state"] == "running" and tasks["ps/0"]["attempt"] == 1
    assert tasks["worker/0"]["last_line"] == "step 7", "not the message of TensorFlow after it"

    os.kill(pids["ps/0"], signal.SIGKILL)
    code = started.wait().code
    ended = launch.here("ps", name)
    assert (ended.code, code) == (0, 137)
    table = started.out[started.out.index("TASK ") :]
    assert ended.out == table
    assert tasks_of(launch)["ps/0"]["status"] == {"code": None, "signal": 9}


def test_a_python_that_was_built_for_older_systems(launch: Launch, tmp_path: Path):
    """As many of uv. It has no function for files in memory, which answers need."""
    (tmp_path / "sitecustomize.py").write_text("import os; vars(os).pop('memfd_create', None)")
    started = launch.start("--", *WAITS, env={"PYTHONPATH": str(tmp_path)}).up(1)
    assert "running" in launch.here("ps", "latest", code=0).out
    assert started.stop(signal.SIGINT).code == 130


def test_a_task_that_waits_to_start_again(launch: Launch):
    """Each wait is twice as long as the one before."""
    script = "if test $JOB_NAME$TASK_INDEX = worker0; then exit $LAUNCH_ATTEMPT; fi; echo up; exec sleep 300"
    started = launch.start("--ps", "1", "--workers", "2", "--restarts", "9", "--", "sh", "-c", script)
    started.until(lambda it: "| up" in it.out and "starting worker/0 again" in it.err)
    name = last_run(launch).path.name
    again = re.compile(r"(?m)^worker/0 .* failed, starts again +\d")
    soon(lambda: again.search(launch.here("ps", name).out))
    soon(lambda: [name for name, task in tasks_of(launch).items() if task["restarting"]] == ["worker/0"])
    assert launch.here("stop", name).code == 0
    started.wait()


@pytest.mark.slow
def test_a_launcher_that_is_suspended(launch: Launch, running: Running):
    started = running()
    started.send(signal.SIGSTOP)
    asking = [launch.start(command, "latest") for command in ("ps", "stacks")]
    time.sleep(2)  # they wait for the answer
    with suppress(BlockingIOError), ExitStack() as stack:
        while True:
            peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            peer.setblocking(False)
            peer.connect(f"\0tf-launcher-{last_run(launch).path.name}")
    ended = launch("ps", "latest", timeout=60, code=125)
    assert "accepts no connections, and their queue is full; is it suspended?" in ended.err
    for each in asking:
        assert "does not answer; is it suspended?" in each.wait(60, code=125).err
    started.send(signal.SIGCONT)
    assert launch.here("ps", "latest").code == 0


# ---------------------------------------------------------------------- launch stacks


def test_stacks_of_what_a_shell_has_started_and_of_no_python(launch: Launch, running: Running):
    """The Pythons below a shell are looked at; a task without any says so."""
    python = f"{sys.executable} -c 'import time; print(\"up\"); time.sleep(300)'"
    running(
        "--workers",
        "2",
        "--",
        "sh",
        "-c",
        f"test $TASK_INDEX = 0 && {{ echo up; sleep 300; }}; {python}; true",
    )
    shown = launch.here("stacks", "latest")
    assert shown.code == 0
    assert shown.out == "worker/1:\n    <module> (<string>:1)\nworker/0: it is no Python program\n"
    for named in (["latest", "worker/0"], ["worker/0"]):
        shown = launch.here("stacks", *named)
        assert (shown.code, shown.out) == (125, "worker/0: it is no Python program\n")
    for named in (["latest", "worker/7"], ["worker/7"]):
        shown = launch.here("stacks", *named)
        assert shown.code == 2 and "there is no task 'worker/7'" in shown.err


@pytest.mark.promise("`--timeout` and `--stall` show where tasks are before they stop them")
def test_a_time_limit_shows_where_tasks_are(launch: Launch):
    """Before they are stopped, and in the report, which the commands about the run show again."""
    code = "import time\ndef hang_here(): time.sleep(300)\nhang_here()"
    ended = launch("--workers", "2", "--timeout", "2", "--", sys.executable, "-c", code, code=124)
    assert "worker[0-1] in hang_here (<string>:2)" in ended.err
    stacks = "worker[0-1]: the same\n    hang_here (<string>:2)\n    <module> (<string>:3)"
    assert last_run(launch).report["failure"]["stacks"] == stacks
    assert "where the tasks were:\n    worker[0-1]: the same\n" in launch.here("report", "latest").out


# ---------------------------------------------------------------------- launch ps --watch


def test_a_line_for_each_move(launch: Launch, running: Running):
    started = running("--workers", "2", "--", "sh", "-c", ATTEMPTS)
    watching = [launch.start("ps", "-w"), launch.start("ps", "--watch", "latest", "--json")]

    def both_follow() -> bool:
        assert launch("restart", "latest", "worker/0").code == 0
        return all("worker/0" in each.out for each in watching)

    soon(both_follow)
    watching[1].send(signal.SIGSTOP)
    assert launch("restart", "latest", "worker/1").code == 0
    os.kill(soon(lambda: tasks_of(launch)["worker/1"]["pid"]), signal.SIGKILL)
    code = started.wait().code
    watching[1].send(signal.SIGCONT)  # it reads all that was sent, although the run has ended
    text, lines = (each.wait() for each in watching)
    assert (text.code, lines.code) == (0, 0)
    moves = [json.loads(line) for line in lines.out.splitlines()]
    own = [move for move in moves if move["task"] == "worker/1"]
    assert [(move["attempt"], move["state"]) for move in own] == [
        (1, "stopping"), (1, "ended"), (1, "stopped"),
        (2, "starting"), (2, "running"), (2, "ended"), (2, "failed"),
    ]  # fmt: skip
    logged = {json.dumps(event) for event in last_run(launch).events if event["event"] == "TaskMoved"}
    assert {json.dumps({n: v for n, v in move.items() if n != "number"}) for move in moves} <= logged
    shown = re.findall(r"(?m)^\d\d:\d\d:\d\d worker/1: attempt (\d), (\w+) on localhost", text.out)
    assert shown == [(str(move["attempt"]), move["state"]) for move in own]
    assert f"failed, exit code {code}" in text.out.splitlines()[-1], "the table of the report"


def test_a_table_that_renews_itself(launch: Launch, running: Running, terminal: Callable[..., Terminal]):
    started = running()
    watching = terminal("ps", "-w")
    watching.until(lambda it: it.shown.count(" running ") == 2)
    assert launch("restart", "latest", "worker/1").code == 0
    watching.until(lambda it: re.search(r"worker/1 .* running +2 .* up", it.shown))
    assert started.stop(signal.SIGINT).code == 130
    assert watching.wait() == 0
    assert "stopped by Ctrl-C" in watching.text or "exit code 130" in watching.text
    ended = launch("ps", "-w")
    assert (ended.code, ended.out) == (0, launch.here("ps", "latest").out)


def count_sockets(launch: Launch) -> int:
    """The connections to the launcher of the newest run."""
    name = f"@tf-launcher-{last_run(launch).path.name}"
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(name) and line.split()[5] == "03" for line in lines)


# ---------------------------------------------------------------------- the socket


def test_a_follower_gets_the_events_of_the_file(launch: Launch, running: Running):
    started = running()
    with connected(last_run(launch).path.name) as peer:
        assert asked(peer, b'{"request": "follow", "from": 1}') == {"next": 1, "output": False}
        started.send(signal.SIGINT)
        text = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    assert started.wait().code == 130
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == [{"number": n, **event} for n, event in enumerate(last_run(launch).events, 1)]


@pytest.mark.promise("the launcher answers its own user only, whatever clients do")
def test_clients_that_misbehave(launch: Launch, running: Running):
    """The launcher serves the others, and the job goes on."""
    started = running()
    run = last_run(launch).path.name
    silent = [connected(run) for _ in range(17)]
    assert silent[0].recv(1) == b""  # the oldest one has made room
    restarts = [b'{"request": "restart", "tasks": 7}', b'{"request": "restart", "tasks": ["no/1"]}']
    follows = [b'{"request": "follow", "from": 1000000}', b'{"request": "follow", "from": []}']
    wrong = [b"nonsense", b"{}", b'"request"', b"\xff", b"[" * 9999, b"7" * 60000]
    for packet in (*restarts, *follows, *wrong):
        with connected(run) as peer:
            error = asked(peer, packet)["error"]
        assert re.search("not a request|no task 'no/1'|followed from 1 to", error)
    for _ in range(20):
        with connected(run) as peer:
            peer.send(b'{"request": "tasks"}')  # and goes
    assert launch.here("ps", "latest").code == 0
    for peer in silent:
        peer.close()
    assert started.stop(signal.SIGINT).code == 130
    assert "Traceback" not in started.err


@pytest.mark.promise("the launcher answers its own user only, whatever clients do")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another user")
@pytest.mark.parametrize("request_name", ["tasks", "follow"])
def test_another_user_can_not_ask(launch: Launch, running: Running, request_name: str):
    running()
    code = f"""
import os, socket
os.setuid(65534)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect("\\0tf-launcher-{last_run(launch).path.name}")
try:
    peer.sendall(b'{{"request": "{request_name}"}}')
    print(peer.recv(1))
except OSError:
    print(b"")
"""
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert asked.stdout == "b''\n", asked.stderr


@pytest.fixture
def forged(tmp_path: Path) -> Iterator[tuple[Path, str, subprocess.Popen[bytes]]]:
    """The folder of a run, its job, and the process that its record names, which is no launcher."""
    folder, job = tmp_path / "run", f"forged-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    with subprocess.Popen(["sleep", "300"]) as process:
        ticks = int(stat_field(process.pid, 22))
        owner = as_dict(replace(this_process(), pid=process.pid, start_ticks=ticks))
        record = {"job": job, "started_at": time.time(), **owner}
        (folder / "launcher.json").write_text(json.dumps(record))
        yield folder, job, process
        process.kill()


@pytest.mark.promise("the launcher answers its own user only, whatever clients do")
def test_a_socket_that_is_not_the_launchers_is_not_asked(
    launch: Launch, forged: tuple[Path, str, subprocess.Popen[bytes]]
):
    """Any process can make a socket of any name."""
    folder, job, _ = forged
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
        impostor.bind(f"\0tf-launcher-{job}")
        impostor.listen()
        ended = launch.here("ps", str(folder), code=125)
        assert f"its socket belongs to process {os.getpid()} of user {os.geteuid()}" in ended.err
        peer, _ = impostor.accept()
        with peer:
            assert peer.recv(1) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("words", [["attach"], ["logs", "-f"], ["ps"], ["ps", "-w"], ["stop"], ["restart"]])
def test_a_record_of_another_user_is_not_trusted(
    launch: Launch, forged: tuple[Path, str, subprocess.Popen[bytes]], words: list[str]
):
    """It names a process of this user."""
    folder, _, sleeper = forged
    os.chown(folder / "launcher.json", 65534, 65534)
    ended = launch.here(*words, str(folder), *(["worker/0"] if words == ["restart"] else []))
    assert (ended.code, ended.out) == (125, "")
    assert f"belongs to user 65534 and names process {sleeper.pid} of another user" in ended.err
    assert sleeper.poll() is None


# ---------------------------------------------------------------------- launch restart


@pytest.mark.promise("`launch restart`: same address, not counted; slow tasks, jobs that end")
def test_tasks_start_again(launch: Launch, running: Running):
    """At the same address; the others go on; it counts neither for --restarts nor as a failure."""
    started = running("--ps", "1", "--workers", "1", "--restarts", "1", "--", "sh", "-c", ATTEMPTS)
    before = tasks_of(launch)
    ended = launch("restart", "latest", "ps", code=0)
    tasks = tasks_of(launch)
    assert ended.out == f"ps/0: attempt 2, running on localhost, pid {tasks['ps/0']['pid']}\n"
    assert [before[name]["pid"] == tasks[name]["pid"] for name in ("worker/0", "ps/0")] == [True, False]
    address = last_run(launch).plan["cluster"]["ps"][0]
    started.until(lambda it: f"attempt 2 of ps/0 at {address}" in it.out)
    assert launch("restart", "latest", "worker/0", "ps/0").code == 0
    tasks = tasks_of(launch)
    assert [tasks[name]["attempt"] for name in ("worker/0", "ps/0")] == [2, 3]
    os.kill(tasks["worker/0"]["pid"], signal.SIGKILL)  # the one restart that is counted
    started.until(lambda it: "attempt 3 of worker/0" in it.out)
    assert "restart 1 of 1" in started.err


def test_a_task_that_has_ended_starts_again(launch: Launch, running: Running):
    script = "echo up; test $TASK_INDEX = 0 || exit 0; exec sleep 300"
    started = running("--workers", "2", "--", "sh", "-c", script)
    started.until(lambda _: any(event.get("state") == "succeeded" for event in last_run(launch).events))
    ended = launch("restart", "latest", "worker/1", code=0)
    assert ended.out.startswith("worker/1: attempt 2, ")


@pytest.mark.promise("`launch restart`: same address, not counted; slow tasks, jobs that end")
def test_a_task_that_is_slow_to_end(launch: Launch, running: Running):
    script = "trap 'echo stopping' TERM; echo up; while :; do sleep 0.1; done"
    started = running("--workers", "2", "--grace", "60", "--", "sh", "-c", script)
    ended = launch("restart", "latest", "worker/0", "--timeout", "2.5", code=124)
    assert "waiting for worker/0 to start again" in ended.err
    assert "worker/0 did not start again within 2.5s" in ended.err
    waiting = launch.start("restart", "latest", "worker/0").until(lambda it: "waiting for worker/0" in it.err)
    started.send(signal.SIGTERM)
    started.until(lambda it: "waiting for worker/0, worker/1" in it.err)
    assert started.stop(signal.SIGTERM).code == 143
    assert waiting.wait().code == 125
    assert "ended with exit code 143 before worker/0 started again" in waiting.err


def test_a_task_that_can_not_be_started_again(launch: Launch, running: Running, tmp_path: Path):
    program = executable(tmp_path / "program", "#!/bin/sh\necho up; exec sleep 300\n")
    started = running("--workers", "2", "--on-failure", "continue", "--", str(program))
    program.unlink()
    ended = launch("restart", "latest", "worker/1")
    assert (ended.code, ended.out) == (125, "")
    assert "worker/1 could not be started again: program not found" in ended.err
    assert started.stop(signal.SIGINT).code != 0


def test_bad_input(launch: Launch, running: Running):
    running()
    for words, message in {
        "restart latest worker/7 master": "no task 'worker/7'; expected worker/0 to worker/1",
        "restart latest master": "no task 'master'",
        "restart no-such-run worker/0": "no run 'no-such-run'",
        "restart latest": "required: TASK",
        "restart worker/0": "RUN: no run 'worker/0'; running: 2",
        "restart worker worker/0": "RUN: no run 'worker'; running: 2",
        "ps no-such-run": "no run 'no-such-run'",
    }.items():
        ended = launch.here(*words.split())
        assert ended.code == 2 and message in ended.err, ended.err


def test_a_job_that_has_ended_or_ends(launch: Launch, running: Running, tmp_path: Path):
    script = "trap 'echo stopping' TERM; echo up; touch $0; while :; do sleep 0.1; done"
    words = ["--workers", "2", "--grace", "60", "--", "sh", "-c", script, str(tmp_path / "up")]
    started = running(*words)
    started.send(signal.SIGINT)
    started.until(lambda it: "stopping" in it.out)
    assert "or the job is ending" in launch("restart", "latest", "worker/0", code=125).err
    assert " stopping " in launch.here("ps", "latest").out
    assert launch.here("stop", "--now", "latest").code == 0
    assert started.wait().code == 130
    assert "has ended" in launch("restart", "latest", "worker/0", code=125).err


# ---------------------------------------------------------------------- launch stop RUN TASK


@pytest.mark.promise("`launch stop RUN TASK`: the others go on, and it is no failure")
def test_a_task_is_stopped_and_the_others_go_on(launch: Launch, running: Running, tmp_path: Path):
    script = f"trap 'exit 7' TERM; echo up; until test -e {tmp_path}/done; do sleep 0.1; done"
    started = running("--workers", "2", "--restarts", "3", "--", "sh", "-c", script)
    for _ in range(2):  # The second time it has ended already.
        ended = launch("stop", "latest", "worker/1", code=0)
        assert ended.out == "worker/1: stopped on localhost (exit code 7)\n"
    assert tasks_of(launch)["worker/0"]["state"] == "running"
    (tmp_path / "done").touch()
    assert started.wait().code == 0
    assert [task["state"] for task in last_run(launch).report["tasks"]] == ["succeeded", "stopped"]
    assert launch("stop", "latest", "worker/0", code=0).out.startswith("worker/0: succeeded on ")


@pytest.mark.promise("`launch stop RUN TASK`: the others go on, and it is no failure")
def test_no_task_is_left_that_decides(launch: Launch, running: Running):
    started = running("--ps", "1", "--chief", "--", *WAITS)
    ended = launch("stop", "latest", "chief/0", code=0)
    assert ended.out == "chief/0: stopped on localhost (killed by SIGTERM)\n"
    assert started.wait().code == 143
    assert last_run(launch).report["failure"]["reason"] == "interrupted"


def test_tasks_that_can_not_be_stopped(launch: Launch, running: Running):
    script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    started = running("--workers", "2", "--grace", "60", "--", "sh", "-c", script)
    for words, message in {
        "stop latest worker/7 master": "no task 'worker/7'; expected worker/0 to worker/1",
        "stop --now latest worker/1": "--now",
        "stop worker/1": "no run 'worker/1'",
    }.items():
        assert message in launch.here(*words.split(), code=2).err
    ended = launch("stop", "latest", "worker/1", "--timeout", "2.5", code=124)
    assert "worker/1 did not end within 2.5s" in ended.err
    started.send(signal.SIGINT)
    started.until(lambda it: "Ctrl-C: stopping" in it.err)
    assert "or the job is ending" in launch("stop", "latest", "worker/0", code=125).err
    assert launch.here("stop", "--now", "latest").code == 0
    assert started.wait().code == 130


# ---------------------------------------------------------------------- --events-fd


@pytest.mark.timeout(120)
@pytest.mark.parametrize("gone", [False, True])
def test_a_reader_that_stops_reading_or_is_gone_holds_nothing_up(launch: Launch, gone: bool):
    """The Python API and the pytest plug-in follow a launch by this pipe.

    It holds 64 KiB; 300 tasks have more events.
    """
    reading, writing = os.pipe()
    argv = [*COMMAND, "--events-fd", str(writing), "--workers", "300", "--", "true"]
    environ = {**os.environ, **launch.environment()}
    with subprocess.Popen(argv, env=environ, pass_fds=[writing], stdout=subprocess.DEVNULL) as process:
        try:
            os.close(writing)
            if gone:
                os.close(reading)
            assert process.wait(60) == 0
        finally:
            process.kill()
    if not gone:
        os.close(reading)
    assert " true (--workers 300) " in launch("ps", "--all").out
