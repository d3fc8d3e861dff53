"""What programs may give to the Python API: random arguments are refused, or run the job that they ask for.

``make test`` tries a tenth of them; with ``LAUNCH_SOAK`` all are tried.
"""

from __future__ import annotations

import inspect
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest

import launcher
from launcher import CsvFiles, InputError, InputMode, LaunchError, TextFiles, TFCluster, TFParallel
from launcher.api.run import RunOptions
from tests.conftest import examples
from tests.seeing import is_soon

pytestmark = pytest.mark.timeout(1800)
#: Calls of the functions that feed a cluster, and of those about data.
_FED, _DATA = examples(600, 10), examples(400, 10)
_SEED = 20261128


class _Evil:
    """An object of a program whose methods raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __index__(self) -> int:
        raise RuntimeError("no number")

    def __fspath__(self) -> str:
        raise RuntimeError("no path")


_RECURSIVE: list[Any] = []
_RECURSIVE.append(_RECURSIVE)
_DEEP: dict[str, Any] = {}
for _ in range(100):
    _DEEP = {"env": _DEEP}
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, 10**5000, 2.5, -0.5, float("nan"), float("inf"), 1e300, 3j, "", "-q",
    "--version", "--help", "no/such", "no such", "\0", "\ud800", "a\nb", "é" * 9, "a" * 200_000, b"x",
    b"\xff",
    [], ["--detach"], ["echo"], ["--"], ["-m"], ["--version"], ["--no-such"], [1], [None], [b"x"], [["a"]],
    ("-q",), {}, {"a": 1}, {1: 2}, {"": ""}, {"A=B": "c"}, {"-q": "c"}, {"worker": {}}, {"x y": 1},
    {"worker": {"workdir": object()}}, {"reader": {"count": numpy.int64(1), "env": {"A": 2}}},
    {"reader": {"command": 7, "gpus": [1], "nothing": None}}, {"ps": -1}, {"worker": numpy.float64(1)}, _DEEP,
    {"reader": {"count": 10**5000}}, {"reader": [1]}, {"reader": {"env": {b"x": 1}}}, set(), {"a"}, object(),
    _Evil(), [_Evil()], {"worker": _Evil()}, Path("no/such"), Path(), numpy.int64(1), numpy.float32(1),
    numpy.float64("nan"), numpy.bool_(True), numpy.array([1, 2]), numpy.array(1), numpy.array(["a"]),
    numpy.str_("no/such"), _RECURSIVE, [_DEEP], threading.Lock(), Ellipsis, int, len,
    range(3), memoryview(b"x"),
)  # fmt: skip
_OPTIONS = [name for name in RunOptions.__annotations__ if name != "quiet"]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _leaves_more(function: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether a call that is refused leaves descriptors each time.

    There may also be more than before it because a node has connected again after an earlier call.
    """
    before = _descriptors()
    with suppress(InputError):
        function(**given)
    return not is_soon(lambda: _descriptors() <= before, 10)


