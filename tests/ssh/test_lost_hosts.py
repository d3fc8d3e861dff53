"""A host is lost while the job runs: its tasks start again on others, and never run twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.backends import WAITS
from tests.conftest import Launch, executable
from tests.seeing import last_run, soon
from tests.ssh.host import CACHE, LabHost
from tests.ssh.lab import ALL

pytestmark = pytest.mark.timeout(360)
#: The first attempt hangs; the second one prints what it was given, and leaves a result.
PROGRAM = """\
echo "up $LAUNCH_ATTEMPT"
test "$LAUNCH_ATTEMPT" = 2 || exec sleep 300
hostname > $OUTPUT_DIR/host
echo "cluster $CLUSTER_SPEC"
"""
LIMITS = ("--restarts", "1", "--lease", "6", "--grace", "1")


def _asleep(host: LabHost) -> bool:
    return any(process.argv == "sleep 300" for process in host.processes())


@pytest.mark.promise("tasks of a lost host start again on others, never twice at a time")
def test_two_of_four_hosts_lose_power_at_once_which_is_one_restart(
    ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path
):
    folder = tmp_path / "project"
    executable(folder / "task.sh", PROGRAM)
    words = [*ALL, *LIMITS, "--sync", ".", "--output-dirs", "--", "sh", "task.sh"]
    started = ssh_launch.start(*words, cwd=folder)
    started.until(lambda it: it.out.count("up 1") == 4, 60)
    for host in hosts[1:3]:
        host.power_off()
    ended = started.wait(180, code=0)
    line = r"is lost: .*; worker/[12] {}, all tasks start again in 26s \(attempt 2, restart 1 of 1{}\)"
    assert re.search(line.format("moves to node1", ""), ended.err), ended.err
    assert re.search(line.format("moves, too", " for node[23], node[23]"), ended.err), ended.err
    assert ended.out.count("up 2") == 4
    (cluster,) = set(re.findall(r"cluster (\{.*\})", ended.out))
    moved = ["node1", "node1", "node4", "node4"]
    assert [address.partition(":")[0] for address in json.loads(cluster)["worker"]] == moved
    run = last_run(ssh_launch)
    attempts = [(task["host"], task["attempt"], task["state"]) for task in run.report["tasks"]]
    assert attempts == [(host, 2, "succeeded") for host in moved]
    (earlier,) = run.task("worker/2")["earlier"]
    assert (earlier["host"], earlier["state"], earlier["reason"]) == ("node3", "lost", "host lost")
    assert run.report["restarts"] == 1
    assert [(run.path / f"output/worker-{n}/host").read_text().strip() for n in range(4)] == moved


@pytest.mark.long
def test_a_spare_host_takes_the_tasks_when_those_of_a_host_that_is_cut_off_have_ended(
    ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path
):
    (tmp_path / "lab.yaml").write_text("hosts: [node1:1, node2:1]\nspares: [node3, node4]\n")
    hosts[2].stop_sshd()
    script = 'echo "up $LAUNCH_ATTEMPT"; test $LAUNCH_ATTEMPT = 2 || exec sleep 300'
    words = ["--hosts", f"{tmp_path}/lab.yaml", "--workers", "2", *LIMITS, "--", "sh", "-c", script]
    started = ssh_launch.start(*words, cwd="/")
    started.until(lambda it: it.out.count("up 1") == 2, 90)
    attached = ssh_launch.start("attach", cwd="/").until(lambda it: "node2 worker/1 | up 1" in it.out)
    soon(lambda: _asleep(hosts[1]), 30)
    hosts[1].cut()
    started.until(lambda it: "moves to node4" in it.err, 60)
    started.until(lambda it: "up 2" in it.out, 90)
    assert not _asleep(hosts[1])
    ended = started.wait(60, code=0)
    assert "host node3 cannot be used: " in ended.err
    for shown in (ended.out, attached.wait().out):
        assert re.search(r"^node4 worker/1 \| up 2$", shown, re.MULTILINE), shown


@pytest.mark.promise("a host that comes back takes the tasks of the next lost one, with its files")
def test_a_host_that_comes_back_takes_the_tasks_of_the_next_one(
    ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path
):
    folder = tmp_path / "project"
    executable(folder / "task.sh", PROGRAM.replace('"$LAUNCH_ATTEMPT" = 2', '"$LAUNCH_ATTEMPT" = 3'))
    (folder / "lab.yaml").write_text("hosts: [node1:1, node2:1]\nspares: [node3]\n")
    words = ["--hosts", "lab.yaml", "--workers", "2", *LIMITS, "--restarts", "2", "--sync", "."]
    started = ssh_launch.start(*words, "--output-dirs", "--", "sh", "task.sh", cwd=folder)
    started.until(lambda it: it.out.count("up 1") == 2, 60)
    hosts[1].power_off()
    started.until(lambda it: it.out.count("up 2") == 2, 120)
    hosts[1].run(["rm", "-rf", CACHE])
    hosts[1].power_on()
    started.until(lambda it: "host node2 is back: " in it.err, 120)
    hosts[2].power_off()
    ended = started.wait(180, code=0)
    assert re.search(r"node3 is lost: .*; worker/1 moves to node2, .* \(attempt 3, ", ended.err), ended.err
    assert ended.out.count("up 3") == 2
    run = last_run(ssh_launch)
    assert [task["host"] for task in run.report["tasks"]] == ["node1", "node2"]
    assert [attempt["host"] for attempt in run.task("worker/1")["earlier"]] == ["node2", "node3"]
    assert [(run.path / f"output/worker-{n}/host").read_text().strip() for n in (0, 1)] == ["node1", "node2"]


def test_no_host_has_room(ssh_launch: Launch, hosts: list[LabHost]):
    words = ["--hosts", "node1:1,node2:1", "--workers", "2", *LIMITS, "--", *WAITS]
    started = ssh_launch.start(*words, cwd="/").up(2, 60)
    hosts[1].power_off()
    assert "no other host has room for worker/1" in started.wait(60, code=125).err
