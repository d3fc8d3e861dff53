"""``--hosts h1:2,h2``: what it means, and what is wrong with what."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from launcher.errors import HostfileError
from launcher.hostfile import parse_inline
from launcher.job import Host

NAME = "expected a host's name: letters, digits and any of .-_, not beginning with - or ."
USER = "expected a user's name: letters, digits and any of ._-+@\\, not beginning with -"
BRACKETS = "expected an IPv6 address in brackets, as in [fe80::1]:2"
SLOTS = 'expected slots from 1 to 1000000 after the ":"'


def host(name: str, slots: int | None = None, user: str | None = None) -> Host:
    return Host(name, slots=slots, user=user, source="--hosts")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h1", [host("h1")]),
        ("h1:2,h2", [host("h1", 2), host("h2")]),
        (" h1:2 , h2 ", [host("h1", 2), host("h2")]),
        ("user@h3:4", [host("h3", 4, "user")]),
        ("me@corp.org@h", [host("h", None, "me@corp.org")]),
        ("DOM\\me@h", [host("h", None, "DOM\\me")]),
        ("[fe80::1]:2", [host("fe80::1", 2)]),
        ("[::1]", [host("::1")]),
        ("u@[fe80::1%eth0]", [host("fe80::1%eth0", None, "u")]),
        ("127.0.0.1,010,a_b.c-d.", [host("127.0.0.1"), host("010"), host("a_b.c-d.")]),
        ("n[01-02]:2,m[1,3]", [host("n01", 2), host("n02", 2), host("m1"), host("m3")]),
        ("u@r[1-2]n[1-2].lab", [host(f"r{r}n{n}.lab", None, "u") for r in (1, 2) for n in (1, 2)]),
        ("10.0.0.[9-10]", [host("10.0.0.9"), host("10.0.0.10")]),
        ("h:1000000", [host("h", 1_000_000)]),
        ("x" * 253, [host("x" * 253)]),
    ],
)
def test_hosts(text: str, hosts: list[Host]) -> None:
    assert list(parse_inline(text)) == hosts


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["--hosts: no hosts; expected at least one"]),
        ("  ", ["--hosts: no hosts; expected at least one"]),
        ("h1,,h2", [f'--hosts: host is ""; {NAME}']),
        ("h1,", [f'--hosts: host is ""; {NAME}']),
        ("-oProxyCommand=x", [f'--hosts: host is "-oProxyCommand=x"; {NAME}']),
        ("-l@h,@h", [f'--hosts: host is "-l@h"; {USER}', f'--hosts: host is "@h"; {USER}']),
        ("..", [f'--hosts: host is ".."; {NAME}']),
        ("a/b,a b,ü,a\nb", [f'--hosts: host is "{x}"; {NAME}' for x in ("a/b", "a b", "ü", "a\\nb")]),
        ("h:0,h:x,h:,h:01", [f'--hosts: host is "{x}"; {SLOTS}' for x in ("h:0", "h:x", "h:", "h:01")]),
        ("fe80::1,::1", [f'--hosts: host is "{x}"; {BRACKETS}' for x in ("fe80::1", "::1")]),
        ("[fe80::1]x", [f'--hosts: host is "[fe80::1]x"; {BRACKETS}']),
        (
            "[fe80::x]",
            [
                '--hosts: host is "[fe80::x]"; expected a name without ":", or an IPv6 address as in fe80::1%eth0'
            ],
        ),
        (
            "[fe80::1%-o]",
            [
                '--hosts: host is "[fe80::1%-o]"; expected a name without ":", or an IPv6 address as in fe80::1%eth0'
            ],
        ),
        ("n[1-2", ['--hosts: host is "n[1-2"; expected brackets in pairs, as in node[01-16]']),
        ("n[3-1]", ['--hosts: host is "n[3-1]"; expected a range that goes up, as in [1-3]']),
        ("n[1-999999999]", ['--hosts: 999999999 hosts with "n[1-999999999]"; expected at most 4096 in all']),
        ("n[1-4096],m", ['--hosts: 4097 hosts with "m"; expected at most 4096 in all']),
        ("h,h", ['--hosts: host "h" was already written; expected each host once']),
        ("n2,n[1-3]:2", ['--hosts: host "n2" was already written; expected each host once']),
        ("n[1,1]", ['--hosts: host "n1" was already written; expected each host once']),
        (
            "10.0.0.256",
            ['--hosts: host is "10.0.0.256"; expected an IPv4 address, four numbers from 0 to 255'],
        ),
        (
            "10.0.0.[255-256]",
            ['--hosts: host is "10.0.0.256"; expected an IPv4 address, four numbers from 0 to 255'],
        ),
        ("x" * 254, [f'--hosts: host is "{"x" * 77}..."; expected at most 253 characters in a host\'s name']),
    ],
)
def test_faults(text: str, faults: list[str]) -> None:
    with pytest.raises(HostfileError) as caught:
        parse_inline(text)
    assert [str(fault) for fault in caught.value.faults] == faults


def test_the_source_is_the_callers() -> None:
    assert parse_inline("h", "job.yaml:3")[0].source == "job.yaml:3"
