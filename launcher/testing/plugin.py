"""The entry point of the pytest plug-in: the fixture ``cluster`` and its options (docs/testing.md).

pytest imports this in every project of an environment that contains the package, so it must import nothing
but pytest, and do nothing for a test without the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from launcher.testing.cluster import Cluster


#: Where a test keeps the `Cluster` that its fixture has made.
_USED = pytest.StashKey["Cluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--cluster-backend``, and ``cluster_backend`` of the configuration file."""
    text = "where the tasks of clusters run: local, or docker:IMAGE"
    parser.getgroup("tf-launcher").addoption("--cluster-backend", metavar="BACKEND", help=text)
    parser.addini("cluster_backend", text, default="local")


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start clusters of `launch` in a test, observe them, and kill or suspend their tasks.

    All of them are stopped when the test ends. A test that has passed fails if it leaves a job running.

    ::

        def test_counts(cluster):
            job = cluster.start(["count.py"], ps=1, workers=2, flags=True)
            assert job.wait().exit_code == 0

    Returns:
        The `launcher.testing.Cluster` of the test.
    """
    from launcher.testing.cluster import Cluster  # noqa: PLC0415 - only for tests that use it

    config = request.config
    backend = config.getoption("--cluster-backend", default=None) or config.getini("cluster_backend")
    value = request.node.stash[_USED] = Cluster(tmp_path_factory.mktemp("cluster"), str(backend))
    yield value
    leftovers = value.close()
    for job in value.jobs:
        # Reports such as JUnit's XML contain this property.
        request.node.user_properties.append(("run_dir", str(job.run_dir)))
    if leftovers and value.passed:  # A test that has failed has a better reason.
        pytest.fail("\n".join(leftovers), pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note whether the test has passed, and show the last lines of its jobs if it has failed.

    pytest calls this for the setup, the call and the teardown of each test. A test without the fixture has no
    cluster.
    """
    outcome: Any = yield
    cluster = item.stash.get(_USED, None)
    if cluster is None:
        return
    report: pytest.TestReport = outcome.get_result()
    if report.when == "call":  # The test function itself. The fixture reads this after it.
        cluster.passed = report.passed
    if report.failed:
        report.sections.extend(cluster.tails())
