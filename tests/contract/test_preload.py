"""A task that is forked from a template is a task like every other."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.common import events
from launcher.common.cluster import TaskId
from tests.contract.driver import AT_ONCE, Driver
from tests.contract.sites import Site

#: What a task prints whose template has imported ``tabnanny``, which nothing else imports.
FORKED = "import os, sys; print('tabnanny' in sys.modules, os.environ['OWN'], os.environ['PWD'], *sys.argv)"


def _preload(agent: Driver, site: Site, *tasks: str, modules: tuple[str, ...] = ("tabnanny",)) -> None:
    agent.ready()
    names = tuple(map(TaskId, tasks))
    agent.send(
        events.Preload(site.host.name, tasks=names, python=site.python, venv=None, modules=modules, env={})
    )


def _started(agent: Driver, site: Site, task: str, code: str, **more: Any) -> events.TaskStarted:
    return agent.started(task, [site.python, "-c", code, "a"], env={"OWN": task}, workdir=site.folder, **more)


@pytest.mark.promise("`--preload`: forked tasks are like cold ones")
def test_forked_tasks(agent: Driver, site: Site):
    tasks = [f"worker/{number}" for number in range(4)]
    _preload(agent, site, *tasks)
    for attempt in (1, 2):
        for task in tasks:
            _started(agent, site, task, FORKED, attempt=attempt)
        for task in tasks:
            exited = agent.wait(events.TaskExited, task, attempt)
            assert (exited.code, exited.signal) == (0, None)
            assert agent.wait(events.TaskGone, task, attempt).leftovers == 0
    for task in tasks:
        assert agent.output(task).decode() == f"True {task} {site.folder} -c a\n" * 2
    started = agent.all(events.TaskStarted)
    assert len({each.pid for each in started}) == len(started) == 8
    assert not agent.all(events.HostNotice)
    assert agent.close() == ""


def test_very_many_tasks_that_can_not_be_started(agent: Driver, site: Site):
    """Each of them says so, and the agent goes on."""
    tasks = [f"worker/{number}" for number in range(1100)]
    _preload(agent, site, *tasks, "ps/0", modules=("time",))
    for task in tasks:
        agent.start(task, [site.python, "-c", FORKED], workdir="/no/such/folder")
    agent.until(lambda: len(agent.all(events.TaskNotStarted)) == len(tasks), timeout=60)
    assert _started(agent, site, "ps/0", FORKED).pid
    assert agent.wait(events.TaskExited, "ps/0").code == 0


def test_the_family_of_a_forked_task(agent: Driver, site: Site):
    """Its orphans are known as its own beside another task, and both are ended."""
    _preload(agent, site, "worker/0", "worker/1")
    family = (
        "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.fork()\nprint('up')\ntime.sleep(600)"
    )
    for task in ("worker/0", "worker/1"):
        _started(agent, site, task, family)
        agent.until(lambda task=task: agent.output(task).count(b"up") == 3)  # type: ignore[misc]
    agent.stopped("worker/0", steps=((15, 0.3), (9, 5.0)))
    assert agent.wait(events.TaskExited, "worker/0").signal == 9
    first = agent.all(events.TaskSignalled, "worker/0")[0]
    assert (first.signal, first.processes) == (15, 3)
    assert not agent.fact(events.TaskExited, "worker/1")
    agent.stopped("worker/1", steps=AT_ONCE)


def test_a_module_that_is_missing(agent: Driver, site: Site):
    _preload(agent, site, "worker/0", modules=("no_such_module",))
    _started(agent, site, "worker/0", FORKED)
    assert agent.wait(events.TaskExited, "worker/0").code == 0
    assert "ModuleNotFoundError" in agent.wait(events.HostNotice).text
    assert agent.prints("worker/0", b"False worker/0")
