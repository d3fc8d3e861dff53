"""Hosts on which no program of ours runs: each message says what is in its way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.conftest import Launch
from tests.ssh.host import LabHost

pytestmark = pytest.mark.timeout(240)
#: What a host gets, and the message.
Case = tuple[Callable[[LabHost], object], str]
BROKEN_PYTHON = "#!/bin/sh\necho no libpython >&2\nexit 3\n"


def errors(launch: Launch, hosts: str) -> list[str]:
    """Why each host cannot be used, as ``launch check`` reports it; empty: it can."""
    ended = launch("check", "--json", hosts, cwd=launch.home, timeout=120, code=125)
    return [host["error"] or "" for host in json.loads(ended.out)["hosts"]]


def starts_with(command: str, message: str) -> Case:
    """A start-up file with this command, and the message about it."""
    text = rf"a start-up file of its login shell \(~/.bashrc\?\) {message}"
    return lambda host: host.start_up(command), text


@pytest.mark.parametrize(
    "cases",
    [
        (
            (lambda host: host.banner("#" * 70_000), "printed more than 64 KiB"),
            (
                lambda host: host.set_shell("/usr/sbin/nologin"),
                "login shell exited with 1 .*not available",
            ),
            starts_with("read x", "reads standard input"),
            starts_with("cat", "reads standard input"),
        ),
        # The other shell reads our input as its commands: it runs none of them.
        tuple(starts_with(f"exec {shell}", "replaces it by ") for shell in ("zsh -l", "tcsh", "csh", "ksh")),
        (
            *(starts_with(f"exec {shell}", "replaces it by another shell") for shell in ("dash", "bash -l")),
            (lambda host: host.program("python3", BROKEN_PYTHON), "exited with 3 and printed: no libpython"),
            (LabHost.no_python, "there is no python3 there"),
        ),
    ],
    ids=["input", "shells", "pythons"],
)
def test_what_is_in_the_way_is_named(ssh_launch: Launch, hosts: list[LabHost], cases: tuple[Case, ...]):
    for host, (change, _) in zip(hosts, cases, strict=True):
        change(host)
    found = errors(ssh_launch, "node1,node2,node3,node4")
    for error, (_, message) in zip(found, cases, strict=True):
        assert re.search(message, error), found


def test_a_server_that_opens_no_session(ssh_launch: Launch, hosts: list[LabHost]):
    with hosts[0].sshd_with("MaxSessions 0"):
        (error,) = errors(ssh_launch, "node1")
    assert "its ssh server opens no further session" in error


def test_the_python_of_the_hostfile_is_used_and_missed(ssh_launch: Launch, hosts: list[LabHost]):
    """A relative one is that of the folder where tasks run, which need not be there yet."""
    folder = hosts[1].home / "my own"
    folder.mkdir()
    (folder / "python").symlink_to("/usr/bin/python3")
    hosts[1].expected.append("my own")
    pythons = ("~/no such/python", "~/my own/python", "venv/bin/python")
    records = [{"name": f"node{number}", "python": python} for number, python in enumerate(pythons, 1)]
    (ssh_launch.home / "lab.yaml").write_text(json.dumps({"hosts": records}))
    missed, *used = errors(ssh_launch, "lab.yaml")
    assert "there is no ~/no such/python there" in missed
    assert used == ["", ""]
