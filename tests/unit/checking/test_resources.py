"""Disks, memory, limits, GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.job import Host
from tests.unit.checking.seen import FOLDER, NOTE, PROBLEM, PYTHON, WARNING, only, said, sight

MB = 1_000_000


def folder(which: str, **changed: Any):
    return sight(1, folders={which: {**FOLDER, **changed}})


def gpus(
    *names: str,
    state: str = "ok",
    heard: str = "",
    host: Host | None = None,
    distribution: str = "tensorflow",
):
    there = [
        {"index": str(n), "uuid": f"GPU-{n}f3a", "name": name, "memory": "80 GB"}
        for n, name in enumerate(names)
    ]
    python = {**PYTHON, "distribution": distribution}
    return sight(1, host, gpus={"state": state, "said": heard, "list": there}, task_python=python)


def test_little_room():
    found = only(folder("tmp", free=900 * MB))
    assert (found.severity, found.kind) == (WARNING, "disk")
    assert "has 900 MB left" in found.seen
    assert said(folder("tmp", free=1100 * MB)) == []


@pytest.mark.parametrize("which", ["home", "tmp", "workdir"])
def test_a_full_disk(which: str):
    found = only(folder(which, free=0, why="No space left on device"))
    assert found.severity is PROBLEM
    assert found.seen.endswith("/home/me can't be written: No space left on device")
    assert found.advice == "make room there"


@pytest.mark.parametrize(("which", "severity"), [("home", WARNING), ("workdir", PROBLEM)])
def test_a_folder_that_cannot_be_written(which, severity):
    assert only(folder(which, why="Read-only file system")).severity is severity


def test_a_file_server_that_does_not_answer():
    found = only(folder("workdir", free=None, why="its file system does not answer"))
    assert found.severity is PROBLEM


def test_little_memory():
    found = only(sight(1, available=700 * MB))
    assert (found.severity, found.kind) == (WARNING, "memory")
    assert found.seen.startswith("700 MB of memory left")
    assert said(sight(1, available=None)) == []


def test_busy():
    assert only(sight(1, load=[9.5, 0.0, 0.0])).severity is NOTE
    assert said(sight(1, load=[8.5, 0.0, 0.0])) == []


def test_limits():
    assert (
        only(sight(1, limits={"files": 256, "processes": None})).seen
        == "a program may open 256 files (ulimit -n)"
    )
    found = only(sight(1, limits={"files": None, "processes": 100}))
    assert found.seen == "its user may have 100 processes and threads (ulimit -u)"


def test_no_gpus_and_none_wanted():
    assert said(sight(1, Host("node1", gpus=()))) == []


def test_as_many_gpus_as_the_hostfile_says():
    assert said(gpus("A100", "A100", host=Host("node1", gpus=("0", "1")))) == []
    assert said(gpus("A100", "A100", host=Host("node1", gpus=("1",)))) == []
    assert said(gpus("A100", host=Host("node1", gpus=("GPU-0f3", "MIG-whatever")))) == []


def test_fewer_gpus_than_the_hostfile_says():
    found = only(gpus("A100", host=Host("node1", gpus=("0", "1", "GPU-9"))))
    assert (found.severity, found.kind) == (PROBLEM, "gpus")
    assert found.seen == "the hostfile says 3 GPUs, and 1, GPU-9 are not among the 1 there"


@pytest.mark.parametrize(("wanted", "severity"), [(None, WARNING), (("0",), PROBLEM)])
def test_a_broken_driver(wanted, severity):
    found = only(
        gpus(state="failed", heard="Driver/library version mismatch", host=Host("node1", gpus=wanted))
    )
    assert found.severity is severity
    assert found.seen == "nvidia-smi fails: Driver/library version mismatch"


def test_a_tensorflow_that_cannot_use_them():
    found = only(gpus("A100", distribution="tensorflow-cpu"))
    assert (found.severity, found.seen) == (WARNING, "tensorflow-cpu can't use its 1 GPU")


def test_little_shared_memory_matters_to_gpus():
    assert said(sight(1, shm=64 * MB)) == []
    found = only(gpus("A100")._replace(facts={**gpus("A100").facts, "shm": 64 * MB}))
    assert (found.severity, found.kind) == (WARNING, "shm")
