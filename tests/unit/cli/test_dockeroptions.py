"""What the options about containers mean."""

from __future__ import annotations

import argparse
import os

import pytest

from launcher.cli.dockeroptions import mounts, role_cpus, role_memory
from launcher.transport.docker.settings import Mount


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("512m", ("", 512 << 20)),
        ("2g", ("", 2 << 30)),
        ("1.5GiB", ("", 3 << 29)),
        ("worker=64MB", ("worker", 64 << 20)),
        ("10000000", ("", 10_000_000)),
    ],
)
def test_memory(text: str, meant: tuple[str, int]):
    assert role_memory(text) == meant


@pytest.mark.parametrize("text", ["", "much", "1m", "-2g", "2x", "worker=", "2 g g"])
def test_no_memory(text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        role_memory(text)


def test_cpus():
    assert role_cpus("1.5") == ("", 1.5)
    assert role_cpus("ps=2") == ("ps", 2.0)
    for text in ("", "0", "-1", "nan", "inf", "ps=", "many"):
        with pytest.raises(argparse.ArgumentTypeError):
            role_cpus(text)


def test_mounts():
    found, faults = mounts(["/a", "/a:/b", "/a:/b:ro", "sub:ro", "~/x:/x:rw", "/a:/b/../c"])
    here, home = os.getcwd(), os.path.expanduser("~")
    assert not faults
    assert found == [
        Mount("/a", "/a"),
        Mount("/a", "/b"),
        Mount("/a", "/b", True),
        Mount(f"{here}/sub", f"{here}/sub", True),
        Mount(f"{home}/x", "/x"),
        Mount("/a", "/c"),
    ]


@pytest.mark.parametrize("word", ["", ":/b", "/a:b", "/a:/b:/c", "/a:/", "/", "/a:/b:so"])
def test_no_mounts(word: str):
    found, faults = mounts([word])
    assert (found, len(faults)) == ([], 1)
