"""Ports: each task has its own, and nobody else gets it, however many launches run at once."""

from __future__ import annotations

import socket

import pytest

from tests.conftest import Launch
from tests.local.seeing import last_run, soon, stub


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_launches_at_once_twenty_times_over(launch: Launch):
    """16 tasks each serve on their port, and try to get those of the others."""
    for _ in range(20):
        both = [
            launch.start("--workers", "16", "--", *stub("binder", "{ps_hosts}", "{worker_hosts}"))
            for _ in range(2)
        ]
        for started in both:
            ended = started.wait(100)
            assert ended.code == 0, ended.out + ended.err


def test_several_hosts_have_their_own(launch: Launch):
    words = ["--hosts", "hostfiles/two-local.yaml", "--ps", "2", "--workers", "2"]
    ended = launch(*words, "--", *stub("binder", "{ps_hosts}", "{worker_hosts}"))
    assert ended.code == 0, ended.out + ended.err
    addresses = [task["address"] for task in last_run(launch).plan["tasks"]]
    assert {address.partition(":")[0] for address in addresses} == {"127.0.0.1", "127.0.0.2"}


def test_a_port_is_held_as_long_as_the_task_runs(launch: Launch):
    started = launch.start("--", "sleep", "60")
    run = soon(lambda: launch.state.exists() and [*launch.state.glob("*/plan.json")] and last_run(launch))
    port = run.plan["tasks"][0]["port"]
    with socket.socket() as mine, pytest.raises(OSError):
        mine.bind(("127.0.0.1", port))
    started.send(15)
    started.wait()
    soon(lambda: _is_free(port))  # at once, unless somebody else has just been given it


def _is_free(port: int) -> bool:
    with socket.socket() as mine:
        try:
            mine.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
