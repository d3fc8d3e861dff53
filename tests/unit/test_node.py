"""What a function of a cluster uses in its node, without a cluster."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import pytest

from launcher import InputError, TFNode, TFNodeContext
from launcher.api.cluster import _roles
from launcher.common.arguments import Arguments

SPEC = {"ps": ["a:1"], "worker": ["b:1", "c:1"]}


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


def test_absolute_path():
    ctx = TFNodeContext(working_dir="/work")
    paths = ["foo", "/foo", "~/foo", "hdfs://x/y"]
    assert [ctx.absolute_path(path) for path in paths] == [
        "/work/foo", "/foo", f"{Path.home()}/foo", "hdfs://x/y"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "index", "cluster", "chief"),
    [
        ("worker", 0, SPEC, True),
        ("worker", 1, SPEC, False),
        ("ps", 0, SPEC, False),
        ("worker", 0, {**SPEC, "chief": ["d:1"]}, False),
        ("chief", 0, {**SPEC, "chief": ["d:1"]}, True),
    ],
)
def test_is_chief(role: str, index: int, cluster: Any, chief: bool):
    ctx = TFNodeContext(0, role, index, cluster)
    assert ctx.is_chief is chief and ctx.num_workers == 2 + ("chief" in cluster)


def test_a_wrong_mapping():
    with pytest.raises(InputError, match=r"input_mapping=\['x'\]; expected a dict"):
        TFNode.DataFeed(object(), input_mapping=["x"])
    for mapping in ({}, {"a": "x", "b": "x"}, {"a": 1}, {1: "x", "a": "y"}):
        with pytest.raises(InputError, match="input_mapping="):
            TFNode.DataFeed(object(), input_mapping=mapping)


@pytest.mark.parametrize(
    ("asked", "roles"),
    [
        ((3, 0, None, False), {"worker": {"count": 3}}),
        ((3, 1, None, False), {"ps": {"count": 1}, "worker": {"count": 2}}),
        ((2, 0, "chief", False), {"chief": {"count": 1}, "worker": {"count": 1, "drain": "10m"}}),
        (
            (4, 1, "chief", True),
            {
                "ps": {"count": 1},
                "chief": {"count": 1},
                "worker": {"count": 1, "drain": "5s"},
                "evaluator": {"count": 1, "drain": "10m"},
            },
        ),
        ((1, 0, "chief", False), {"chief": {"count": 1}}),
        ((0, 0, None, False), None),
        ((1, 1, None, False), None),
        ((2, 1, None, True), None),
        ((True, 0, None, False), None),
    ],
)
def test_roles_of_so_many_nodes(
    asked: tuple[int, int, str | None, bool], roles: dict[str, dict[str, Any]] | None
):
    arguments = Arguments("TFCluster.run")
    found = _roles(*asked, True, arguments)
    assert found == roles if roles else len(arguments.faults) == 1
