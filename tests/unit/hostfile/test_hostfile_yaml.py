"""The YAML form, and how a form is told from another."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from launcher.errors import HostfileError
from launcher.hostfile import parse
from launcher.job import Host

FULL = """\
defaults: {user: bob, python: py3, labels: [d], env: {A: 1, B: 2}}
hosts:
  - no
  - eve@n[1-2]:3
  - name: m[01-02]
    address: 10.0.0.[1-2]
    port: 2222
    slots: 2
    max_slots: 4
    gpus: 2
    roles: [ps, worker]
    python: /opt/py
    workdir: /a b
    env: {B: no, C: 010}
    labels: {zone: a, rack: 07}
  - name: fe80::1
    gpus: [0, GPU-1]
    roles: ps
    labels: x, y
  - {name: 'u@[fe80::2]:4'}
"""


def test_everything() -> None:
    base = Host("", user="bob", python="py3", labels=("d",), env=(("A", "1"), ("B", "2")))
    m = base._replace(
        port=2222, slots=2, max_slots=4, gpus=("0", "1"), roles=("ps", "worker"), python="/opt/py",
        workdir="/a b", env=(("A", "1"), ("B", "no"), ("C", "010")), labels=("zone=a", "rack=07"), source="f.yml:5",
    )  # fmt: skip
    assert parse(FULL, "f.yml") == (
        base._replace(name="no", source="f.yml:3"),
        base._replace(name="n1", user="eve", slots=3, source="f.yml:4"),
        base._replace(name="n2", user="eve", slots=3, source="f.yml:4"),
        m._replace(name="m01", address="10.0.0.1"),
        m._replace(name="m02", address="10.0.0.2"),
        base._replace(
            name="fe80::1", gpus=("0", "GPU-1"), roles=("ps",), labels=("x", "y"), source="f.yml:16"
        ),
        base._replace(name="fe80::2", user="u", slots=4, source="f.yml:20"),
    )


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hosts: [a]", "f.yaml"),
        ("hosts: [a]", "F.YML"),
        ("hosts: [a]", "hosts"),
        ("# c\r\nhosts :\r\n- a\r\n", "f.txt"),
        ("\ufeffhosts:\n- a", "f"),
        ("a", "f"),
        ("a", "f.hosts"),
    ],
)
def test_the_form_is_told_by_ending_then_by_content(text: str, source: str) -> None:
    assert [host.name for host in parse(text, source)] == ["a"]


ONE = "expected one value"
A_LIST = "expected hosts: and a list of hosts"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", [f"f.yaml:1: the file has no value; {A_LIST}"]),
        ("a slots=4", [f'f.yaml:1: the file is "a slots=4"; {A_LIST}']),
        ("[a]", [f"f.yaml:1: the file is a list; {A_LIST}"]),
        ("defaults: {}", [f'f.yaml:1: "hosts" is missing; {A_LIST}']),
        ("hosts:", ["f.yaml:1: hosts has no value; expected a list of hosts"]),
        ("hosts: a,b", ['f.yaml:1: hosts is "a,b"; expected a list of hosts']),
        ("hosts: {a: 1}", ["f.yaml:1: hosts is a mapping; expected a list of hosts"]),
        ("hosts: []", ["f.yaml:1: no hosts; expected at least one"]),
        ("hosts: [a]\nhost: b", ['f.yaml:2: unknown key "host"; did you mean "hosts"?']),
        ("hosts: [null, [a]]", [f"f.yaml:1: a host has no value; {ONE}", f"f.yaml:1: a host is a list; {ONE}"]),
        ("hosts:\n- user: x", ['f.yaml:2: a host without "name"; expected name: and its name or address']),
        ("hosts:\n- a\n- name: a", ['f.yaml:3: host "a" was already written at f.yaml:2; expected each host once']),
        ("hosts:\n- fe80::1", ['f.yaml:2: host is "fe80::1"; expected an IPv6 address in brackets, as in [fe80::1]:2']),
        ("hosts:\n- name: a:2\n  slots: 3", ['f.yaml:3: slots is said twice, as "2" with the name; expected it once']),
        (
            "hosts:\n- name: [a]\n  slot: 1\n  slots: four\n  gpus: {}\n  env: [A]\n",
            [
                f"f.yaml:2: name is a list; {ONE}",
                'f.yaml:3: unknown key "slot"; did you mean "slots"?',
                'f.yaml:4: slots is "four"; expected a whole number from 1 to 1000000',
                f"f.yaml:5: gpus is a mapping; {ONE}",
                "f.yaml:6: env is a list; expected NAME: VALUE lines",
            ],
        ),
        ("hosts:\n- {name: a, gpus: many}", ['f.yaml:2: gpus is "many"; expected how many, or their ids, as in 0,1 or GPU-8f3a']),
        ("hosts:\n- a\n- name: a\n  slots: 0", [
            'f.yaml:3: host "a" was already written at f.yaml:2; expected each host once',
            'f.yaml:4: slots is "0"; expected a whole number from 1 to 1000000',
        ]),
        ("hosts:\n- {name: a, gpus: [1, 1]}", ['f.yaml:2: gpus is "1,1"; expected "1" once']),
        ("hosts:\n- {name: a, max_slots: 1}\ndefaults: {slots: 2}", ['f.yaml:2: max_slots is "1", slots "2"; expected at least as many max_slots']),
        ("defaults: {slots: 2, max_slots: 1}\nhosts: [a, b]", ['f.yaml:1: max_slots is "1", slots "2"; expected at least as many max_slots']),
        ("defaults: {name: x}\nhosts: [a]", ['f.yaml:1: unknown key "name"; expected one of user, port, slots, max_slots, python, venv, workdir, gpus, roles, labels, env']),
        ("hosts:\n- name: n[1-3]\n  address: x", ['f.yaml:2: "n[1-3]" makes 3 hosts, its address 1; expected as many of both']),
        ("hosts: [" + ", ".join(["a"] * 5000) + "]", ['f.yaml:1: host "a" was already written at f.yaml:1; expected each host once', "f.yaml:1: 5000 entries in hosts; expected at most 4096"]),
        ("hosts: 'a\n", ["f.yaml:1: \"hosts: 'a\" is not YAML: found unexpected end of stream"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_faults(text: str, faults: list[str]) -> None:
    with pytest.raises(HostfileError) as caught:
        parse(text, "f.yaml")
    assert sorted(str(fault) for fault in caught.value.faults) == sorted(faults)
