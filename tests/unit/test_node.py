"""What a function of a cluster uses in its node, without a cluster."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from launcher import InputError, TFNode, TFNodeContext
from launcher.api.cluster import _roles
from launcher.common.arguments import Arguments


@pytest.mark.parametrize(
    ("file_system", "path", "found"),
    [
        ("file://", "/foo/../bar", "file:///bar"),
        ("file://", "foo", "file:///work/foo"),
        ("file://", "~/foo", f"file://{Path.home()}/foo"),
        ("hdfs://nn:9000", "/foo", "hdfs://nn:9000/foo"),
        ("hdfs://nn:9000", "foo", f"hdfs://nn:9000/user/{getpass.getuser()}/foo"),
        ("file://", "s3://bucket/foo", "s3://bucket/foo"),
    ],
)
def test_hdfs_path(file_system: str, path: str, found: str):
    ctx = TFNodeContext(working_dir="/work", defaultFS=file_system)
    assert TFNode.hdfs_path(ctx, path) == found


def test_a_wrong_mapping():
    with pytest.raises(InputError, match=r"input_mapping=\['x'\]; expected a dict"):
        TFNode.DataFeed(object(), input_mapping=["x"])
    for mapping in ({}, {"a": "x", "b": "x"}, {"a": 1}, {1: "x", "a": "y"}):
        with pytest.raises(InputError, match="input_mapping="):
            TFNode.DataFeed(object(), input_mapping=mapping)


def test_how_long_others_run_on_after_the_chief():
    def drains(nodes: int, ps: int, evaluator: bool) -> dict[str, str]:
        roles = _roles(nodes, ps, "chief", evaluator, True, Arguments("TFCluster.run"))
        return {name: role["drain"] for name, role in roles.items() if "drain" in role}

    assert drains(2, 0, False) == {"worker": "10m"}
    assert drains(4, 1, True) == {"worker": "5s", "evaluator": "10m"}
