"""Two machines of one host name share an engine, a home and a namespace: neither touches what is the other's.

``LAUNCH_SOAK=N`` makes N rounds of each; without it one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.processes import children_of
from launcher.files.requests import parse_syncs
from launcher.files.transfer import FileTransfer, finish, sync
from launcher.files.walk import read_trees
from tests.backends import Backend, Docker, Pods
from tests.conftest import COMMAND, Ended, Started
from tests.kubernetes.cluster import Cluster
from tests.seeing import soon
from tests.twins import Twin, two_machines
from tests.unit.files.hosts import LocalHosts

TIMES = int(os.environ.get("LAUNCH_SOAK", "1"))
pytestmark = pytest.mark.timeout(240 + 120 * TIMES)


@pytest.fixture(params=[True, False] if TIMES > 1 else [True], ids=lambda same: "clones" if same else "names")
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Twin, Twin]]:
    """Clones, which have one machine id; in the long form also others."""
    with two_machines(tmp_path, request.param) as made:
        yield made


class Site:
    """The two machines, and a place that both see.

    Args:
        backend: runs tasks at the place; both machines have its home.
        objects: the names of what launches have at the place, with the names of their runs in them.
        options: of a launch, beside those of the backend.
        cleaning: the options of ``launch clean``.
    """

    def __init__(
        self, backend: Backend, objects: Callable[[], list[str]], options: Sequence[str], *cleaning: str
    ) -> None:
        self._backend, self.objects = backend, objects
        self._options, self._cleaning = [*backend.options, *options], cleaning
        self._starting = threading.Lock()
        #: The folders of all runs.
        self.runs = backend.launch.state

    def start(self, twin: Twin, *words: str) -> Started:
        """Start ``launch`` on a machine."""
        command = [*twin.enter, *self._backend.before, *COMMAND]
        with self._starting:
            return self._backend.launch.start(*words, command=command, env=self._backend.env)

    def call(self, twin: Twin, *words: str) -> Ended:
        """Run ``launch`` on a machine to its end."""
        return self.start(twin, *words).wait(90)

    def job(self, twin: Twin, *program: str) -> Started:
        """Start a job of one worker from a machine."""
        return self.start(twin, *self._options, "--workers", "1", "--", *program)

    def clean(self, twin: Twin, *words: str) -> Ended:
        """Run ``launch clean`` on a machine."""
        return self.call(twin, "clean", *self._cleaning, *words)

    def of(self, run: str) -> list[str]:
        """The objects of a run."""
        return [name for name in self.objects() if run in name]

    def listed(self, twin: Twin, *words: str) -> dict[str, str]:
        """The runs that ``launch ps`` lists on a machine, and their states."""
        records: list[dict[str, Any]] = json.loads(self.call(twin, "ps", "--json", *words).out)
        return {record["run"]: record["state"] for record in records}


def rounds(site: Site, twins: tuple[Twin, Twin]) -> None:
    """Launch, list, clean and kill on both machines at once."""
    for turn in range(TIMES):
        a_round(site, twins if turn % 2 else twins[::-1], turn)


def a_round(site: Site, twins: tuple[Twin, Twin], turn: int) -> None:
    """In the first part both launchers live, in the second one is killed, and leaves something behind."""
    started = [site.job(twin, "sh", "-c", "echo up; exec sleep 600") for twin in twins]
    for each in started:
        each.up(1, 90)
    runs = [each.err.partition("job ")[2].partition(":")[0] for each in started]
    assert all(site.of(run) for run in runs), (runs, site.objects())

    def look(number: int) -> tuple[dict[str, str], dict[str, str], Ended, Ended]:
        twin = twins[number]
        running, known = site.listed(twin), site.listed(twin, "--all")
        return running, known, site.clean(twin), site.job(twin, "true").wait(90)

    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(look, (0, 1)))
    for number, (running, known, cleaned, launched) in enumerate(seen):
        own, foreign = runs[number], runs[1 - number]
        assert own in running and foreign not in running, (turn, running)
        assert (known[own], known[foreign]) == ("running", "elsewhere"), (turn, known)
        assert (cleaned.code, cleaned.out) == (0, "nothing to remove\n"), (turn, cleaned)
        assert f"--foreign {foreign}`" in cleaned.err and f"--foreign {own}`" not in cleaned.err, cleaned.err
        assert launched.code == 0, (turn, launched.err)
    assert all(site.of(run) for run in runs), (turn, runs, site.objects())
    assert [each.process.poll() for each in started] == [None, None], turn

    killed, other = twins
    folder = next(path for path in site.runs.iterdir() if path.name == runs[0])
    killed.run("kill", "-KILL", str(json.loads((folder / "launcher.json").read_text())["pid"]))
    started[0].wait(60)
    assert site.of(runs[0]), "nothing is left of a killed launch: what to clean?"
    assert site.listed(other, "--all")[runs[0]] == "elsewhere"
    assert site.clean(other).out == "nothing to remove\n"
    assert site.of(runs[0]) and site.of(runs[1])
    cleaned = site.clean(other, "--foreign", runs[0]) if turn % 2 else site.clean(killed)
    assert cleaned.code == 0 and runs[0] in cleaned.out and runs[1] not in cleaned.out, cleaned
    soon(lambda: not site.of(runs[0]), 60)
    assert site.of(runs[1]), (turn, site.objects())
    stopped = site.call(other, "stop", runs[1])
    assert stopped.code == 0, stopped.err
    started[1].wait(60)
    assert not site.of(runs[1])


@pytest.mark.promise("of two machines of one host name neither touches what is the other's")
def test_at_one_engine(here: Docker, twins: tuple[Twin, Twin]):
    def objects() -> list[str]:
        names = here.engine.lines("ps", "-a", "--format", "{{.Names}}")
        return [*names, *here.engine.lines("network", "ls", "--format", "{{.Name}}")]

    rounds(Site(here, objects, ["--no-mount"]), twins)


@pytest.mark.promise("of two machines of one host name neither touches what is the other's")
def test_in_one_namespace(kubernetes: Cluster, request: pytest.FixtureRequest, twins: tuple[Twin, Twin]):
    def objects() -> list[str]:
        return kubernetes.kubectl("get", "jobs", "-o", "name").split()

    rounds(Site(Pods(request), objects, [], "--kubernetes"), twins)


@pytest.mark.promise("of two machines of one host name neither touches what is the other's")
def test_folders_of_one_home(twins: tuple[Twin, Twin], tmp_path: Path):
    """The machines are hosts that tasks run on; each sync removes folders that nobody uses any more."""
    hosts = LocalHosts(tmp_path / "homes")
    hosts.environments = {name: {"HOME": str(hosts.home("shared"))} for name in ("one", "two")}
    hosts.before = dict(zip(("one", "two"), (twin.enter for twin in twins), strict=True))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    trees = read_trees(parse_syncs([str(tmp_path / "code")]), "/")[0]

    names = ("one", "two")

    def bring(job: str, *chosen: str) -> dict[str, Path]:
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(
                lambda name: sync(FileTransfer(hosts, 2), [name], trees, f"{job}-{name}"), chosen
            )
        return {name: Path(paths[name][0]) for paths in found for name in paths}

    for turn in range(TIMES):
        used, left = bring(f"used-{turn}", *names), bring(f"left-{turn}", *names)
        assert len({*used.values(), *left.values()}) == 4
        for tree in (*used.values(), *left.values()):
            (mark,) = tree.parent.glob(".used-*")
            os.utime(mark, (time.time() - 7200,) * 2)
        with ExitStack() as stack:
            for name, tree in used.items():
                stack.enter_context(_task(hosts.before[name], tree))
            bring(f"next-{turn}", *names)
            assert [tree.exists() for tree in used.values()] == [True, True], turn
            assert [tree.exists() for tree in left.values()] == [False, False], turn
        bring(f"last-{turn}", "one")
        assert [tree.exists() for tree in used.values()] == [False, True], turn
        for job in ("used", "next", "last"):
            for name in names:
                assert finish(FileTransfer(hosts, 2), [name], f"{job}-{turn}-{name}") == {}


@contextmanager
def _task(before: Sequence[str], folder: Path) -> Iterator[None]:
    """A process that works in a folder of a machine."""
    with subprocess.Popen([*before, "sh", "-c", 'cd "$1"; exec sleep 600', "sh", folder]) as entering:
        (inside,) = soon(lambda: children_of(entering.pid), 30)
        soon(lambda: os.readlink(f"/proc/{inside}/cwd") == str(folder), 30)
        try:
            yield
        finally:
            os.kill(inside, signal.SIGKILL)
