"""However a launch ends, nothing of it is left; and nothing of other users is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.agent.identity import owner_text, this_process
from launcher.agent.processes import children_of
from launcher.backends.docker.container import OWNER_LABEL, labels
from launcher.common.record import replace
from tests.backends import WAITS, Docker
from tests.conftest import Launch, executable
from tests.docker.engine import Engine
from tests.local.terminal import ended_by_ctrl_c, press_ctrl_c
from tests.seeing import command_line, soon

#: A task that does not mind SIGTERM, and a daemon of it.
STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & echo up; while :; do sleep 1; done"
#: Seconds within which no container of a killed launcher is alive.
SOON = 40.0


def containers(engine: Engine, launcher: int, *options: str) -> list[str]:
    """The containers of the launch with this pid that are alive: other tests may run at the same engine."""
    return _owned(engine, launcher, "ps", *options)


def ours(engine: Engine, launcher: int) -> list[str]:
    """All containers and networks of it."""
    return [*containers(engine, launcher, "-a"), *_owned(engine, launcher, "network", "ls")]


def _owned(engine: Engine, launcher: int, *args: str) -> list[str]:
    form = f'{{{{.Label "{OWNER_LABEL}"}}}} {{{{.ID}}}}'
    lines = engine.lines(*args, "--filter", f"label={OWNER_LABEL}", "--format", form)
    return [line for line in lines if line.startswith(f"{launcher}:")]


def nothing_is_left(here: Docker, launcher: int, number: int, seconds: float = SOON) -> None:
    """Of a launcher that got this signal. What one that was killed had asked for, the engine still makes."""
    soon(lambda: not containers(here.engine, launcher), seconds, lambda: containers(here.engine, launcher))
    if number == signal.SIGKILL:
        soon(lambda: here.launch("clean", timeout=60).code == 0 and not ours(here.engine, launcher), 40)
    assert ours(here.engine, launcher) == []


@pytest.mark.usefixtures("alone")
def test_a_launcher_that_is_suspended_and_then_killed(here: Docker):
    """Its tasks wait for one that is suspended, however long; not for one that is gone."""
    started = here.up("--", "sh", "-c", STUBBORN)
    started.send(signal.SIGSTOP)
    time.sleep(8)  # longer than agents and launchers of other machines wait before they act on silence
    assert len(containers(here.engine, started.pid)) == 2
    started.kill()
    nothing_is_left(here, started.pid, signal.SIGKILL, 15)


@pytest.mark.usefixtures("alone")
def test_an_agent_that_is_suspended_when_its_launcher_is_killed(here: Docker):
    """The watchdog, which is the main process of the container, ends it."""
    started = here.up("--", "sh", "-c", STUBBORN, workers=1)
    name = f"tf-launcher-{here.run.path.name}-worker-0"
    main = int(here.engine.docker("inspect", "--format", "{{.State.Pid}}", name))
    agent = [pid for pid in children_of(main) if command_line(pid).startswith("tf-agent")]
    os.kill(agent[0], signal.SIGSTOP)
    started.kill()
    nothing_is_left(here, started.pid, signal.SIGKILL, 15)


#: The engine's event at which the launcher is signalled, how many of them have come then, and the signal. Two
#: containers are made at first; in a renewal a third one takes the place of one that is killed.
MOMENTS = [
    ("start", "network create", 1, signal.SIGKILL),
    ("start", "container create", 2, signal.SIGINT),
    ("start", "container start", 1, signal.SIGTERM),
    ("start", "container start", 2, signal.SIGKILL),
    ("end", "container die", 1, signal.SIGKILL),
    ("renewal", "container die", 1, signal.SIGINT),
    ("renewal", "container create", 3, signal.SIGKILL),
]
MORE_MOMENTS = [
    ("start", "network create", 1, signal.SIGTERM),
    ("renewal", "container create", 3, signal.SIGINT),
    ("renewal", "container start", 3, signal.SIGTERM),
]


@pytest.mark.promise("containers here, at any moment")
@pytest.mark.promise("a new container takes the place of a lost one")
@pytest.mark.promise("a launch that ends after its run has a folder leaves a report there")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("phase", "event", "count", "number"),
    [*MOMENTS, *(pytest.param(*moment, marks=pytest.mark.long) for moment in MORE_MOMENTS)],
)
def test_at_any_moment(here: Docker, phase: str, event: str, count: int, number: int):
    program = "true" if phase == "end" else "echo up; sleep 600"
    with events_of(here) as until:
        started = here.start("--workers", "2", "--restarts", "2", "--", "sh", "-c", program)
        if phase == "renewal":
            started.up(2, 40)
            here.lose_host()
        until(event, count)
    ended = started.stop(number, 40)
    assert "did not exit" not in ended.err, ended.err
    if phase != "end":
        assert ended.code == {9: -9, 15: 143, 2: 130}[number]
    if number != signal.SIGKILL:  # the run has a folder, and so it has a report
        assert here.run.report["exit_code"] == ended.code
    nothing_is_left(here, started.pid, number)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("number", "seconds"), [(15, 0.1), (2, 0.25), (9, 0.25)])
def test_before_there_is_anything(here: Docker, number: int, seconds: float):
    started = here.start("--workers", "2", "--", "sleep", "600")
    time.sleep(seconds)  # the moment is what is tried
    if number == signal.SIGINT:
        press_ctrl_c(started)
        ended_by_ctrl_c(started.wait(40))
    else:
        ended = started.stop(number, 40)
        assert ended.code in (-number, 128 + number), ended.err
    nothing_is_left(here, started.pid, number)


@contextmanager
def events_of(here: Docker) -> Iterator[Callable[[str, int], None]]:
    """Events of the engine. The function in it waits until one has come so often for the newest run."""
    form = '{{.Type}} {{.Action}} {{index .Actor.Attributes "name"}}'
    argv = ["docker", "events", "--since", f"{time.time():.9f}", "--format", form]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:

        def until(event: str, count: int) -> None:
            assert process.stdout is not None
            for line in process.stdout:
                kind, _, name = line.rstrip().rpartition(" ")
                count -= kind == event and here.run.path.name in name
                if count == 0:
                    return

        try:
            yield until
        finally:
            process.kill()


class Made:
    """Networks with labels of the test's own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.names: list[str] = []

    def network(self, name: str, **labels: str) -> None:
        """A network with these labels."""
        self.names.append(f"launch-test-{os.getpid()}-{name}")
        args = [text for key, value in labels.items() for text in ("--label", f"tf-launcher.{key}={value}")]
        self.engine.docker("network", "create", *args, self.names[-1])

    def left(self) -> list[str]:
        """Those that are still there."""
        there = self.engine.lines("network", "ls", "--format", "{{.Name}}")
        return [name.rpartition("-")[2] for name in self.names if name in there]


