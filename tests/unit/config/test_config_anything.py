"""Whatever is given, there are hosts, a job or faults: no other exception, and no blow-up."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.backends import sections
from launcher.common.errors import HostfileError
from launcher.config.hostfile import parse_hostfile, parse_list
from launcher.config.jobfile import parse_job
from tests.conftest import examples

#: Examples of each property; some thousands for a long search.
EXAMPLES = examples(200)

PIECES = [
    "node", "node1", "h", "user@", "@", ":", ":2", ":22", ":2222", "::", "fe80::1", "[fe80::1]", "%eth0", "[", "]", "[1-3]",
    "[01-16]", "[3-1]", "[1,2]", "[1-999999999]", ",", "-", ".", " ", "\t", "\n", "\r\n", "#", "=", "'", '"',
    "slots", "slots=2", "max-slots=", "gpus=", "0,1", "labels=", "a=b", "address=", "10.0.0.", "256", "\\", "\x00",
    "\ufeff", "é", "port=99999", "user=", "127.0.0.1",
]  # fmt: skip
YAML_PIECES = [
    "hosts:", "defaults:", "roles:", "worker: ", "count: ", "env: ", "command: ", "docker: ", "options: ", "drain: ", "name:", "name: ", "slots: ", "gpus: ", "env: ", "labels: ", "roles: ", "address: ",
    "\n", "\n  ", "\n- ", "\n  - ", "- ", "{", "}", "[", "]", ", ", ": ", "? ", "&a ", "*a", "<<: ", "!!str ", "!x ",
    "|\n", ">\n ", "'", '"', "#", "---\n", "...\n", "%YAML 1.1\n", "\t", "null", "~", "2", "n[1-3]", "x", "A",
    '"\\ud800"', '"\\UFFFFFFFF"', "\x85", "\u2028", "@", "`",
]  # fmt: skip

anything = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(), max_size=20),
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
)
yamlish = st.one_of(
    st.lists(st.sampled_from([*YAML_PIECES, *PIECES]), max_size=14).map("".join),
    st.lists(st.sampled_from(YAML_PIECES), max_size=16).map(
        lambda pieces: "hosts:\n- name: a\n  " + "".join(pieces)
    ),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.one_of(anything, yamlish), st.sampled_from(["x", "x.yaml", "--hosts"]))
@example("\ud800", "x")
@example("hosts: ['\ud800']", "x.yaml")
def test_hosts_or_faults(text: str, source: str) -> None:
    try:
        hosts = parse_list(text) if source == "--hosts" else parse_hostfile(text, source)
    except HostfileError as error:
        assert error.faults
        assert all(fault.where.startswith(source) for fault in error.faults)
        assert str(error).encode()
        return
    assert 0 < len(hosts) <= 4096
    assert len({host.name for host in hosts}) == len(hosts)
    for host in hosts:
        for word in (host.name, host.address or "x", host.user or "x", host.python or "x"):
            assert word
            assert not word.startswith("-")
            assert not set(word) & set("\n\r\t\x00")
        assert host.name.isascii()
        assert not set(host.name) & set(" []@,/'\"\\")
        assert host.slots is None or host.slots >= 1
        assert source != "--hosts" or host.slots != 22 and (host.slots or 1) < 1024


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    yamlish, st.sampled_from(["", "command: a\nroles:\n  worker: 1\n", "command: a\nroles:\n  worker:\n    "])
)
def test_a_job_or_faults(text: str, start: str) -> None:
    found = parse_job(start + text, "j", {}, sections())
    assert "\n".join(map(str, found.faults)).encode() or found.roles
    assert all(role.count > 0 and role.program.name for role in found.roles)
