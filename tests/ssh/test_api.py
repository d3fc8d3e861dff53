"""Clusters of the Python API on other machines."""

from __future__ import annotations

import array
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from launcher import ExitStatus, InputMode, TaskState, TFCluster, TFParallel
from launcher.api import tasks
from launcher.testing import Cluster
from tests.api.reading import read
from tests.seeing import soon
from tests.ssh.host import LabHost
from tests.ssh.lab import Lab
from tests.storage.stores import S3
from tests.testing.stubs import COUNTS

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("caller")]
#: The same minor version of Python as ours.
HERE: dict[str, Any] = {"python": sys.executable, "workdir": "/", "quiet": True}
FED: dict[str, Any] = {**HERE, "input_mode": InputMode.FEED}


def square(args: Any, ctx: Any) -> None:
    """Say where each row was, and its square."""
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([(os.uname().nodename, row * row) for row in feed.next_batch(10)])


def check_squares(hosts: str, count: int = 2) -> set[str]:
    """Feed a cluster of so many workers until each has taken some rows; the hosts that took some.

    The first one that is connected takes all rows of a short feed.
    """
    seen: set[str] = set()
    with TFCluster.run(square, None, count, hosts=hosts, **FED) as cluster:

        def all_took_some() -> bool:
            found = list(cluster.inference([range(start, start + 10) for start in range(0, 1000, 10)]))
            assert [value for _, value in found] == [row * row for row in range(1000)]
            seen.update(host for host, _ in found)
            return len(seen) == count

        soon(all_took_some)
    return seen


def test_through_the_connection_of_the_launcher(hosts: list[LabHost], monkeypatch: pytest.MonkeyPatch):
    """Nodes that cannot reach the program come to it all the same."""
    monkeypatch.setattr(tasks, "own_addresses", lambda: ["203.0.113.1"])
    assert check_squares("node1,node2") == {"node1", "node2"}


