"""Every process of a task is ended, all together, step by step, and no other process."""

from __future__ import annotations

import itertools
import re
import signal
import time

import pytest

from launcher.agent.processes import all_pids
from launcher.common import events
from launcher.common.cluster import TaskId
from tests.contract.driver import AT_ONCE, POLITE, SOON, Driver
from tests.contract.sites import Eyes
from tests.seeing import command_line

#: SIGTERM, SIGABRT, SIGKILL.
FULL = ((15, 0.5), (6, 1.0), (9, 5.0))
#: The same, with time to write stacks on a busy machine.
PATIENT = ((15, 0.3), (6, 20.0), (9, 5.0))
#: SIGTERM and, when processes that end on it have ended also on a busy machine, SIGKILL.
UNHURRIED = ((15, 2.0), (9, 5.0))

#: Prints its pid, then does what a hostile child would, in a way chosen by its argument.
ESCAPES = {
    "child": "sleep()",
    "setsid": "os.setsid(); sleep()",
    "daemon": "os.setsid(); fork_and_leave(); sleep()",
    "no environment": "os.setsid(); fork_and_leave(); anew({})",
    "closed output": "os.setsid(); fork_and_leave(); say(); os.closerange(0, 3); become_sleep({})",
    "ignores SIGTERM": "ignore(); os.setsid(); sleep()",
    "ignoring daemon": "ignore(); os.setsid(); fork_and_leave(); os.setsid(); fork_and_leave(); anew({})",
    "stopped": "stop()",
    "stopped daemon": "os.setsid(); fork_and_leave(); stop()",
    "own group": "os.setpgid(0, 0); sleep()",
}
CHILD = """
import os, signal, sys, time
def say(): os.write(1, b'pid %d\\n' % os.getpid())
def sleep(): say(); time.sleep(600)
def ignore(): signal.signal(signal.SIGTERM, signal.SIG_IGN)
def fork_and_leave():
    me = os.getpid()
    if os.fork(): os._exit(0)
    while os.getppid() == me: time.sleep(0.001)  # once a pid is printed, the parent is gone
def stop(): say(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)
def become_sleep(environment): os.execve('/bin/sleep', ['sleep', '600'], environment)
def anew(environment): say(); become_sleep(environment)
if os.fork() == 0:
    exec(sys.argv[1]); os._exit(0)
say()
"""
STAYS = CHILD + "time.sleep(600)"
LEAVES = CHILD + "os.read(os.open(sys.argv[2], os.O_RDONLY), 1); os._exit(0)"


def pids(agent: Driver, task: str, count: int = 2) -> list[int]:
    """The pids that a task's processes have printed."""
    agent.until(lambda: len(re.findall(rb"pid (\d+)\n", agent.output(task))) >= count, what="pids")
    return [int(pid) for pid in re.findall(rb"pid (\d+)\n", agent.output(task))]


@pytest.mark.promise("ten ways of a process to get away")
@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "ended"])
@pytest.mark.parametrize("way", ESCAPES)
def test_all_processes_of_a_task_are_ended(agent: Driver, eyes: Eyes, way: str, stop: bool):
    """By a stop, and as leftovers where the main process ended by itself; those of another task go on."""
    agent.start("ps/0", [eyes.site.python, "-c", STAYS, ESCAPES["no environment"]])
    others = pids(agent, "ps/0")
    fifo = eyes.site.folder + "/fifo"
    eyes.code("import os, sys; os.mkfifo(sys.argv[1])", fifo)
    agent.start("worker/0", [eyes.site.python, "-c", STAYS if stop else LEAVES, ESCAPES[way], fifo])
    mine = pids(agent, "worker/0")
    if stop:
        agent.stop("worker/0")
    else:
        eyes.code("import sys; open(sys.argv[1], 'w').write('x')", fifo)
    gone = agent.wait(events.TaskGone, "worker/0")
    assert gone.unkillable == ()
    assert stop or (gone.leftovers, agent.wait(events.TaskExited, "worker/0").code) == (1, 0)
    assert eyes.alive(*mine) == []
    assert sorted(eyes.alive(*others)) == sorted(others)
    assert not agent.all(events.TaskSignalled, "ps/0")
    assert agent.stopped("ps/0").unkillable == ()
    assert eyes.alive(*others) == []