@pytest.fixture
def made(docker: Engine) -> Iterator[Made]:
    """Makes networks, and removes them."""
    it = Made(docker)
    yield it
    for name in it.names:
        docker.tried("network", "rm", name)


@pytest.mark.promise("a launcher is dead only if that is proven")
@pytest.mark.usefixtures("alone")
def test_only_what_is_ours_beyond_doubt_is_removed(docker: Engine, launch: Launch, made: Made):
    me = labels("x", keep=False)[OWNER_LABEL]
    dead, uid = replace(this_process(), start_ticks=1), os.getuid()

    def network(name: str, **changes: str) -> None:
        made.network(name, job=name, owner=owner_text(replace(dead, **cast(Any, changes))))

    network("dead")
    network("renamed", machine="another-name")
    network("earlier", machine_id="")
    network("rebooted", boot_id="old")
    network("clone", machine_id="another")
    made.network("alive", job="alive", owner=me)
    made.network("others", job="others", owner=owner_text(dead).replace(f":{uid}:", f":{uid + 1}:"))
    made.network("garbled", job="garbled", owner="no owner")
    made.network("unmarked", job="unmarked")
    listed = launch("clean", "--dry-run", timeout=60)
    assert len(made.left()) == 9
    cleaned = launch("clean", timeout=60, code=0)
    gone, unknown, others = (
        ("dead", "renamed", "earlier"),
        ("rebooted", "clone", "garbled"),
        ("alive", "others"),
    )
    assert sorted(made.left()) == sorted([*unknown, *others, "unmarked"])
    for name in gone:
        assert f"would remove network launch-test-{os.getpid()}-{name}" in listed.out
        assert f"removed network launch-test-{os.getpid()}-{name}" in cleaned.out
    for name in unknown:
        assert f"launch-test-{os.getpid()}-{name}: left alone" in cleaned.err
        assert f"`launch clean --foreign {name}`" in cleaned.err
    assert not any(f"--foreign {name}" in cleaned.err for name in (*gone, *others, "unmarked"))

    foreign = [word for name in (*unknown, *others) for word in ("--foreign", name)]
    ended = launch("clean", *foreign, timeout=60, code=125)
    assert "--foreign alive: its launcher runs on this machine" in ended.err
    assert "--foreign others: nothing of this run is there" in ended.err
    assert sorted(made.left()) == sorted([*others, "unmarked"])


@pytest.mark.usefixtures("alone")
def test_the_network_of_a_launcher_that_was_killed_in_a_container(docker: Engine, launch: Launch, made: Made):
    """Its pid namespace has ended; root of the machine sees that."""
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        pytest.skip("these tests run in a container themselves")
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"]) as container:
        # From then on it dies with its parent.
        child = soon(lambda: [pid for pid in children_of(container.pid) if command_line(pid) == "sleep 60"])
        namespace = os.readlink(f"/proc/{child[0]}/ns/pid")
        inside = replace(this_process(), pid=1, pid_namespace=namespace, machine="container", machine_id="-")
        made.network("inside", job="inside", owner=owner_text(inside))
        assert "--foreign inside" in launch("clean", timeout=60).err
        assert made.left() == ["inside"]
        container.kill()
    soon(lambda: launch("clean", timeout=60).code == 0 and not made.left())


#: A ``docker`` that does not come back from a removal.
STUCK = """#!/bin/sh
[ "$1" != rm ] || {{ touch {folder}/stuck; exec sleep 300; }}
exec {docker} "$@"
"""


def test_ctrl_c_while_the_removal_of_a_lost_container_hangs(here: Docker, tmp_path: Path):
    program = tmp_path / "bin/docker"
    executable(program, STUCK.format(folder=tmp_path, docker=shutil.which("docker")))
    path = f"{program.parent}:{os.environ['PATH']}"
    started = here.up("--restarts", "2", "--", *WAITS, env={"PATH": path})
    here.lose_host()
    soon((tmp_path / "stuck").exists, 40)
    since = time.monotonic()
    assert started.stop(signal.SIGINT, 60).code == 130
    assert time.monotonic() - since < 15
