"""A cluster is shut down before all results were taken."""

from __future__ import annotations

from typing import Any

import pytest

from launcher import FeedError, InputMode, TFCluster

pytestmark = pytest.mark.timeout(120)  # who would wait for the results would do so for ten minutes


def test_results_that_nobody_takes_do_not_keep_the_cluster(capsys: pytest.CaptureFixture[str]):
    def halves(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([row / 2 for row in feed.next_batch(10)])

    with TFCluster.run(halves, None, 2, input_mode=InputMode.FEED, quiet=True) as cluster:
        results = cluster.inference(range(200))
        assert next(results) == 0
    assert "shutdown ends an inference() of the feed 'input'" in capsys.readouterr().err
    with pytest.raises(FeedError, match="shut down before all results were taken"):
        list(results)


def test_a_function_that_returns_too_early_is_told_of(capsys: pytest.CaptureFixture[str]):
    def one_batch(args: Any, ctx: Any) -> None:
        ctx.get_data_feed().next_batch(10)

    with TFCluster.run(one_batch, None, 2, input_mode=InputMode.FEED, quiet=True) as cluster:
        cluster.train(range(100_000))
    said = capsys.readouterr().err
    assert said.count("returned before reading all rows; call feed.terminate() if that is intended") == 1
