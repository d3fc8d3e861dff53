"""Hostfiles and host lists: which hosts they stand for, and what is wrong with which line."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from launcher.backends.fleet import this_machine
from launcher.common.errors import Fault, HostfileError
from launcher.common.record import replace
from launcher.config.hostfile import expand, parse_hostfile, parse_list, read_hosts
from launcher.job import Host
from tests.conftest import examples
from tests.unit.config.answers import check_faults, faulty

SAMPLES = Path(__file__).parents[3] / "hostfiles"


def faults(text: str, source: str) -> Sequence[Fault]:
    with pytest.raises(HostfileError) as caught:
        parse_list(text, source) if source == "--hosts" else parse_hostfile(text, source)
    return caught.value.faults


# ---------------------------------------------------------------------- ranges and lists


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node", "node"),
        ("node[08-11]", "node08 node09 node10 node11"),
        ("node[8-11]", "node8 node9 node10 node11"),
        ("node[1,3,5-7].lab", "node1.lab node3.lab node5.lab node6.lab node7.lab"),
        ("node[01,2]", "node01 node2"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("[1-2][3-4]", "13 14 23 24"),
    ],
)
def test_ranges(text: str, names: str):
    assert " ".join(expand(text)) == names


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2000), st.integers(0, 8), st.booleans())
def test_a_range_is_read_as_it_is_written(low: int, length: int, padded: bool):
    width = len(str(low + length)) if padded else 1
    numbers = [f"{number:0{width}}" for number in range(low, low + length + 1)]
    assert expand(f"n[{numbers[0]}-{numbers[-1]}]x") == [f"n{number}x" for number in numbers]


@pytest.mark.promise("hostfiles: YAML, MPI, DeepSpeed, ranges, IPv6, samples")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" h1:2 , h2 ", [Host("h1", slots=2), Host("h2")]),
        ("u@h3:4,me@corp.org@h,DOM\\me@i", [Host("h3", slots=4, user="u"), Host("h", user="me@corp.org"), Host("i", user="DOM\\me")]),
        ("[fe80::1]:2,[::1],u@[fe80::1%eth0]", [Host("fe80::1", slots=2), Host("::1"), Host("fe80::1%eth0", user="u")]),
        ("127.0.0.1,010,a_b.c-d.", [Host("127.0.0.1"), Host("010"), Host("a_b.c-d.")]),
        ("n[01-02]:2,m[1,3]", [Host("n01", slots=2), Host("n02", slots=2), Host("m1"), Host("m3")]),
        ("10.0.0.[9-10]", [Host("10.0.0.9"), Host("10.0.0.10")]),
        ("n[1-7/3],m[00-10/5]", [Host(name) for name in ("n1", "n4", "n7", "m00", "m05", "m10")]),
        ("h1:1023,h2:21,h3:23", [Host("h1", slots=1023), Host("h2", slots=21), Host("h3", slots=23)]),
        ("h1 4 h2 22", [Host("h1", slots=4), Host("h2", slots=22)]),
        ("n1\nn[2-3]:2\n  n4", [Host("n1"), Host("n2", slots=2), Host("n3", slots=2), Host("n4")]),
        ("x" * 253, [Host("x" * 253)]),
    ],
)  # fmt: skip
def test_lists(text: str, expected: list[Host]):
    assert list(parse_list(text)) == [replace(host, source="--hosts") for host in expected]


WRONG_LISTS = [
    "", "h1,,h2", "-oProxyCommand=x", "-l@h", "..", "a/b", "a\tb", "^h", "+n2", "u@v@node01:2", "h:0", "h:x", "@gpu", "n[1-9]!n3", "n[1-9/0]", "n[01:16]", "h1 2222", "h1,4", "fe80::1", "[fe80::1]x", "[fe80::x]", "n[1-999999999]", "n[1-4096],m", "n2,n[1-3]:2", "10.0.0.[255-256]", "x" * 254,
    "n[", "n]", "n[[1]]", "n[]", "n[1,]", "n[a]", "n[1-2-3]", "n[-1]", "n[٣]", "n[1234567890]", "n[5-1]", "n[1-010]", "n[01-100]",
]  # fmt: skip


def test_faults_of_lists(snapshot: SnapshotAssertion):
    check_faults(dict.fromkeys(WRONG_LISTS, "--hosts"), lambda text: faults(text, "--hosts"), "", snapshot)


@pytest.mark.promise("a port is never slots, in any form of host")
@pytest.mark.parametrize(
    "host", ["h:{}", "u@h:{}", "[::1]:{}", "u@[fe80::1%eth0]:{}", "n[01-16]:{}", "10.0.0.1:{}"]
)
@pytest.mark.parametrize("port", ["22", "1024", "65535", "70000"])
@pytest.mark.parametrize(
    ("form", "source", "where"),
    [
        ("a,{}", "--hosts", "--hosts"),
        ("a\n{}", "--hosts", "--hosts"),
        ("{}", "f", "f:1"),
        ("{} gpus=1", "f", "f:1"),
        ("hosts:\n- '{}'", "f.yaml", "f.yaml:2"),
        ("hosts:\n- {{name: '{}', gpus: 1}}", "f.yaml", "f.yaml:2"),
        ("hosts: [a]\nspares: ['{}']", "f.yaml", "f.yaml:2"),
    ],
)
def test_a_port_is_never_slots(form: str, source: str, where: str, host: str, port: str):
    (fault,) = faults(form.format(host.format(port)), source)
    assert (fault.where, host.format(port) in fault.problem) == (where, True)
    assert f"slots={port}" in str(fault) and f"port={port}" in str(fault)


# ---------------------------------------------------------------------- plain lines


@pytest.mark.promise("hostfiles: YAML, MPI, DeepSpeed, ranges, IPv6, samples")
@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("a", Host("a")),
        ("  a\tslots = 4  ", Host("a", slots=4)),
        ("a slots=2222", Host("a", slots=2222)),
        ("a count=4 max-slots=8", Host("a", slots=4, max_slots=8)),
        ("a username=u port=2222 address=[fe80::2]", Host("a", user="u", port=2222, address="fe80::2")),
        ("a gpus=2", Host("a", gpus=("0", "1"))),
        ("a gpus=0", Host("a", gpus=())),
        ("a gpus=1,GPU-8f,MIG-GPU-1/2/3", Host("a", gpus=("1", "GPU-8f", "MIG-GPU-1/2/3"))),
        ("a labels=x,zone=a roles=ps,worker", Host("a", labels=("x", "zone=a"), roles=("ps", "worker"))),
        ("a python=/opt/py#3 # why", Host("a", python="/opt/py#3")),
        ('a workdir="/x y\'s" venv=v', Host("a", workdir="/x y's", venv="v")),
        ("fe80::1%eth0 slots=2", Host("fe80::1%eth0", slots=2)),
        ("u@[fe80::1]:2 # c", Host("fe80::1", user="u", slots=2)),
        ("hosts:4", Host("hosts", slots=4)),
        ("a workdir=/x//y/*/z", Host("a", workdir="/x//y/*/z")),
        ("n1.lab 4 all.q@n1.lab UNDEFINED", Host("n1.lab", slots=4)),
        ("n1 48 big.q@@all <NULL>", Host("n1", slots=48)),
    ],
)
def test_plain_lines(line: str, host: Host):
    assert parse_hostfile(f"# comment\n\n   # another\n{line}\n", "f") == (replace(host, source="f:4"),)


def test_plain_files():
    for end in ("\n", "\r\n", "\r"):
        hosts = parse_hostfile(f"\ufeffa slots=1{end}# c{end}b", "f")
        assert hosts == (Host("a", slots=1, source="f:1"), Host("b", source="f:3"))
    # PBS: a name alone comes once a slot
    hosts = parse_hostfile("a\nb # x\na\nu@c\nu@c\na\n", "f")
    named = [(host.name, host.slots, host.source) for host in hosts]
    assert named == [("a", 3, "f:1"), ("b", None, "f:2"), ("c", 2, "f:4")]
    hosts = parse_hostfile("n[1-2] slots=2 address=10.0.0.[5-6]\nm", "f")
    named = [(host.name, host.slots, host.address or "") for host in hosts]
    assert named == [("n1", 2, "10.0.0.5"), ("n2", 2, "10.0.0.6"), ("m", None, "")]


def test_faults_of_plain_files(snapshot: SnapshotAssertion):
    wrong = faulty("wrong_plain_hosts.txt")
    check_faults(wrong, lambda text: faults(text, "f"), "f", snapshot)


# ---------------------------------------------------------------------- YAML

FULL = Path(__file__).with_name("full_hosts.yaml").read_text()


@pytest.mark.promise("hostfiles: YAML, MPI, DeepSpeed, ranges, IPv6, samples")
def test_yaml():
    base = Host("", user="bob", python="py3", labels=("d",), env=(("A", "1"), ("B", "2")))
    m = replace(
        base,
        port=2222, slots=2, max_slots=4, gpus=("0", "1"), roles=("ps", "worker"), python="/opt/py",
        workdir="/a b", env=(("A", "1"), ("B", "no"), ("C", "010")), labels=("zone=a", "rack=07"), source="f.yml:5",
    )  # fmt: skip
    assert parse_hostfile(FULL, "f.yml") == (
        replace(base, name="no", source="f.yml:3"),
        replace(base, name="n1", user="eve", slots=3, source="f.yml:4"),
        replace(base, name="n2", user="eve", slots=3, source="f.yml:4"),
        replace(m, name="m01", address="10.0.0.1"),
        replace(m, name="m02", address="10.0.0.2"),
        replace(base, name="fe80::1", slots=2222, gpus=("0", "GPU-1"), roles=("ps",), labels=("x", "y"), source="f.yml:16"),
        replace(base, name="fe80::2", user="u", slots=4, source="f.yml:17"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "source", "spares"),
    [
        ("defaults: {slots: 2}\nhosts: [a]\nspares: ['s[1-2]', {name: s3}]", "f.yml", "s1 s2 s3"),
        ("hosts: [a, {name: s1, spare: true}, {name: b, spare: no}]", "f.yml", "s1"),
        ("a\ns1 spare=true slots=2\nb spare=false", "f.txt", "s1"),
    ],
)
def test_spares(text: str, source: str, spares: str):
    found = parse_hostfile(text, source)
    assert " ".join(host.name for host in found if host.spare) == spares
    assert source == "f.txt" or {host.slots for host in found} == ({2} if "slots" in text else {None})


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hosts: [a]", "F.YML"),
        ("hosts: [a]", "hosts"),
        ("# c\r\nhosts :\r\n- a\r\n", "f.txt"),
        ("---\n# b\n---\nhosts: [a]\n---\n", "f.yaml"),
        ("---\nhosts: [a]\n...\n", "f"),
        ('{\n\t"hosts": ["a"]\n}', "f.json"),
        ("\ufeffhosts:\n- a", "f"),
        ("a", "f.hosts"),
    ],
)
def test_the_form_depends_on_ending_then_content(text: str, source: str):
    assert [host.name for host in parse_hostfile(text, source)] == ["a"]


def test_faults_of_yaml(snapshot: SnapshotAssertion):
    wrong = {**faulty("wrong_hosts.txt"), f"hosts: [{', '.join(['a'] * 5000)}]": "1"}
    check_faults(wrong, lambda text: faults(text, "y.yaml"), "y.yaml", snapshot)


# ---------------------------------------------------------------------- files and lists


def test_an_existing_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node1").write_bytes(b"\xef\xbb\xbfnode7\n")
    (tmp_path / "node2").mkdir()
    assert [host.name for host in read_hosts("node1")] == ["node7"]
    assert [host.name for host in read_hosts("node2,node3")] == ["node2", "node3"]
    assert [host.name for host in read_hosts("n[1-3/2],m")] == ["n1", "n3", "m"], "no folder"
    assert [host.name for host in read_hosts("node2")] == ["node2"], "a folder is not a hostfile"
    reader, writer = os.pipe()
    os.write(writer, b"node1 slots=3\n")
    os.close(writer)
    assert read_hosts(f"/dev/fd/{reader}")[0].slots == 3
    os.close(reader)


@pytest.mark.parametrize(
    "text", ["lab.yaml", "lab.YML", "lab.json", "hosts.txt", "my.hosts", "./lab", "a\nb/c", "n[1]/x"]
)
def test_a_missing_file_is_never_a_list(text: str):
    with pytest.raises(HostfileError, match="no such hostfile"):
        read_hosts(text)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"node1\nnode\xff\n", ":2: not UTF-8"),
        (b"node1\n\nnode2\0\n", ':3: host is "node2\\x00"'),
        (b"#" * (1024 * 1024 + 1), "larger than 1024 KiB"),
    ],
    ids=["latin-1", "binary", "large"],
)
def test_files_that_are_no_hostfiles(tmp_path: Path, data: bytes, fault: str):
    (tmp_path / "lab").write_bytes(data)
    with pytest.raises(HostfileError) as caught:
        read_hosts(str(tmp_path / "lab"))
    assert fault in str(caught.value)


@pytest.mark.promise("hostfiles: YAML, MPI, DeepSpeed, ranges, IPv6, samples")
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("lab.yaml", "head.lab,gpu01,gpu02,gpu03,gpu04,odd,spare1,spare2"),
        ("two-local.yaml", "127.0.0.1,127.0.0.2"),
        ("four-nodes.yaml", "node1,node2,node3,node4"),
        ("mpi.txt", "node1,node2,node3,node4"),
        ("deepspeed.txt", "worker-1,worker-2,worker-3"),
        ("ranges.yaml", "node[01-16],cpu[1,3,5-7],r[1-2]n[1-4].lab"),
        ("ipv6.yaml", "[fd00::1],[fd00::2],[fd00::3],[fe80::4%eth0]"),
    ],
)
def test_samples(name: str, names: str):
    hosts = {host.name: host for host in read_hosts(str(SAMPLES / name))}
    assert list(hosts) == [host.name for host in parse_list(names)]
    if name == "lab.yaml":
        assert hosts["gpu03"] == Host(
            "gpu03", address="10.0.1.3", user="trainer", slots=4, gpus=("0", "1", "2", "3"), labels=("fast",),
            python="/opt/venv/bin/python", workdir="/data/runs", source=f"{SAMPLES}/lab.yaml:16",
            env=(("OMP_NUM_THREADS", "8"), ("NCCL_SOCKET_IFNAME", "eth1")),
        )  # fmt: skip
    assert f"({name})" in (SAMPLES / "README.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------------- without hosts


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("", ()), (" 0,2", ("0", "2")), ("-1", ()), ("1,-1,2", ("1",)), ("GPU-8f", ("GPU-8f",))],
)
def test_gpus_of_this_machine(visible: str, gpus: tuple[str, ...]):
    assert this_machine({"CUDA_VISIBLE_DEVICES": visible}).gpus == gpus
