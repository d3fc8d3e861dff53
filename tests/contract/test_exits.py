"""How a task ended is reported at once, and exactly."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.common import events
from launcher.common.cluster import TaskId
from tests.contract.driver import AT_ONCE, Driver
from tests.contract.sites import Eyes
from tests.seeing import soon

#: Signals whose default is not to end a process.
HARMLESS = {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH,
    signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
}  # fmt: skip
DEADLY = [number for number in range(1, 32) if number not in HARMLESS]

#: Seconds of the CPU that a Python, on its way out, and a shell around it may use after it has printed them.
MORE = 10.0
PRINT_CPU = "import os, resource; os.write(1, b'%.6f' % sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))"


@pytest.mark.promise("exit codes, the same everywhere")
def test_every_exit_code(agent: Driver):
    for code in range(256):
        agent.start(f"worker/{code}", ["sh", "-c", f"exit {code}"])
    for code in range(256):
        exited = agent.wait(events.TaskExited, f"worker/{code}")
        assert (exited.code, exited.signal, exited.oom) == (code, None, "")
        assert agent.wait(events.TaskGone, f"worker/{code}").leftovers == 0


def test_every_deadly_signal(agent: Driver, eyes: Eyes):
    numbers = [*DEADLY, signal.SIGRTMIN + 3]
    # Python's faulthandler handles some of them: -X faulthandler=0 is not known to 3.8, so sh does it.
    for number in numbers:
        agent.start(f"worker/{number}", ["sh", "-c", f"ulimit -c 0; kill -{int(number)} $$; sleep 60"])
    for number in numbers:
        exited = agent.wait(events.TaskExited, f"worker/{number}")
        assert (exited.code, exited.signal, exited.oom) == (None, number, "")


def test_the_end_of_a_task_is_reported_before_the_end_of_what_it_left(agent: Driver, eyes: Eyes):
    """SIGTERM to a task of a service, or of a step, is reported late, since the agent may get it next.

    A signal that came before would look as if the agent stopped a task without a command.
    """
    started = agent.started("worker/0", ["sh", "-c", "sleep 60 & echo up; wait"])
    agent.until(lambda: agent.output("worker/0") == b"up\n", what="its child")
    eyes.kill(15, started.pid)
    agent.wait(events.TaskGone, "worker/0")
    kinds = [type(fact) for fact in agent.facts if getattr(fact, "task", "") == "worker/0"]
    ends = [kind for kind in kinds if kind in (events.TaskExited, events.TaskSignalled, events.TaskGone)]
    assert ends == [events.TaskExited, events.TaskSignalled, events.TaskGone]


@pytest.mark.promise("`launch ps RUN`: tasks, memory on all hosts")
def test_memory_of_running_tasks(agent: Driver, eyes: Eyes):
    """That of all processes of a task, also of one that has left its session."""
    code = "import os, time; os.fork() or os.setsid(); big = b'x' * (60 << 20); print('up'); time.sleep(60)"
    agent.start("worker/0", [eyes.site.python, "-u", "-c", code])
    agent.start("worker/1", ["sleep", "60"])
    agent.until(
        lambda: agent.output("worker/0").count(b"up") == 2 and agent.fact(events.TaskStarted, "worker/1")
    )
    agent.send(events.Measure(agent.host))
    memory = agent.wait(events.Measured).memory
    assert 120 << 20 < memory[TaskId("worker/0")] < 200 << 20 and 0 < memory[TaskId("worker/1")] < 20 << 20
    agent.stopped("worker/0", AT_ONCE)
    agent.send(events.Measure(agent.host))
    agent.until(lambda: len(agent.all(events.Measured)) == 2)
    assert list(agent.all(events.Measured)[1].memory) == ["worker/1"]


def test_what_tasks_use_is_measured_again_and_again(agent: Driver, eyes: Eyes):
    """With the CPU time of children, whether they run or have ended. Without tasks nothing is sent."""
    agent.send(events.Measure(agent.host, every=0.2))
    agent.quiet(1)
    assert not agent.all(events.Measured)
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    code = f"import os, time\nif os.fork() == 0:\n os._exit(exec({busy!r}) or 0)\nos.wait()\ntime.sleep(60)"
    agent.start("worker/0", [eyes.site.python, "-c", code])
    agent.until(
        lambda: sum(event.cpu_s[TaskId("worker/0")] > 0.2 for event in agent.all(events.Measured)) > 2
    )
    for earlier, later in pairwise(agent.all(events.Measured)):
        assert earlier.at < later.at and later.memory[TaskId("worker/0")] > 1 << 20


@pytest.mark.parametrize("shell", [[], ["sh", "-c", '"$0" "$@"; true']], ids=["by itself", "in a shell"])
def test_cpu_time_and_memory(agent: Driver, eyes: Eyes, shell: list[str]):
    """Those of children count, too."""
    code = "import time; big = bytearray(150 << 20)\nwhile time.process_time() < 0.5: pass\n" + PRINT_CPU
    exited = agent.run("worker/0", [*shell, eyes.site.python, "-c", code], timeout=40)
    # The kernel counts what a process was before its exec: its agent, which may be a fork of this process.
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 150 << 20 < exited.peak_rss < max(250 << 20, (64 << 20) + here)
    printed = float(agent.output("worker/0"))
    assert exited.cpu_s >= 0.5
    assert printed - 0.001 < exited.cpu_s < printed + MORE
    small = agent.run("worker/1", ["true"])
    assert 0 < small.peak_rss < (64 << 20) + here
    assert small.cpu_s < exited.cpu_s  # and not of all tasks together


def test_memory_of_a_program_whose_shell_does_not_wait_for_it(agent: Driver, eyes: Eyes):
    """The stop ends both at once, and the kernel counts only children that were waited for."""
    code = "import time; big = bytearray(150 << 20); print('up', flush=True); del big; time.sleep(60)"
    agent.start("worker/0", ["sh", "-c", '"$0" -c "$1"; true', eyes.site.python, code])
    agent.until(lambda: b"up" in agent.output("worker/0"))
    agent.stopped("worker/0", ((15, 5.0), (9, 5.0)))
    (exited,) = agent.all(events.TaskExited)
    assert exited.signal == 15
    assert 150 << 20 < exited.peak_rss < 250 << 20


def test_an_exit_is_reported_while_others_hold_the_output(agent: Driver):
    ignores = "trap '' TERM; sleep 60 & echo up; exit 7"
    agent.start("worker/0", ["sh", "-c", ignores], steps=((15, 2.0), (9, 5.0)))
    exited = agent.wait(events.TaskExited, "worker/0")
    assert exited.code == 7
    gone = agent.wait(events.TaskGone, "worker/0")
    assert gone.leftovers == 1
    assert gone.at - exited.at > 1.5


@pytest.fixture
def cgroup(eyes: Eyes) -> Iterator[Path]:
    """A memory control group with a limit of 64 MiB."""
    if not eyes.site.kernel_pids:
        pytest.skip("a host made of a PID namespace can't know which process the kernel's log means")
    if os.getuid():
        pytest.fail("this test makes a memory control group: run it as root, as CI does")
    old = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    limit = old if old.exists() else Path("/sys/fs/cgroup/memory.max")
    made = limit.with_name(f"launch-test-{os.getpid()}-{os.urandom(4).hex()}")
    made.mkdir()
    (made / limit.name).write_text(str(64 << 20))
    yield made

    def is_removed() -> bool:
        with suppress(OSError):  # what was in it has not ended yet
            made.rmdir()
        return not made.exists()

    soon(is_removed)


@pytest.mark.promise("out of memory")
def test_out_of_memory_is_reported_with_evidence(agent: Driver, eyes: Eyes, cgroup: Path):
    code = "import sys, os; open(sys.argv[1], 'w').write(str(os.getpid())); b = bytearray(500 << 20)"
    agent.start("worker/0", [eyes.site.python, "-c", code, str(cgroup / "cgroup.procs")])
    pid = agent.started("worker/1", ["sleep", "60"]).pid
    exited = agent.wait(events.TaskExited, "worker/0", timeout=40)
    assert exited.signal == 9
    assert "out-of-memory" in exited.oom or "Killed process" in exited.oom
    # The next one that is killed is not blamed on memory.
    eyes.kill(9, pid)
    assert agent.wait(events.TaskExited, "worker/1").oom == ""