@pytest.mark.promise("rows of other machines come through the SSH connection")
@pytest.mark.parametrize("forwards", [True, False])
def test_rows_go_over_the_network_only_where_no_port_is_forwarded(
    hosts: list[LabHost], forwards: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    refused: list[bool] = []
    real = TFCluster.inference

    def inference(cluster: TFCluster, data: Any) -> Any:
        with socket.socket() as sock:
            refused.append(bool(sock.connect_ex(("127.0.0.1", cluster._nodes._listener.port))))
        return real(cluster, data)

    monkeypatch.setattr(TFCluster, "inference", inference)
    monkeypatch.setitem(FED, "quiet", False)
    with nullcontext() if forwards else hosts[1].sshd_with("AllowTcpForwarding no"):
        assert check_squares("node1,node2") == {"node1", "node2"}
    said = "of all network interfaces, for node2, where no port is forwarded: rows are not encrypted"
    assert set(refused) == {forwards} and (said in capfd.readouterr().err) is not forwards


def test_a_network_that_breaks_costs_no_row(hosts: list[LabHost], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "own_addresses", lambda: ["203.0.113.1"])

    def slow_square(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            rows = feed.next_batch(10)
            time.sleep(0.01)
            feed.batch_results([row * row for row in rows])

    with TFCluster.run(slow_square, None, 2, hosts="node1,node2", **FED) as cluster:
        results = cluster.inference([range(start, start + 10) for start in range(0, 8000, 10)])
        first = [next(results) for _ in range(1000)]
        hosts[1].cut()
        mend = threading.Timer(6, hosts[1].restore)
        mend.start()
        assert first + list(results) == [row * row for row in range(8000)]
        mend.join()


@pytest.mark.promise("the fixture `cluster` starts, kills, cuts off")
def test_a_task_of_the_pytest_fixture_is_suspended_and_killed(hosts: list[LabHost], cluster: Cluster):
    job = cluster.start(COUNTS, workers=2, hosts="node1,node2", workdir="/", on_failure="continue")
    task, other = job.tasks
    task.until_prints("step 2")
    task.stop()
    before = task.raw
    other.until_prints(f"step {len(other.lines) + 5}")
    assert len(task.raw) <= len(before) + 20, "a line may have been on its way"
    task.resume()
    task.until_prints(f"step {len(task.lines) + 2}")
    task.kill()
    assert task.wait() == ExitStatus(None, 9) and other.state is TaskState.RUNNING
    job.stop()
    assert job.wait().exit_code == 137


@pytest.fixture
def meet(lab: Lab) -> Iterator[Callable[[], None]]:
    """To be called by instances: returns when it has been on two hosts. All see the folder of the lab."""
    path = str(lab.folder / "meeting")
    os.mkdir(path)

    def wait_for_another() -> None:
        Path(path, os.uname().nodename).touch()
        until = time.monotonic() + 60
        while len(os.listdir(path)) < 2 and time.monotonic() < until:
            time.sleep(0.01)

    yield wait_for_another
    shutil.rmtree(path)


def test_a_network_that_breaks_costs_no_instance(
    hosts: list[LabHost], meet: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    """The slots come by the launcher's connection, which ends as if the program had hung up."""
    monkeypatch.setattr(tasks, "own_addresses", lambda: ["203.0.113.1"])
    began = [host.there(host.home) / "began" for host in hosts[:2]]

    def slow(args: Any, ctx: Any) -> Any:
        with Path("~/began").expanduser().open("a") as file:
            file.write(f"{args}\n")
        meet()
        time.sleep(7)
        return args

    def cut() -> None:
        soon(began[1].exists, 60)
        hosts[1].cut()
        time.sleep(6)
        hosts[1].restore()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        assert TFParallel.run(slow, [1, 2], hosts="node1,node2", **HERE) == [1, 2]
    finally:
        cutter.join()
    assert sorted(" ".join(file.read_text() for file in began).split()) == ["1", "2"], "each ran once"
    for file in began:
        file.unlink()


def test_rows_of_a_class_of_a_module_that_is_here_only(
    hosts: list[LabHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "class Row:\n    def __init__(self, x):\n        self.x = x\n"
    (tmp_path / "rows_here_only.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import rows_here_only  # type: ignore[import-not-found]

    row = rows_here_only.Row

    def add_one(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([row(one.x + isinstance(one, row)) for one in feed.next_batch(10)])

    def read() -> Any:
        return [row(number) for number in range(30, 60)]

    try:
        with TFCluster.run(add_one, None, 1, hosts="node1", **FED) as cluster:
            found = list(cluster.inference([row(number) for number in range(30)]))
            found += cluster.inference([read])
    finally:
        monkeypatch.delitem(sys.modules, "rows_here_only")
    assert all(isinstance(one, row) for one in found)
    assert [one.x for one in found] == list(range(1, 61))


#: A prime number, so that the rows fill no batch and no partition.
ROWS = 1_000_003


def uneven() -> Iterator[range]:
    """Partitions of 0 to 40,000 rows that hold each number below `ROWS` once."""
    start, number = 0, 0
    while start < ROWS:
        size = min(number * 7919 % 40_000, ROWS - start)
        yield range(start, start + size)
        start, number = start + size, number + 1


def note(args: Any, ctx: Any) -> None:
    """Write each batch down before the next one is asked for."""
    feed = ctx.get_data_feed()
    with open(f"{ctx.output_dir}/rows", "ab", buffering=0) as file:
        while not feed.should_stop():
            file.write(array.array("I", feed.next_batch(500)).tobytes())


@pytest.mark.promise("`TFCluster` feeds functions; each row arrives")
@pytest.mark.slow
def test_each_of_a_million_rows_arrives_exactly_once(hosts: list[LabHost]):
    with TFCluster.run(note, None, 2, hosts="node1,node2", **FED) as cluster:
        cluster.train(uneven())
    files = [Path(cluster.run_dir, "output", f"worker-{worker}", "rows") for worker in (0, 1)]
    first, second = (array.array("I", file.read_bytes()) for file in files)
    assert len(first) and len(second)
    assert sorted([*first, *second]) == list(range(ROWS))


def leave_something(args: Any, ctx: Any) -> None:
    """Leave a file, and fail when the first row comes."""
    Path(ctx.output_dir, "file").write_text("of it")
    feed = ctx.get_data_feed()
    if feed.next_batch(1):
        raise ValueError("over there")


@pytest.mark.promise("collect from hosts; output folders")
def test_output_folders_are_copied_here_when_the_program_fails(hosts: list[LabHost]):
    with pytest.raises(KeyError), TFCluster.run(leave_something, None, 1, hosts="node1", **FED) as cluster:
        soon(lambda: outputs_at(hosts[0]), 60)
        raise KeyError("of the program")
    assert Path(cluster.run_dir, "output/worker-0/file").read_text() == "of it"
    assert not [*(hosts[0].there(hosts[0].home) / ".cache/tf-launcher/work").glob("*")]


def outputs_at(host: LabHost) -> bool:
    """Whether the node has written its file there."""
    found = (host.there(host.home) / ".cache/tf-launcher/work").rglob("worker-0/file")
    return any(path.read_text() == "of it" for path in found)


def test_instances_on_all_slots(hosts: list[LabHost], meet: Callable[[], None]):
    def where(args: Any, ctx: Any) -> Any:
        meet()
        return args, os.uname().nodename

    found = TFParallel.run(where, range(8), hosts="node1:1,node2:2", **HERE)
    assert [number for number, _ in found] == list(range(8))
    assert {host for _, host in found} == {"node1", "node2"}


@pytest.mark.promise("wrong URLs, and stores that refuse: one line each, and nothing half done")
def test_a_host_without_the_package_for_a_url(hosts: list[LabHost], s3: S3, monkeypatch: pytest.MonkeyPatch):
    """The program has it, and lists the files."""
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    url = s3.put("a.txt", b"a\n")
    bare = hosts[0].home / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    hosts[0].expected.append("bare")
    (error,) = read([("TextFiles", url)], hosts="node1", python=str(bare / "bin/python"), workdir="/")
    assert "is not installed: pip install 'tf-launcher[s3]'" in error
    assert "hint: `launch prepare --hosts node1 --name NAME 'tf-launcher[s3]' tensorflow`" in error