def test_sigterm_ends_a_task_and_is_reported_once(agent: Driver):
    for index in range(5):
        agent.start(f"worker/{index}", ["sh", "-c", "sleep 600 & sleep 600 & echo up; wait"])
        agent.prints(f"worker/{index}", b"up")
    agent.stop(*(f"worker/{index}" for index in range(5)), steps=POLITE)
    for index in range(5):
        exited, gone = (agent.wait(kind, f"worker/{index}") for kind in (events.TaskExited, events.TaskGone))
        assert (exited.signal, gone.leftovers) == (15, 0)  # type: ignore[attr-defined]
        sent = agent.all(events.TaskSignalled, f"worker/{index}")
        assert [(fact.signal, fact.processes) for fact in sent] == [(15, 3)]
    signalled = agent.all(events.TaskSignalled)
    # All together: no task ended before the last one got its signal.
    assert agent.facts.index(signalled[-1]) < agent.facts.index(agent.all(events.TaskExited)[0])


@pytest.mark.parametrize(
    "action", ["echo saved", "sleep 0.8 && echo saved"], ids=["by itself", "with a process it starts then"]
)
def test_a_task_may_end_in_its_own_way(agent: Driver, action: str):
    """A wrapper may save the model on SIGTERM: a process that it starts then does not get the signal."""
    script = f"trap '{action}; exit 42' TERM; echo up; while :; do sleep 0.05; done"
    agent.start("worker/0", ["sh", "-c", script])
    agent.prints("worker/0", b"up")
    agent.stopped("worker/0", steps=POLITE)
    assert agent.wait(events.TaskExited).code == 42
    assert agent.output("worker/0").endswith(b"saved\n")


def test_a_hung_program_shows_its_stacks_and_leaves_no_core(agent: Driver, eyes: Eyes):
    code = (
        "import os, resource, signal, time\n"
        "hard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        "def where_it_hangs():\n"
        "    print('up', flush=True); time.sleep(600)\n"
        "where_it_hangs()\n"
    )
    agent.start("worker/0", [eyes.site.python, "-c", code], workdir=eyes.site.folder)
    agent.until(lambda: agent.output("worker/0").count(b"up") == 2)
    agent.stopped("worker/0", steps=PATIENT)
    assert agent.wait(events.TaskExited).signal == 6
    assert agent.output("worker/0").count(b"where_it_hangs") == 2
    assert b"Fatal Python error: Aborted" in agent.output("worker/0")
    assert [fact.signal for fact in agent.all(events.TaskSignalled)] == [15, 6]
    assert eyes.site.run(["ls", "-A", eyes.site.folder]) == b""


@pytest.mark.promise("SIGTERM, then stacks, then SIGKILL after `--grace`")
def test_only_sigkill_helps(agent: Driver, eyes: Eyes):
    agent.start("worker/0", ["sh", "-c", "trap '' TERM ABRT; echo up; while :; do sleep 0.05; done"])
    agent.prints("worker/0", b"up")
    agent.hold()
    agent.stop("worker/0", steps=FULL)
    deadline = time.monotonic() + SOON
    while len(agent.all(events.TaskSignalled)) < len(FULL):
        assert time.monotonic() < deadline, agent.facts
        agent.hold()  # no port: it answers with the time
        agent.quiet(0.01)
    agent.wait(events.TaskGone)
    assert agent.wait(events.TaskExited).signal == 9
    assert agent.wait(events.TaskExited).oom == ""
    assert [fact.signal for fact in agent.all(events.TaskSignalled)] == [15, 6, 9]
    for (_, seconds), took in zip(FULL[:-1], step_seconds(agent), strict=True):
        assert took > seconds - 0.01, agent.facts


def step_seconds(agent: Driver) -> list[float]:
    """Seconds that each step took, but the last; rather more than less.

    Its event comes a moment after it has begun. The agent's last answer before that is dated before it began.
    """
    took = []
    for one, after in itertools.pairwise(agent.all(events.TaskSignalled)):
        before = agent.facts[: agent.facts.index(one)]
        took.append(after.at - [fact for fact in before if isinstance(fact, events.PortsHeld)][-1].at)
    return took


def test_children_ignore_sigterm_while_a_stopped_main_process_ends(agent: Driver, eyes: Eyes):
    agent.start("worker/0", [eyes.site.python, "-c", STAYS, ESCAPES["ignores SIGTERM"]])
    mine = pids(agent, "worker/0")
    eyes.kill(19, agent.wait(events.TaskStarted).pid)
    gone = agent.stopped("worker/0", steps=UNHURRIED)
    assert agent.wait(events.TaskExited).signal == 15
    assert [fact.signal for fact in agent.all(events.TaskSignalled)] == [15, 9]
    assert gone.leftovers == 1
    assert eyes.alive(*mine) == []


