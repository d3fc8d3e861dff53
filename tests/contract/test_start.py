"""How tasks start, up to five hundred: what they find, and the reason when one can't start."""

from __future__ import annotations

import ast
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.common import events
from tests.contract.driver import Driver
from tests.contract.sites import Eyes
from tests.seeing import MARK

#: Prints what a process finds at its start, as a Python dict.
FOUND = """
import os, resource, signal, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print({
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "stdin": (os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev, sys.stdin.read()),
    "same": os.path.sameopenfile(1, 2),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "unbuffered": os.environ.get("PYTHONUNBUFFERED"),
    "stacks": os.environ.get("PYTHONFAULTHANDLER"),
    "argv": [os.fsencode(arg) for arg in sys.argv[1:]],
    "env": {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()},
    "cwd": os.fsencode(os.getcwd()),
})
"""

#: Signals 32 and 33 belong to the C library, which may ignore them and sets them up when it needs them.
LIBC = (1 << 31) | (1 << 32)

#: Tasks that one agent runs at once.
COUNT = 500

HOSTILE = [
    "two words", "it's", '"quoted"', "new\nline", "a;b", "$(id)", "`id`", "*", "~", "\\", "", "-x", "{a}",
    "é\u2028", os.fsdecode(b"\xff\xfe latin \xe9"),
]  # fmt: skip


def found(agent: Driver, eyes: Eyes, task: str = "worker/0", *args: str, **more: Any) -> dict[str, Any]:
    """What a task finds at its start."""
    # -E: Python itself must not act on the variables we look at; it ignores SIGPIPE and SIGXFSZ itself.
    exited = agent.run(task, [eyes.site.python, "-E", "-S", "-c", FOUND, *args], **more)
    assert exited.code == 0, agent.output(task)
    return dict(ast.literal_eval(agent.output(task).decode()))


def test_what_a_task_finds(agent: Driver, eyes: Eyes):
    it = found(agent, eyes)
    assert it["session"] is True
    assert it["stdin"] == (True, "")
    assert it["same"] is True
    assert it["fds"] == [0, 1, 2]
    assert it["blocked"] == 0
    assert it["ignored"] & ~LIBC == (1 << 12) | (1 << 24)  # SIGPIPE and SIGXFSZ: by that Python itself
    assert it["unbuffered"] == it["stacks"] == "1"
    assert b"grpc_proxy" not in it["env"]
    for task, grpc_proxy, env in (("worker/2", "", {}), ("worker/3", "a:1", {"grpc_proxy": "a:1"})):
        more = found(agent, eyes, task, env={"http_proxy": "b:1", **env})["env"]
        assert more[b"grpc_proxy"] == grpc_proxy.encode()
    it = found(agent, eyes, "worker/1", env={"PYTHONUNBUFFERED": "", "PYTHONFAULTHANDLER": "0"})
    assert (it["unbuffered"], it["stacks"]) == ("", "0")


def test_signals_are_as_the_kernel_has_them(agent: Driver):
    agent.run("worker/0", ["cat", "/proc/self/status"])
    lines = agent.output("worker/0").decode().splitlines()
    names = ("SigBlk", "SigIgn", "SigCgt")
    masks = {line[:6]: int(line.split()[1], 16) & ~LIBC for line in lines if line[:6] in names}
    assert masks == dict.fromkeys(names, 0)


def test_the_limit_of_open_files_is_the_original_one(open_agent: Callable[[], Driver], eyes: Eyes):
    few, many = open_agent(), open_agent()
    many.hold(*(f"worker/{index}" for index in range(600)))
    fork = (
        "import os; pid = os.fork(); os.waitpid(pid, 0) if pid else print(open('/proc/self/limits').read())"
    )
    lines = []
    for driver in (few, many):
        driver.run("worker/0", [eyes.site.python, "-c", fork])
        text = driver.output("worker/0").decode().splitlines()
        lines.append(next(line for line in text if "open files" in line))
    assert lines[0] == lines[1]


