"""A transport of an installed package whose hosts are known when the launch runs, and may change."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Launch, install
from tests.local.board import FOLDER
from tests.seeing import last_run
from tests.stubs import rooms

pytestmark = pytest.mark.promise("hosts that are known later, in an installed backend")

#: The first attempt waits to be killed with its host.
PROGRAM = "echo up $LAUNCH_ATTEMPT of $PPID; test $LAUNCH_ATTEMPT = 2 || exec sleep 300; echo $CLUSTER_SPEC"


#: Returns the rooms that were made and given back.
Ledger = Callable[[], list[str]]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Installs the package; the rooms that were made and given back."""
    file = tmp_path / "ledger"
    environ = install(tmp_path / "site", "rooms", Path(rooms.__file__).read_text())
    for name, value in {**environ, "LEDGER": str(file)}.items():
        monkeypatch.setenv(name, value)
    return lambda: file.read_text().splitlines() if file.exists() else []


#: Two rooms, made and given back.
BOTH = ["made room1 127.0.0.11", "made room2 127.0.0.12", "given back room1", "given back room2"]


def test_hosts_are_made_for_the_job_and_given_back(launch: Launch, ledger: Ledger, tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/words").write_text("for all rooms")
    words = ["--rooms", "3", "--workers", "2", "--sync", "data", "--output-dirs", "--lease", "20"]
    script = "cat words; pwd > $OUTPUT_DIR/folder; echo $TASK_ADDRESS"
    ended = launch(*words, "--", "sh", "-c", script, cwd=tmp_path, timeout=60, code=0)
    assert ended.out.count("for all rooms") == 2
    assert re.search(r"worker/1 \| (for all rooms)?127\.0\.0\.12:\d+\n", ended.out), ended.out
    assert "no task runs on room3: the job has 2 tasks" in ended.err
    folders = [(last_run(launch).path / f"output/worker-{n}/folder").read_text() for n in range(2)]
    assert [re.findall(r"/(room\d)/\.cache/", folder) for folder in folders] == [["room1"], ["room2"]]
    made = [f"made room{n} 127.0.0.{10 + n}" for n in (1, 2, 3)]
    assert ledger() == [*made, *(f"given back room{n}" for n in (1, 2, 3))]


def test_a_host_that_is_lost_comes_back_with_another_address(launch: Launch, ledger: Ledger):
    words = ["--rooms", "2", "--workers", "2", "--restarts", "1", "--grace", "1"]
    started = launch.start(*words, "--", "sh", "-c", PROGRAM, cwd="/")
    started.until(lambda it: it.out.count("up 1") == 2, 60)
    (agent,) = re.findall(r"worker/1 \| up 1 of (\d+)", started.out)
    os.kill(int(agent), signal.SIGKILL)
    ended = started.wait(60, code=0)
    assert "host room2 is lost" in ended.err
    clusters = [json.loads(text) for text in set(re.findall(r"\{.*\}", ended.out))]
    addresses = [[address.partition(":")[0] for address in cluster["worker"]] for cluster in clusters]
    assert addresses == [["127.0.0.11", "127.0.0.13"]]
    assert ledger() == [*BOTH[:2], "made room2 127.0.0.13", *BOTH[2:]]


def test_hosts_with_the_files_of_this_machine(launch: Launch, ledger: Ledger, tmp_path: Path):
    words = ["--rooms", "2", "--shared", "--workers", "2", "--sync", ".", "--output-dirs"]
    ended = launch(*words, "--", "sh", "-c", "pwd; touch $OUTPUT_DIR/made", cwd=tmp_path, code=0)
    assert "--sync: nothing is copied: all hosts have the files of this machine" in ended.err
    assert ended.out.count(f"| {tmp_path}\n") == 2
    assert (last_run(launch).path / "output/worker-1/made").exists()


def test_the_page_of_tensorboard_can_be_opened_only_there(launch: Launch, ledger: Ledger):
    """The backend forwards no ports."""
    words = ["--rooms", "2", "--workers", "2", "--tensorboard", "-x", f"PYTHONPATH={FOLDER}"]
    (said,) = (line for line in launch(*words, "true", cwd="/", code=0).said if " listens on " in line)
    assert re.search(r" 127\.0\.0\.1:\d+ of room1: .*\bonly on that host$", said)
    assert last_run(launch).report["tensorboard"] is None


def test_a_dry_run_acquires_nothing(launch: Launch, ledger: Ledger):
    ended = launch("--rooms", "2", "--workers", "2", "--dry-run", "true", code=0)
    assert "# the rooms are made when the job starts" in ended.out
    assert "# worker/1 on room2, room2:20001" in ended.out
    assert ledger() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("landlord", "line"), [("is slow", "the rooms are made"), ("", "launch: job ")])
def test_a_signal(launch: Launch, ledger: Ledger, landlord: str, line: str, number: int, code: int):
    """It comes while the hosts are awaited, or while the job runs."""
    started = launch.start("--rooms", "2", "sleep", "300", env={"LANDLORD": landlord})
    started.until(lambda it: line in it.err)
    started.stop(number, code=code)
    assert ledger() == BOTH


def test_hosts_are_given_back_after_a_failure(launch: Launch, ledger: Ledger):
    assert launch("--rooms", "2", "--", "sh", "-c", "exit 7").code == 7
    assert launch("--rooms", "2", "--workers", "3", "true").code == 2  # known with the hosts
    assert ledger() == [*BOTH, *BOTH]


def test_there_are_no_hosts(launch: Launch, ledger: Ledger, tmp_path: Path):
    report = tmp_path / "report.json"
    ended = launch("--rooms", "2", "--report", report, "true", env={"LANDLORD": "refuses"})
    assert (ended.code, ended.err) == (125, "launch: the landlord has no room\n")
    assert json.loads(report.read_text())["failure"]["text"] == "the landlord has no room"
    assert ledger() == []


def test_a_key_of_the_job_file_asks_for_the_package(launch: Launch, ledger: Ledger, tmp_path: Path):
    (tmp_path / "job.yaml").write_text("rooms: 2\nroles: {worker: {count: 2, command: echo in}}\n")
    ended = launch(tmp_path / "job.yaml", code=0)
    assert ended.out.count(" | in\n") == 2 and ledger() == BOTH


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--rooms 2 --hosts a true", "--rooms: the hosts are named, too"),
        ("--docker x --rooms 2 true", "docker and rooms cannot start the same tasks; expected one of them"),
        ("--room 2 true", "unrecognized option --room; did you mean --rooms?"),
        ("--rooms 2 --relay {relay} true", "--relay: this backend forwards no ports"),
    ],
)
def test_mistakes(launch: Launch, ledger: Ledger, tmp_path: Path, words: str, expected: str):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "relay"))
        ended = launch(*words.format(relay=tmp_path / "relay").split())
    assert ended.code in (2, 125) and expected in ended.err, ended.err
    assert len(ledger()) in (0, 4)


def test_a_package_that_can_not_be_imported(launch: Launch, ledger: Ledger, tmp_path: Path):
    (tmp_path / "site/rooms.py").write_text("import nothing_of_this_name\n")
    ended = launch("--rooms", "2", "true", code=125)
    assert "'rooms'" in ended.err and "No module named 'nothing_of_this_name'" in ended.err