def test_a_second_stop_replaces_the_first(agent: Driver):
    agent.start("worker/0", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"])
    agent.prints("worker/0", b"up")
    agent.stop("worker/0", steps=POLITE)
    agent.wait(events.TaskSignalled)
    agent.stopped("worker/0", steps=AT_ONCE)
    assert agent.wait(events.TaskExited).signal == 9
    assert [fact.signal for fact in agent.all(events.TaskSignalled)] == [15, 9]


def test_a_stop_of_a_task_that_has_ended(agent: Driver):
    agent.run("worker/0", ["sh", "-c", "exit 3"])
    agent.stop("worker/0", "worker/1")  # the one is gone, the other never was
    assert agent.run("worker/2", ["true"]).code == 0
    assert not agent.all(events.TaskSignalled)


def test_a_stop_at_the_moment_of_the_exit(agent: Driver):
    """Whichever comes first: the events fit together."""
    for index in range(60):
        task = f"worker/{index}"
        agent.start(task, ["sh", "-c", "exit 3"])
        agent.quiet(index % 6 * 0.0005)
        agent.stop(task)
    for index in range(60):
        exited = agent.wait(events.TaskExited, f"worker/{index}")
        gone = agent.wait(events.TaskGone, f"worker/{index}")
        signalled = agent.all(events.TaskSignalled, f"worker/{index}")
        assert (exited.code, exited.signal) in ((3, None), (None, 15))
        assert signalled or exited.code == 3
        assert not signalled or agent.facts.index(signalled[0]) < agent.facts.index(exited)
        assert gone.leftovers == 0


#: All begin at once: one that has begun takes the time that the others need to come up.
BOMB = """
import os, sys, time
if sys.argv[1] == "ignore":
    import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, go = os.pipe()
for _ in range(200):
    if os.fork() == 0:
        os.close(go); os.read(ready, 1)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.02)
            if os.fork(): os._exit(0)
        os._exit(0)
os.close(go)
os.write(1, b"up\\n")
if sys.argv[2] == "leave": os._exit(0)
while True:
    try: os.wait()
    except ChildProcessError: time.sleep(0.1)
"""


#: Goes on as its child, again and again, without a pause.
RELAY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid(); os.write(1, b"up\\n")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
    os._exit(0)
time.sleep(600)
"""


def test_a_daemon_that_forks_and_ends_without_a_pause(agent: Driver, eyes: Eyes):
    """It is another process before a signal comes; its group is killed as a whole."""
    agent.start("worker/0", [eyes.site.python, "-c", RELAY])
    agent.prints("worker/0", b"up")
    since = time.monotonic()
    gone = agent.stopped("worker/0")
    print(f"gone in {time.monotonic() - since:.2f} s, {gone.leftovers} leftovers")
    assert gone.unkillable == ()


@pytest.mark.promise("a fork bomb during a stop")
@pytest.mark.parametrize(("ignore", "leave"), [("ignore", "leave"), ("obey", "stay")])
def test_two_hundred_processes_that_fork_and_end(agent: Driver, eyes: Eyes, ignore: str, leave: str):
    agent.start("worker/0", [eyes.site.python, "-c", BOMB, ignore, leave, eyes.site.folder])
    agent.started("worker/1", ["sleep", "600"])
    agent.prints("worker/0", b"up")
    since = time.monotonic()
    # Two hundred processes leave the agent little of a busy machine.
    gone = agent.stopped("worker/0", ((15, 0.3), (9, 20.0)), timeout=30)
    print(f"gone in {time.monotonic() - since:.2f} s, {gone.leftovers} leftovers")
    assert gone.unkillable == ()
    lines = (command_line(pid) for pid in all_pids())
    assert not [line for line in lines if "in range(200):" in line and eyes.site.folder in line]
    assert agent.fact(events.TaskExited, "worker/1") is None


def test_a_signal_by_command_is_no_stop(agent: Driver):
    """To all processes, or to the main one; the answer has their states."""
    script = "trap 'echo usr1' USR1; sh -c 'sleep 600' & echo up; while :; do wait; done"
    agent.start("worker/0", ["sh", "-c", script])
    agent.prints("worker/0", b"up")

    def answer(number: int, to_all: bool) -> str:
        known = len(agent.all(events.SignalSent))
        agent.send(events.SignalTask(agent.host, task=TaskId("worker/0"), signal=number, all=to_all))
        return agent.until(lambda: agent.all(events.SignalSent)[known:])[0].states

    agent.until(lambda: set(answer(signal.SIGSTOP, True)) <= set("TD"))
    agent.until(lambda: "T" not in answer(signal.SIGCONT, True))
    answer(signal.SIGUSR1, False)
    agent.prints("worker/0", b"usr1")
    answer(signal.SIGKILL, True)
    exited = agent.wait(events.TaskExited)
    assert exited.signal == signal.SIGKILL
    assert not [fact for fact in agent.all(events.TaskSignalled) if fact.at < exited.at]  # then leftovers end
    agent.wait(events.TaskGone)
