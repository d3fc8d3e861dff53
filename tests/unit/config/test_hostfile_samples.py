"""Every file of ``hostfiles/`` is read, and the README knows them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.hostfile import parse_hostfile
from launcher.job import Host

FOLDER = Path(__file__).parents[3] / "hostfiles"


def read(name: str) -> dict[str, Host]:
    return {host.name: host for host in parse_hostfile((FOLDER / name).read_text(encoding="utf-8"), name)}


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("lab.yaml", ["head.lab", "gpu01", "gpu02", "gpu03", "gpu04", "odd", "spare1", "spare2"]),
        ("two-local.yaml", ["127.0.0.1", "127.0.0.2"]),
        ("mpi.txt", ["node1", "node2", "node3", "node4"]),
        ("deepspeed.txt", ["worker-1", "worker-2", "worker-3"]),
        (
            "ranges.yaml",
            [
                *(f"node{n:02}" for n in range(1, 17)),
                *(f"cpu{n}" for n in (1, 3, 5, 6, 7)),
                *(f"r{r}n{n}.lab" for r in (1, 2) for n in (1, 2, 3, 4)),
            ],
        ),
        ("ipv6.yaml", ["fd00::1", "fd00::2", "fd00::3", "fe80::4%eth0"]),
    ],
)
def test_names(name: str, names: list[str]) -> None:
    assert list(read(name)) == names


def test_details() -> None:
    assert read("mpi.txt")["node4"].slots == 3
    assert read("deepspeed.txt")["worker-3"].workdir == "/data/my runs"
    assert read("lab.yaml")["gpu03"] == Host(
        "gpu03", address="10.0.1.3", user="trainer", slots=4, gpus=("0", "1", "2", "3"), labels=("fast",),
        python="/opt/venv/bin/python", workdir="/data/runs", source="lab.yaml:16",
        env=(("OMP_NUM_THREADS", "8"), ("NCCL_SOCKET_IFNAME", "eth1")),
    )  # fmt: skip


def test_the_readme_names_every_sample() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    samples = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert samples == {name for name in samples if f"({name})" in readme}