class Cases:
    """Random calls of the functions of the API, and what became of them."""

    def __init__(self, folder: Path) -> None:
        self.results: Counter[str] = Counter()
        self.raw: list[str] = []
        self._random = random.Random(_SEED)
        self._started = folder / "started"
        self._started.write_text("")

    def given(self, right: Mapping[str, Any], names: list[str], values: tuple[Any, ...] = _VALUES) -> Any:
        """Right arguments, of which some are replaced, and further ones."""
        known = sorted({*right, *names})
        chosen = self._random.sample(known, min(len(known), self._random.choice((1, 1, 1, 2, 3))))
        more = {name: self._random.choice(values) for name in chosen}
        if self._random.random() < 0.05:
            more[self._random.choice(["worker", "num_worker", "", "é", "roles_", "self"])] = 1
        return {**right, **more}

    def call(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        """Call it. A call that is refused starts nothing, and leaves no descriptor."""
        before, jobs = _descriptors(), self._started.stat().st_size
        words = f"{function.__qualname__}({', '.join(f'{k}={_text(v)}' for k, v in given.items())})"
        try:
            function(**given)
            self.results["a result"] += 1
        except LaunchError as error:
            self.results[type(error).__name__] += 1
            if isinstance(error, InputError):
                if self._started.stat().st_size > jobs:
                    self.raw.append(f"{words}: refused ({error}), and started")
                if not is_soon(lambda: _descriptors() <= before, 10) and _leaves_more(function, given):
                    self.raw.append(f"{words}: left descriptors")
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self.raw.append(f"{words}: {type(error).__name__}: {error}"[:400])

    def check(self, number: int) -> None:
        print(f"{number} cases: {dict(self.results)}")
        assert not self.raw, f"{len(self.raw)} of {number}:\n" + "\n".join(self.raw)
        assert sum(self.results.values()) == number


def _text(value: object) -> str:
    try:
        return repr(value)[:80]
    except (RuntimeError, ValueError):
        return f"<{type(value).__name__}>"


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: str) -> Cases:
    for name, value in {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "DOCKER_HOST": "unix:///no/such/socket",
        "STARTED": str(tmp_path / "started"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return Cases(tmp_path)


def _cluster(**given: Any) -> None:
    TFCluster.run(**given).shutdown(timeout=30)


#: For each function right arguments, the names of others, and how many calls are tried.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], list[str], int]] = {
    "run": (
        launcher.run,
        {"program": ["sh", "-c", "echo >> $STARTED"], "timeout": 20},
        ["ps", "workers", "chief", "evaluator", "roles", "check", "program"],
        1000,
    ),
    "cluster": (
        _cluster,
        {"map_fun": lambda args, ctx: None, "tf_args": None, "num_executors": 1},
        [name for name in inspect.signature(TFCluster.run).parameters if name != "options"],
        600,
    ),
    "parallel": (
        TFParallel.run,
        {"map_fun": lambda args, ctx: None, "tf_args": [1]},
        ["map_fun", "tf_args", "num_executors", "use_barrier", "at_once", "return_exceptions"],
        400,
    ),
}


@pytest.mark.promise("wrong arguments of the Python API are named before anything is opened")
@pytest.mark.promise("random arguments of the Python API never raise anything raw")
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_a_job(cases: Cases, name: str):
    function, right, names, most = _FUNCTIONS[name]
    for _ in range(examples(most, 10)):
        cases.call(function, cases.given({**right, "quiet": True}, [*names, *_OPTIONS]))
    cases.check(examples(most, 10))


@pytest.mark.promise("wrong arguments of the Python API are named before anything is opened")
@pytest.mark.promise("random arguments of the Python API never raise anything raw")
def test_feeding(cases: Cases):
    """One cluster takes all of it: no call ends its job."""

    def read(args: Any, ctx: Any) -> None:
        tests = ctx.get_data_feed(qname_in="tests")
        beside = threading.Thread(target=results_of, args=[tests], daemon=True)
        beside.start()
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(10)

    def results_of(feed: Any) -> None:
        while not feed.should_stop():
            feed.batch_results([1] * len(feed.next_batch(10)))

    values = tuple(value for value in _VALUES if not callable(value))  # it would be called in the task
    train = ["data", "num_epochs", "feed_timeout", "qname", "equal", "batch_size"]
    feeds: dict[str, Any] = {"input_mode": InputMode.FEED, "queues": ["input", "tests"], "quiet": True}
    with TFCluster.run(read, None, 1, **feeds) as cluster:

        def infer(**given: Any) -> None:
            results = cluster.inference(**given)
            if not isinstance(results, list):  # the names of files
                next(results, None)
                results.close()

        def stop(**given: Any) -> None:
            if isinstance(given.get("timeout"), str | list | dict | bytes):  # else it would be shut down
                cluster.shutdown(**given)

        for number in range(_FED):
            if number % 3 == 0:
                cases.call(
                    infer, cases.given({"data": [1], "qname": "tests"}, [*train[:4:2], "output"], values)
                )
            elif number % 10 == 1:
                cases.call(stop, cases.given({}, ["timeout"], values))
            else:
                cases.call(cluster.train, cases.given({"data": [1]}, train, values))
        cluster.train([1, 2, 3], feed_timeout=30)
    cases.check(_FED)


def test_data(cases: Cases):
    (file := Path("numbers.csv")).write_text("a,b\n1,2\n")
    kinds: list[tuple[Callable[..., Any], Mapping[str, Any], list[str]]] = [
        (launcher.rows, {"data": [1]}, ["per_partition"]),
        (launcher.partitions, {"data": [[1]]}, []),
        (TextFiles, {"names": file}, ["encoding", "read_on_worker"]),
        (
            CsvFiles,
            {"names": file},
            ["encoding", "read_on_worker", "columns", "header", "delimiter", "multiline"],
        ),
        (launcher.ParquetFiles, {"names": file}, ["columns", "read_on_worker"]),
        (launcher.TFRecordFiles, {"names": [file]}, ["check", "read_on_worker"]),
    ]
    for number in range(_DATA):
        function, right, names = kinds[number % len(kinds)]
        cases.call(function, cases.given(right, names))
    cases.check(_DATA)
