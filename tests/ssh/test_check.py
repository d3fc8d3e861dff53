"""``launch check`` on real hosts: all is well, and each thing that is not is found and named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch, executable
from tests.seeing import ROOT, soon
from tests.ssh.host import TIME_LIMIT, LabHost

pytestmark = pytest.mark.timeout(180)
NAMES = ["node1", "node2", "node3", "node4"]
HOSTS = ",".join(NAMES)


def checked(launch: Launch, *options: str, code: int = 0, hosts: str = HOSTS) -> dict[str, Any]:
    """The JSON of a check that ends with ``code``."""
    ended = launch("check", "--json", hosts, *options, timeout=120, code=code)
    found: dict[str, Any] = json.loads(ended.out)
    return found


def problems(record: dict[str, Any], severity: str = "problem") -> list[tuple[str, list[str], str]]:
    """Kind, hosts and text of the findings that are so bad."""
    return [(f["kind"], f["hosts"], f["seen"]) for f in record["findings"] if f["severity"] == severity]


def pairs(record: dict[str, Any]) -> dict[tuple[str, str], str]:
    """What became of each connection."""
    return {(pair["from"], pair["to"]): pair["reach"] for pair in record["pairs"]}


def test_four_in_good_health(ssh_launch: Launch):
    ended = ssh_launch("check", HOSTS, timeout=120, code=0)
    assert not ended.said
    table, _, rest = ended.out.partition("\n\n")
    rows = [line.split() for line in table.splitlines()]
    assert [row[0] for row in rows] == ["HOST", *NAMES]
    assert all(re.fullmatch(r"3\.\d+\.\d+", row[1]) for row in rows[1:])
    assert rest.startswith("16 of 16 connections between the hosts work\n")


def test_a_host_that_is_down_and_the_others_are_checked(ssh_launch: Launch, hosts: list[LabHost]):
    hosts[2].cut()
    record = checked(ssh_launch, "--connect-timeout", "2", code=125)
    for seen, host in zip(record["hosts"], hosts, strict=True):
        facts = seen["facts"]
        assert host is hosts[2] or (facts["hostname"], facts["addresses"]) == (host.name, [host.address])
    errors = {seen["name"]: seen["error"] for seen in record["hosts"]}
    assert errors.pop("node3").startswith(f"no answer from {hosts[2].address}:22")
    assert set(errors.values()) == {None}
    assert len(record["pairs"]) == 9 and set(pairs(record).values()) == {"ok"}


def test_a_way_that_is_closed(ssh_launch: Launch, hosts: list[LabHost]):
    hosts[1].run(["ip", "route", "add", "blackhole", f"{hosts[2].address}/32"])
    try:
        record = checked(ssh_launch, "--timeout", "6", code=1)
    finally:
        hosts[1].run(["ip", "route", "del", "blackhole", f"{hosts[2].address}/32"])
    reached = pairs(record)
    # What node3 sends arrives, and is never answered.
    assert reached.pop(("node2", "node3")) == "no route"
    assert reached.pop(("node3", "node2")) == "timed out"
    assert set(reached.values()) == {"ok"}
    assert problems(record) == [
        ("unreachable", ["node2"], "cannot reach node3: no route"),
        ("unreachable", ["node3"], "cannot reach node2: timed out"),
    ]


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("127.0.1.1 node4", "node4 means 127.0.1.1 there, the host itself"),
        (None, "node4 cannot be resolved: "),
    ],
)
def test_a_wrong_line_in_etc_hosts(ssh_launch: Launch, hosts: list[LabHost], line: str | None, finding: str):
    table = hosts[0].there("/etc/hosts")
    right = table.read_text()
    kept = [kept for kept in right.splitlines() if not kept.endswith(" node4")]
    # Written in place: it is the file itself that is mounted.
    table.write_text("\n".join([*kept, *([line] if line else []), ""]))
    try:
        record = checked(ssh_launch, code=1)
    finally:
        table.write_text(right)
    names = [text for kind, whose, text in problems(record) if (kind, whose) == ("name", ["node1"])]
    assert len(names) == 1 and names[0].startswith(finding)
    assert pairs(record)["node1", "node4"] != "ok"
    assert pairs(record)["node4", "node1"] == "ok"


def test_folders_that_cannot_be_written_and_a_python_that_is_gone(ssh_launch: Launch, hosts: list[LabHost]):
    hosts[0].fill_disk()
    file = ssh_launch.home / "lab.yaml"
    file.write_text("hosts: [{name: node1}, {name: node2, env: {TMPDIR: /scratch/none}}]\n")
    record = checked(ssh_launch, "--python", "/opt/python", code=1, hosts=str(file))
    found = {(kind, *names): text for kind, names, text in problems(record)}
    full = f"its working folder {hosts[0].home} cannot be written: No space left on device"
    assert found.pop(("disk", "node1")) == full
    assert found.pop(("disk", "node2")).startswith("its folder for temporary files /scratch/none cannot be")
    assert found == {("python", "node1", "node2"): "/opt/python is not there: No such file or directory"}


def test_another_tensorflow_on_one_host(ssh_launch: Launch, hosts: list[LabHost]):
    versions = (("3.11.1", "2.21.0"), ("3.11.2", "2.15.0"), ("3.8.1", "2.21.0"), ("3.11.1", None))
    for host, (python, tensorflow) in zip(hosts, versions, strict=True):
        answer = json.dumps({"version": python, "tensorflow": tensorflow})
        executable(host.home / "venv/bin/python", f"#!/bin/sh\necho 'launch-check {answer}'\n")
        host.expected.append("venv")
    file = ssh_launch.home / "lab.yaml"
    file.write_text(json.dumps({"hosts": [{"name": host.name, "venv": "~/venv"} for host in hosts]}))
    record = checked(ssh_launch, code=1, hosts=str(file))
    [(kind, names, text)] = problems(record)
    assert (kind, names) == ("tensorflow-differs", ["node2"])
    assert text.startswith("TensorFlow 2.15.0, the others have 2.21.0")
    # Of a busy machine there may be others: slow round trips, say.
    found = [(kind, names) for kind, names, _ in problems(record, "warning")]
    warnings = {kind: names for kind, names in found if kind.startswith(("python", "tensorflow"))}
    assert warnings == {"python-differs": ["node3"], "tensorflow-missing": ["node4"]}


@pytest.mark.promise("`launch check --url`: which URLs each host reaches, and which packages are missing")
def test_urls_that_each_host_can_reach(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    """node1 serves a file, which node2 cannot reach, and for which node3 lacks a package."""
    port = 8123
    server = hosts[0].start(["python3", "-m", "http.server", str(port), "--directory", "/usr/share"])
    hosts[1].run(["ip", "route", "add", "blackhole", f"{hosts[0].address}/32"])
    bare = hosts[2].home / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    hosts[2].expected.append("bare")
    lines = [{"name": host.name, "python": sys.executable} for host in hosts]
    lines[2] = {"name": "node3", "venv": str(bare)}
    file = ssh_launch.home / "lab.yaml"
    file.write_text(json.dumps({"hosts": lines}))
    url = f"http://{hosts[0].address}:{port}/"
    try:
        asks = ["python3", "-c", f"import urllib.request as web; web.urlopen({url!r})"]
        soon(lambda: not hosts[0].run(asks, check=False).returncode, TIME_LIMIT, "the server listens")
        record = checked(ssh_launch, "--url", url, "--timeout", "15", code=1, hosts=str(file))
    finally:
        hosts[1].run(["ip", "route", "del", "blackhole", f"{hosts[0].address}/32"])
        server.kill()
        server.communicate()
    assert [not seen["urls"][0]["error"] for seen in record["hosts"]] == [True, False, False, True]
    found = {tuple(names): text for kind, names, text in problems(record) if kind == "url"}
    assert found.keys() == {("node2",), ("node3",)}
    assert "No route" in found["node2",] or "Invalid argument" in found["node2",]
    assert "is not installed" in found["node3",]


def test_the_check_is_broken_off(ssh_launch: Launch, hosts: list[LabHost]):
    """Nothing stays on any host: leftovers there fail the test."""
    python = hosts[0].home / "slow"
    begun = hosts[0].home / "begun"
    begun.mkdir()
    # All hosts see it, and some may come that far when the check is over already.
    executable(python, f"#!/bin/sh\n: >{begun}/$$\nsleep 60\n")
    hosts[0].expected += ["slow", "begun"]
    started = ssh_launch.start("check", HOSTS, "--python", str(python), "--timeout", "50")
    soon(lambda: os.listdir(begun), TIME_LIMIT, "the check asks for versions")
    started.kill()


#: The interfaces of a router, one of them down. The number of its routes does not matter.
INTERFACES = """\
link set lo up
address add 10.99.0.1/16 dev lo
address add 10.99.0.2/16 dev lo
address add 2001:db8::7/64 dev lo
link add down0 type veth peer name down1
address add 10.98.0.1/24 dev down0
"""
ROUTES = "".join(f"route add 11.0.{n >> 8}.{n & 255}/32 dev lo table 77\n" for n in range(20_000))
#: Prints the addresses of a host, and the seconds of CPU that it takes to find them.
ADDRESSES = """\
import json, sys, time
sys.path.insert(0, sys.argv[1])
from launcher.agent import host
began = time.process_time()
print(json.dumps([host.host_facts().addresses, time.process_time() - began]))
"""


def test_addresses_of_a_router(hosts: list[LabHost]):
    """An interface that is down does not count."""
    three_times = ["unshare", "--net", "sh", "-ec", 'ip -batch -; for i in 1 2 3; do "$@"; done', "sh"]
    command = [*three_times, "python3", "-c", ADDRESSES, str(ROOT)]
    printed = hosts[0].run(command, (INTERFACES + ROUTES).encode()).stdout
    shown = [json.loads(line) for line in printed.splitlines()]
    assert set(shown[0][0]) == {"10.99.0.1", "10.99.0.2", "2001:0db8:0000:0000:0000:0000:0000:0007"}
    assert min(seconds for _, seconds in shown) < 0.01
