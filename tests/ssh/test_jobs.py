"""The installed command on four hosts: what the promises say, on real hosts, over real connections."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Launch
from tests.seeing import last_run
from tests.ssh.host import LabHost
from tests.ssh.lab import ALL, TWO, Lab

pytestmark = pytest.mark.timeout(360)


def test_a_launch_that_reaches_no_host_reports_it(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    """Programs that wait for a report get one."""
    hosts[1].stop_sshd()
    report = tmp_path / "report.json"
    ended = ssh_launch("--json", "--report", report, *TWO, "true", cwd="/", code=125)
    message = json.loads(report.read_text())
    assert json.loads(ended.out) == {"event": "Report", **message}
    assert message["exit_code"] == 125
    assert [(task["task"], task["host"], task["state"]) for task in message["tasks"]] == [
        ("worker/0", "node1", "cancelled"),
        ("worker/1", "node2", "cancelled"),
    ]
    assert message["failure"]["host"] == "node2"
    assert f"launch: {message['failure']['text']}\n" in ended.err


@pytest.mark.promise("hosts by name, by hostfile, beside this machine")
def test_this_machine_and_another(ssh_launch: Launch, lab: Lab, tmp_path: Path):
    """Neither gets a ``localhost`` for the other."""
    refused = ssh_launch("--hosts", "localhost:1,node1:1", "--workers", "2", "true", cwd="/", code=2)
    assert "cannot reach it by 'localhost'" in refused.err
    hosts = tmp_path / "hosts.yaml"
    addresses = {"localhost": lab.address, "node1": lab.hosts[0].address}
    records = [{"name": name, "address": address, "slots": 1} for name, address in addresses.items()]
    hosts.write_text(json.dumps({"hosts": records}))
    script = "echo $TASK_INDEX $CLUSTER_SPEC"
    ended = ssh_launch("--hosts", hosts, "--workers", "2", "--", "sh", "-c", script, cwd="/", code=0)
    specs = {line.split("| ")[1][2:] for line in ended.out.splitlines() if " | " in line}
    assert len(specs) == 1
    first, second = json.loads(specs.pop())["worker"]
    assert first.startswith(f"{lab.address}:") and second.startswith(f"{lab.hosts[0].address}:")


def test_a_way_that_is_closed_is_found_before_anything_starts(ssh_launch: Launch, hosts: list[LabHost]):
    hosts[0].run(["ip", "route", "add", "blackhole", f"{hosts[1].address}/32"])
    try:
        ended = ssh_launch(*TWO, "--", "echo", "started", cwd="/", code=125)
        assert re.search(r"node1 cannot reach node2:\d+", ended.err), ended.err
        assert "started" not in ended.out
        ssh_launch("--no-check", *TWO, "--", "echo", "started", cwd="/", code=0)
    finally:
        hosts[0].run(["ip", "route", "del", "blackhole", f"{hosts[1].address}/32"])


# ---------------------------------------------------------------------- connections that break


#: Prints numbered lines until there is a file, and writes their number into it.
NUMBERS = "i=0; until [ -e ~/end ]; do echo line $i; i=$((i+1)); sleep 0.1; done; echo $i >~/end"
#: Answers each packet to sshd by a reset, for a second.
RESET = "rule='INPUT -p tcp --dport 22 -j REJECT --reject-with tcp-reset'"
RESET += "; iptables -w -I $rule && sleep 1; iptables -w -D $rule"


@pytest.mark.promise("cuts of 3, 10, 70 s; reset; sshd killed at the end: logs and console are whole")
@pytest.mark.parametrize("longest", [20, pytest.param(70, marks=pytest.mark.long)])
def test_links_that_break_cost_no_line(ssh_launch: Launch, hosts: list[LabHost], longest: int):
    """Cut for 3 s, for 10 s in which the task ends, and for long; reset, and killed as the task ends.

    The tasks are not silent meanwhile: their output is on its way.
    """

    def end(host: LabHost) -> None:
        """Also of a host that is cut off."""
        host.there(host.home / "end").touch()

    for host in hosts:
        host.expected.append("end")
    limits = ["--lease", str(longest + 15), "--stall", "8s"]  # half of the lease would be too short
    started = ssh_launch.start(*ALL, *limits, "--", "sh", "-c", NUMBERS, cwd="/")
    started.until(lambda it: it.out.count(" | line 5\n") == 4, 60)
    short, middle, long, reset = hosts
    for host in (short, middle, long):
        host.cut()
    since = time.monotonic()
    reset.run(["sh", "-c", RESET])
    for seconds, action in (
        (3, short.restore), (6, lambda: end(middle)), (10, middle.restore), (12, lambda: end(short)),
        (15, lambda: end(reset)), (15, reset.kill_sshd_sessions), (longest, long.restore),
        (longest + 5, lambda: end(long)),
    ):  # fmt: skip
        time.sleep(max(0.0, since + seconds - time.monotonic()))
        action()
    ended = started.wait(120, code=0)
    for host in (middle, long, reset):
        assert f"{host.name}: connection lost" in ended.err
    for number, host in enumerate(hosts):
        lines = [f"line {line}" for line in range(int(host.there(host.home / "end").read_text()))]
        assert re.findall(rf"^{host.name} worker/{number} \| (.*)$", ended.out, re.MULTILINE) == lines
        assert last_run(ssh_launch).log(f"worker/{number}").decode().splitlines() == lines


@pytest.mark.promise("a slow network that loses packets")
def test_a_bad_network_is_only_slow(ssh_launch: Launch, hosts: list[LabHost]):
    hosts[0].slow(delay=100, loss=10)
    ssh_launch(*TWO, "--", "sh", "-c", "seq 1 2000", cwd="/", timeout=200, code=0)
    for number in (0, 1):
        log = last_run(ssh_launch).log(f"worker/{number}").split()
        assert log == [b"%d" % line for line in range(1, 2001)]


def test_ctrl_c_before_a_host_has_answered(ssh_launch: Launch, hosts: list[LabHost]):
    """No agent runs there, so none is said to be late, and none is waited for."""
    hosts[1].start_up("exec sleep 60")
    started = ssh_launch.start(*TWO, "true", cwd="/")
    started.until(lambda it: "2 workers on 2 hosts" in it.err or "waiting for" in it.err, 60)
    ended = started.stop(signal.SIGINT, 15, code=130)
    hosts[1].kill(signal.SIGKILL, *(it.pid for it in hosts[1].processes()))
    assert "did not exit" not in ended.err, ended.err


@pytest.mark.promise("Ctrl-C while a host is cut off")
@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_a_host_is_cut_off(ssh_launch: Launch, hosts: list[LabHost], times: int):
    """The launch does not wait for the lease; the host ends everything itself by then."""
    # Seconds to answer: after the first Ctrl-C the grace and three more; after the second one.
    grace, limit = ("2", 5) if times == 1 else ("60", 1)
    words = ["--no-check", "--lease", "22", "--grace", grace, "--", "sh", "-c", "echo up; sleep 600"]
    started = ssh_launch.start(*TWO, *words, cwd="/").up(2)
    hosts[1].cut()
    started.until(lambda it: "connection lost" in it.err, 40)
    since = time.monotonic()
    started.send(signal.SIGINT)
    if times == 2:
        started.until(lambda it: "waiting for worker/1 to end" in it.err, 40)
        since = time.monotonic()
        started.send(signal.SIGINT)
    ended = started.wait(60, code=130)
    assert time.monotonic() - since < 12, "its lease would have been over later"
    assert f"host node2 is lost: its agent did not answer in {limit}s" in ended.err
    assert "it cannot be reached: it stops its tasks when its lease expires" in ended.err
    assert re.search(r"^worker/0 +node1 .* stopped ", ended.out, re.MULTILINE)
    hosts[1].restore()


def test_a_host_that_has_the_name_of_this_machine(ssh_launch: Launch, hosts: list[LabHost]):
    """Its name leads to another machine: the task runs there."""
    host = hosts[0]
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host.name]
    words = ("--hosts", host.name, "--", "readlink", "/proc/self/ns/net")
    ended = ssh_launch.start(*words, command=[*renamed, *COMMAND]).wait(60, code=0)
    assert os.readlink(f"/proc/{host.pid}/ns/net") in ended.out
