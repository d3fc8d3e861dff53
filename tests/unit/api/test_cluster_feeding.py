"""The feeder of a cluster."""

from __future__ import annotations

import pytest

from launcher.api.ends import End
from launcher.api.feeding import Feeding
from launcher.errors import FeedError, JobFailed


def feeding() -> Feeding:
    return Feeding(["worker/0", "worker/1"], ["input", "output"], False, lambda task: [], print)


def test_what_has_become_of_nodes_before_there_were_rows():
    fed = feeding()
    fed.ended(End("ps/0", code=1))
    fed.ended(End("worker/0", code=3))
    fed.ended(End("worker/1", signal=9))
    with pytest.raises(FeedError, match="worker/0 exited with code 3, worker/1 was killed by SIGKILL"):
        fed.feeder.train([1])
    fed.close()


@pytest.mark.parametrize("early", [True, False])
def test_a_job_that_has_failed_is_not_fed(early: bool):
    fed = feeding()
    if not early:
        assert fed.feeder is fed.feeder
    fed.failed(JobFailed("the first"))
    fed.failed(JobFailed("another"))
    with pytest.raises(JobFailed, match="the first"):
        fed.feeder.train([1])
    fed.finish()
    fed.close()


def test_who_never_feeds_needs_no_feeder():
    fed = feeding()
    fed.finish()
    fed.close()
