"""The plain form of MPI, DeepSpeed and PBS."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from launcher.errors import HostfileError
from launcher.hostfile import parse
from launcher.job import Host

KNOWN = "expected one of address, user, port, slots, max_slots, python, venv, workdir, gpus, roles, labels"
PAIR = "expected KEY=VALUE (quotes in pairs, one host a line)"
SLOTS = "expected a whole number from 1 to 1000000"


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("a", Host("a")),
        ("a slots=4", Host("a", slots=4)),
        ("  a\tslots = 4  ", Host("a", slots=4)),
        ("a slots= 4 port =22", Host("a", slots=4, port=22)),
        ("a:4", Host("a", slots=4)),
        ("a cpu=4", Host("a", slots=4)),
        ("a count=4 max_slots=8", Host("a", slots=4, max_slots=8)),
        ("a max-slots=8", Host("a", max_slots=8)),
        ("a slots_max=8", Host("a", max_slots=8)),
        ("u@a", Host("a", user="u")),
        ("a username=u", Host("a", user="u")),
        ("a user=u port=2222 address=10.0.0.1", Host("a", user="u", port=2222, address="10.0.0.1")),
        ("a address=[fe80::2]", Host("a", address="fe80::2")),
        ("a gpus=2", Host("a", gpus=("0", "1"))),
        ("a gpus=0", Host("a", gpus=())),
        ("a gpus=1,3", Host("a", gpus=("1", "3"))),
        ("a gpus=GPU-8f,MIG-GPU-1/2/3", Host("a", gpus=("GPU-8f", "MIG-GPU-1/2/3"))),
        ("a labels=x,zone=a roles=ps,worker", Host("a", labels=("x", "zone=a"), roles=("ps", "worker"))),
        ("a python=/opt/py#3 # why", Host("a", python="/opt/py#3")),
        ('a workdir="/x y\'s"', Host("a", workdir="/x y's")),
        ("a workdir='/x # \"y'/z", Host("a", workdir='/x # "y/z')),
        ("a slots=2#", None),
        ("fe80::1", Host("fe80::1")),
        ("fe80::1%eth0 slots=2", Host("fe80::1%eth0", slots=2)),
        ("u@[fe80::1]:2 # c", Host("fe80::1", user="u", slots=2)),
        ("hosts:4", Host("hosts", slots=4)),
    ],
)
def test_lines(line: str, host: Host | None) -> None:
    text = f"# comment\n\n   # another\n{line}\n"
    if host is None:
        with pytest.raises(HostfileError):
            parse(text, "f")
    else:
        assert parse(text, "f") == (host._replace(source="f:4"),)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_and_a_byte_order_mark(end: str) -> None:
    text = f"\ufeffa slots=1{end}# c{end}b"
    assert parse(text, "f") == (Host("a", slots=1, source="f:1"), Host("b", source="f:3"))


def test_a_name_alone_comes_once_a_slot() -> None:
    hosts = parse("a\nb # x\na\nu@c\nu@c\na\n", "f")
    assert [(host.name, host.slots, host.source) for host in hosts] == [
        ("a", 3, "f:1"),
        ("b", None, "f:2"),
        ("c", 2, "f:4"),
    ]


def test_ranges() -> None:
    hosts = parse("n[1-2] slots=2 address=10.0.0.[5-6]\nm[1-2]", "f")
    assert [(host.name, host.address, host.slots) for host in hosts] == [
        ("n1", "10.0.0.5", 2),
        ("n2", "10.0.0.6", 2),
        ("m1", None, None),
        ("m2", None, None),
    ]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["f: no hosts; expected at least one"]),
        ("# only\n\n", ["f: no hosts; expected at least one"]),
        ("a\na slots=2", ['f:2: host "a" was already written at f:1; expected each host once']),
        ("a slots=2\n\na", ['f:3: host "a" was already written at f:1; expected each host once']),
        ("a:2\na:2", ['f:2: host "a" was already written at f:1; expected each host once']),
        ("a\nu@a", ['f:2: host "a" was already written at f:1; expected each host once']),
        ("n[1-2]\nn[1-2]", ['f:2: host "n1" was already written at f:1; expected each host once']),
        (
            "a slot=2 zzz=1",
            ['f:1: unknown key "slot"; did you mean "slots"?', f'f:1: unknown key "zzz"; {KNOWN}'],
        ),
        (
            "a slots=x\nb slots=\nc slots=0",
            [f'f:{n}: slots is "{x}"; {SLOTS}' for n, x in enumerate(("x", "", "0"), 1)],
        ),
        ("a slots=1 cpu=2", ['f:1: slots is said twice, again as "2"; expected it once']),
        ("a:1 slots=2", ['f:1: slots is said twice, as "1" with the name; expected it once']),
        ("u@a user=v", ['f:1: user is said twice, as "u" with the name; expected it once']),
        ("a slots=4 max-slots=2", ['f:1: max_slots is "2", slots "4"; expected at least as many max_slots']),
        ("a port=65536", ['f:1: port is "65536"; expected a whole number from 1 to 65535']),
        ("a gpus=0,0", ['f:1: gpus is "0,0"; expected "0" once']),
        ("a gpus=257", ['f:1: gpus is "257"; expected how many, from 0 to 256, or their ids, as in 0,1']),
        ("a gpus=all", ['f:1: gpus is "all"; expected how many, or their ids, as in 0,1 or GPU-8f3a']),
        ("a gpus=no", ['f:1: gpus is "no"; expected how many, or their ids, as in 0,1 or GPU-8f3a']),
        (
            "a\na slots=0",
            [
                'f:2: host "a" was already written at f:1; expected each host once',
                'f:2: slots is "0"; expected a whole number from 1 to 1000000',
            ],
        ),
        ("a gpus=,", ['f:1: gpus is ","; expected how many, or their ids, as in 0,1 or GPU-8f3a']),
        (
            "a python=-c",
            ['f:1: python is "-c"; expected the name or path of a program, not beginning with "-"'],
        ),
        ("a b", [f'f:1: "b"; {PAIR}']),
        (
            "a, b",
            [
                f'f:1: "b"; {PAIR}',
                'f:1: host is "a,"; expected a host\'s name: letters, digits and any of .-_, not beginning with - or .',
            ],
        ),
        ("a python= slots=4", [f'f:1: "python="; {PAIR}']),
        ("a workdir='x y", [f'f:1: "workdir=\'x"; {PAIR}']),
        ("n[1-3] address=x", ['f:1: "n[1-3]" makes 3 hosts, its address 1; expected as many of both']),
        ("n[1-5000]", ['f:1: 5000 hosts with "n[1-5000]"; expected at most 4096 in all']),
    ],
)
def test_faults(text: str, faults: list[str]) -> None:
    with pytest.raises(HostfileError) as caught:
        parse(text, "f")
    assert sorted(str(fault) for fault in caught.value.faults) == sorted(faults)
