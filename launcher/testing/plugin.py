"""The pytest plug-in: the fixture ``cluster``, and what goes with it (docs/testing.md).

pytest imports this in every project of an environment that has the package, so it imports nothing but pytest,
and does nothing for a test without the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from launcher.testing.cluster import Cluster


_USED = pytest.StashKey["Cluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cluster-backend``, and the same in the configuration file."""
    text = "where the tasks of clusters run: local, or docker:IMAGE"
    parser.getgroup("tf-launcher").addoption("--cluster-backend", metavar="BACKEND", help=text)
    parser.addini("cluster_backend", text, default="local")


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start clusters of `launch`, observe, kill and suspend their tasks. They are stopped when the test ends.

    ``job = cluster.start(["train.py"], ps=1, workers=2)``; see `launcher.testing.Cluster`.
    """
    from launcher.testing.cluster import Cluster  # noqa: PLC0415 - only for tests that use it

    config = request.config  # the option, else the configuration file
    backend = config.getoption("--cluster-backend", default=None) or config.getini("cluster_backend")
    made = request.node.stash[_USED] = Cluster(tmp_path_factory.mktemp("cluster"), str(backend))
    yield made
    left = made.close()
    for job in made.jobs:
        request.node.user_properties.append(("run_dir", str(job.run_dir)))  # a property in JUnit's XML
    if left and made.passed:
        pytest.fail("\n".join(left), pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the ends of the logs where a test has failed that used the fixture."""
    outcome: Any = yield
    used = item.stash.get(_USED, None)
    if used is None:
        return
    report: pytest.TestReport = outcome.get_result()
    if report.when == "call":
        used.passed = report.passed
    if report.failed:
        report.sections.extend(used.tails())