def test_output_is_not_buffered(agent: Driver, eyes: Eyes):
    agent.start("worker/0", [eyes.site.python, "-c", "import time; print('here'); time.sleep(60)"])
    agent.prints("worker/0", b"here\n")
    agent.stopped("worker/0")


def test_arguments_and_environment_arrive_as_they_were(agent: Driver, eyes: Eyes):
    base = found(agent, eyes)["env"]
    odd = {f"ODD_{index}": value for index, value in enumerate(HOSTILE)}
    odd["with space"] = odd["dotted.name"] = odd["TF_CONFIG"] = '{"cluster": {}}'
    it = found(agent, eyes, "worker/1", *HOSTILE, env=odd)
    assert it["argv"] == [os.fsencode(arg) for arg in HOSTILE]
    assert it["env"] == {**base, **{os.fsencode(n): os.fsencode(v) for n, v in odd.items()}}
    assert MARK.encode() in base


def test_pwd_is_the_folder(agent: Driver, eyes: Eyes):
    """By the name that the user gave, also if that is a link. A variable of the user's wins."""
    folder, link = f"{eyes.site.folder}/real", f"{eyes.site.folder}/link"
    eyes.site.run(["mkdir", folder])
    eyes.site.run(["ln", "-s", folder, link])
    names = (None, folder, link, f"{folder}/../link", "/usr/bin/..")
    for number, workdir in enumerate(names):
        it = found(agent, eyes, f"worker/{number}", workdir=workdir)
        shown = it["cwd"] if workdir is None else os.path.normpath(workdir).encode()
        assert it["env"][b"PWD"] == shown, workdir
    it = found(agent, eyes, "worker/9", workdir=folder, env={"PWD": "/elsewhere"})
    assert it["env"][b"PWD"] == b"/elsewhere"


def test_a_program_with_a_hostile_name(agent: Driver, eyes: Eyes):
    name = os.fsdecode(b'it\'s "odd" $(x)\n; & \xff.sh')
    agent.run("worker/0", [eyes.write(name, b'#!/bin/sh\necho ran "$1"\n'), "a  b"])
    assert agent.output("worker/0") == b"ran a  b\n"


def test_working_folder(agent: Driver, eyes: Eyes):
    name = os.fsdecode(b"sub \xff\n'folder'")
    eyes.code("import os, sys; os.makedirs(sys.argv[1])", path := os.path.join(eyes.site.folder, name))
    assert found(agent, eyes, workdir=path)["cwd"] == os.fsencode(path)
    home = found(agent, eyes, "worker/1")["cwd"]
    relative = os.path.relpath(path, os.fsdecode(home))
    assert found(agent, eyes, "worker/2", workdir=relative)["cwd"] == os.fsencode(path)


def test_a_relative_program_is_looked_up_in_the_working_folder(agent: Driver, eyes: Eyes):
    eyes.write("run.sh", b"#!/bin/sh\necho ran\n")
    assert agent.run("worker/0", ["./run.sh"], workdir=eyes.site.folder).code == 0
    refused = agent.refused("worker/1", ["run.sh"], workdir=eyes.site.folder)
    assert refused.code == 127
    assert "./" in refused.why


def test_programs_are_looked_up_along_the_tasks_path(agent: Driver, eyes: Eyes):
    eyes.write("my-own-tool", b"#!/bin/sh\necho mine\n")
    agent.run("worker/0", ["my-own-tool"], env={"PATH": f"/nowhere:{eyes.site.folder}:/usr/bin:/bin"})
    assert agent.output("worker/0") == b"mine\n"
    assert agent.refused("worker/1", ["my-own-tool"]).code == 127
    assert agent.refused("worker/2", ["sh"], env={"PATH": "/nowhere"}).code == 127


