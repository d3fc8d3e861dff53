"""Wrong arguments are told before anything is started, all at once, by their names."""

from __future__ import annotations

from typing import Any

import pytest

from launcher import InputError, TFCluster, TFNode, TFParallel


def fun(args: Any, ctx: Any) -> None:
    """What would be run."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_executors": "3"}, ["num_executors='3'"]),
        ({"num_executors": 2.0, "num_ps": True}, ["num_executors=2.0", "num_ps=True"]),
        ({"num_executors": 0}, ["num_executors=0"]),
        ({"num_executors": 3, "num_ps": 5}, ["num_executors=3", "num_ps (5)"]),
        ({"num_executors": 2, "num_ps": 1, "eval_node": True}, ["num_ps (1) and the evaluator (1)"]),
        ({"num_executors": 1, "env": {"A": 1, "B": "2"}}, ["'A' is 1"]),
        ({"num_executors": 1, "env": ["A"]}, ["env=['A']"]),
        ({"num_executors": 1, "queues": "input", "options": "-v"}, ["queues=['input']", "options=['-v']"]),
        (
            {"num_executors": 1, "hosts": ["a", "b"], "grace": "10", "timeout": -1},
            ["hosts", "grace", "timeout"],
        ),
        (
            {"num_executors": 1, "on_failure": "go on", "reservation_timeout": None},
            ["on_failure", "reservation"],
        ),
    ],
    ids=str,
)
def test_of_a_cluster(given: dict[str, Any], said: list[str]):
    with pytest.raises(InputError) as caught:
        TFCluster.run(fun, None, **given)
    assert all(text in str(caught.value) for text in said), caught.value
    assert len(caught.value.faults) >= len({text.partition("=")[0] for text in said} - {"num_ps (5)"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tf_args": [1], "at_once": "2"}, "at_once='2'"),
        ({"tf_args": [1], "at_once": 0}, "at_once=0"),
        ({"tf_args": 1, "num_executors": "2"}, "num_executors='2'"),
        ({"tf_args": 1}, "tf_args is a int"),
        ({"tf_args": [1], "env": {"A": None}}, "'A' is None"),
    ],
    ids=str,
)
def test_of_a_search(given: dict[str, Any], said: str):
    with pytest.raises(InputError) as caught:
        TFParallel.run(fun, **given)
    assert said in str(caught.value)


def test_what_follows_a_spark_context_is_not_told_of():
    with pytest.raises(InputError) as caught:
        TFCluster.run(object(), fun, {}, 2)  # type: ignore[arg-type]
    assert len(caught.value.faults) == 1


def test_columns_without_names():
    with pytest.raises(InputError, match="input_mapping is a list"):
        TFNode.DataFeed(None, input_mapping=["x", "y"])
