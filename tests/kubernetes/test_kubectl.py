"""What kubectl says becomes one line for the user."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.backends.kubernetes.kubectl import Kubectl, explain
from launcher.backends.kubernetes.rights import RIGHTS
from launcher.common.errors import TransportError
from tests.conftest import Launch, Started, executable
from tests.kubernetes.cluster import Cluster

Start = Callable[..., Started]


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("", "kubectl: it exited with 1"),
        ('error: context "nope" does not exist\n', 'kubectl: context "nope" does not exist'),
        (
            'Error from server (Forbidden): pods is forbidden: User "x" cannot list\n',
            'kubectl: pods is forbidden: User "x" cannot list',
        ),
        (
            'Error from server (Forbidden): error when creating "STDIN": jobs.batch "a": too many\n',
            'kubectl: jobs.batch "a": too many',
        ),
        (
            'error: error validating "STDIN": error validating data: ValidationError(Job.spec): unknown '
            'field "x"; if you choose to ignore these errors, turn validation off with --validate=false\n',
            'kubectl: ValidationError(Job.spec): unknown field "x"',
        ),
        (
            "".join(f"Error from server (Forbidden): jobs.batch {name}: no\n" for name in "aabcde"),
            "kubectl: jobs.batch a: no; jobs.batch b: no; jobs.batch c: no; and 2 more errors",
        ),
        (
            'The Job "a" is invalid: \n* spec.x: Required value\n* spec.y: Required value\n',
            'kubectl: The Job "a" is invalid; * spec.x: Required value; * spec.y: Required value',
        ),
    ],
)
def test_errors(stderr: str, expected: str):
    assert explain(stderr, 1) == expected


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nosuch")
    with pytest.raises(TransportError, match="there is none along PATH"):
        Kubectl().ask("get", "pods")


@pytest.mark.parametrize("printed", ["", "no JSON", "{}", "[]", '{"items": [{}]}', '{"items": 5}'])
def test_it_prints_something_else(printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    executable(tmp_path / "kubectl", f"#!/bin/sh\necho '{printed}'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(TransportError, match="kubectl get pods prints no list of objects"):
        Kubectl().items("pods")


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [
        (signal.SIGINT, "Ctrl-C", 130),
        (signal.SIGHUP, "a hang-up of the terminal", 129),
        (signal.SIGUSR1, "the notice of a time limit (SIGUSR1)", 124),
    ],
)
def test_a_signal_while_it_does_not_answer(
    start: Start, kubernetes: Cluster, tmp_path: Path, number: signal.Signals, name: str, code: int
):
    """A line says what launch waits for; each signal stops the wait, and is named."""
    config = tmp_path / "config"
    os.mkfifo(config)  # kubectl waits for who writes to it
    started = start("--kubernetes", "x:1", "--workers", "1", "true", env={"KUBECONFIG": str(config)})
    started.until(lambda it: "waiting for an answer from kubectl" in it.err, 20)
    ended = started.stop(number, 10, code)
    assert f"launch: {name}: no task was started\n" in ended.err


def test_the_time_limit_of_the_start_is_that_of_a_kubectl(launch: Launch, tmp_path: Path):
    rights = "true\\n" * sum(map(len, RIGHTS.values()))
    program = tmp_path / "kubectl"
    executable(program, f"#!/bin/sh\ncase \"$*\" in *'get pods'*) exec sleep 99;; esac\nprintf '{rights}'\n")
    words = ("--kubernetes", "x:1", "--start-timeout", "1", "--workers", "1", "true")
    ended = launch.start(*words, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).wait(25, code=125)
    limit = "not all pods run after 1.0s (--start-timeout): kubectl get takes more than 1s\n"
    assert f"launch: {limit}" in ended.err


def test_an_error_in_the_pod_of_the_launcher_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert explain("error: no route to host\n", 1) == "kubectl in the launcher's pod: no route to host"