REFUSED = {
    "not found": (127, ["no-such-program-anywhere"], "not found"),
    "no such file": (127, ["{folder}/nothing"], "not found"),
    "below a file": (127, ["{plain}/program"], "not found"),
    "empty name": (127, [""], "not found"),
    "not executable": (126, ["{plain}"], "chmod"),
    "a folder": (126, ["{folder}"], "folder"),
    "no first line": (126, ["{bare}"], "#!"),
    "missing interpreter": (126, ["{orphan}"], "interpreter"),
    "no program": (126, ["{elf}"], "not a program for this machine"),
    "too large": (126, ["true", "x" * 200_000], "larger"),
    "null byte": (125, ["true", "a\0b"], "null"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_programs_that_can_not_be_started(agent: Driver, eyes: Eyes, case: str):
    code, argv, why = REFUSED[case]
    names = {
        "folder": eyes.site.folder,
        "plain": eyes.write("plain", b"#!/bin/sh\n", 0o644),
        "bare": eyes.write("bare", b"echo no first line\n"),
        "orphan": eyes.write("orphan", b"#!/no/such/interpreter\n"),
        "elf": eyes.write("elf", b"\x7fELF and nothing else"),
    }
    refused = agent.refused("worker/0", [argv[0].format(**names), *argv[1:]])
    assert refused.code == code
    assert why in refused.why
    assert agent.run("worker/1", ["true"]).code == 0  # the agent goes on


@pytest.mark.parametrize("workdir", ["/no/such/folder", "/etc/passwd", "", "a\0b"])
def test_a_working_folder_that_is_none(agent: Driver, workdir: str):
    refused = agent.refused("worker/0", ["true"], workdir=workdir)
    assert refused.code == 126
    assert "working folder" in refused.why
    assert agent.run("worker/1", ["true"]).code == 0


def test_an_environment_that_is_too_large(agent: Driver):
    huge = {f"HUGE_{index}": "x" * 100_000 for index in range(35)}
    assert agent.refused("worker/0", ["true"], env=huge).code == 126
    assert agent.run("worker/1", ["true"]).code == 0


def test_a_second_attempt(agent: Driver):
    assert agent.run("worker/0", ["sh", "-c", "exit 3"]).code == 3
    agent.hold("worker/0")
    agent.start("worker/0", ["sh", "-c", "exit 4"], attempt=2)
    agent.wait(events.TaskGone, "worker/0", attempt=2)
    assert agent.wait(events.TaskExited, "worker/0", attempt=2).code == 4


@pytest.fixture
def usual_limit(nothing_left: str) -> Iterator[None]:
    """The soft limit of open files that most systems have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.promise("hundreds of tasks, a thousand hosts")
@pytest.mark.timeout(360, func_only=True)  # the waits below, if each takes all its time
@pytest.mark.usefixtures("usual_limit")
def test_five_hundred_tasks(open_agent: Callable[[], Driver]):
    agent = open_agent()
    agent.run("ps/0", ["sh", "-c", "ulimit -n"])  # 1024, but where a host has limits of its own
    since = time.monotonic()
    tasks = [f"worker/{index}" for index in range(COUNT)]
    assert len(set(agent.hold(*tasks).values())) == COUNT
    for task in tasks:
        agent.start(task, ["sh", "-c", "ulimit -n; exec sleep 600"])
    agent.until(lambda: len(agent.all(events.TaskStarted)) == COUNT + 1, timeout=60)
    agent.until(
        lambda: all(agent.output("ps/0") in agent.output(task) for task in tasks), timeout=60, what="limits"
    )
    up = time.monotonic()
    agent.stop(*tasks)
    agent.until(lambda: len(agent.all(events.TaskGone)) == COUNT + 1, timeout=60)
    print(f"{COUNT} tasks: up in {up - since:.2f} s, gone in {time.monotonic() - up:.2f} s")
    assert {fact.signal for fact in agent.all(events.TaskExited) if fact.task in tasks} == {15}
    assert not agent.all(events.TaskNotStarted)
    assert agent.close() == ""
