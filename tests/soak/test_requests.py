"""What programs of the same user may send to a running launcher: random requests and commands end no job.

``make test`` sends a tenth of them; with ``LAUNCH_SOAK`` all are sent.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.backends import WAITS
from tests.conftest import COMMAND, Launch, examples
from tests.seeing import last_run, soon

#: Requests to the control socket, lines for --commands-fd.
_REQUESTS, _COMMANDS = examples(2000, 10), examples(500, 10)
_SEED = 20261128
_NAMES = ("request", "tasks", "from", "measure", "output", "task", "signal", "all", "first", "host", "", "é")
#: Kinds of requests, and names of tasks that the job does not have: a right name would restart a task.
_WORDS = (
    "tasks", "restart", "follow", "worker", "nobody/0", "worker/7-9", "worker/0/0", "", "\x1b[31m", "\ud800",
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2**31, 2**63, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), True, False, None,
)  # fmt: skip

pytestmark = pytest.mark.timeout(1200)


def value(chance: random.Random, depth: int = 0) -> Any:
    """A random JSON value."""
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind < 3:
        return chance.choice(_WORDS[:1] + _WORDS[4:])
    if kind < 5:
        return chance.choice(_NUMBERS)
    if kind < 7:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(_NAMES): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def packets(chance: random.Random, count: int) -> Iterator[bytes]:
    """Random packets: objects with known keys, other JSON, cut and damaged JSON, bytes."""
    for number in range(count):
        fields: Any = {name: value(chance) for name in chance.sample(_NAMES, chance.randrange(6))}
        if chance.random() < 0.7:
            fields["request"] = chance.choice(_WORDS[:3])
        if number % 8 == 0:
            fields = value(chance)
        data = json.dumps(fields).encode()
        if number % 9 == 0:
            data = data[: chance.randrange(len(data) + 1)] + chance.randbytes(chance.randrange(9))
        if number % 97 == 0:
            data = b"[" * 30_000
        yield data


def asked(name: str, packet: bytes) -> dict[str, Any] | None:
    """The answer of a launcher; None if it closes the connection without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(30)
        peer.connect(f"\0tf-launcher-{name}")
        peer.send(packet)
        with suppress(ConnectionError):
            _, files, _, _ = socket.recv_fds(peer, 1 << 16, 1)
            if files:
                with open(files[0], "rb") as file:
                    file.seek(0)
                    answer: dict[str, Any] = json.load(file)
                    return answer
    return None


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


#: Requests, and what their errors name.
WRONG: list[tuple[Any, str]] = [
    ({"request": "follow", "from": 1.5}, "first"),
    ({"request": "follow", "from": -1}, "first"),
    ({"request": "restart", "tasks": [7]}, "tasks"),
    ({"request": "restart", "tasks": ""}, "tasks"),
    ({"request": "restart", "tasks": []}, "no task"),
    ({"request": "restart"}, "tasks"),
    ({"request": "stop", "tasks": []}, "no task"),
    ({"request": "stop"}, "tasks"),
    ({"request": "start"}, "restart"),
    ({"request": "tasks", "measure": 1}, "measure"),
    ({"request": ["tasks"]}, "tasks"),
    ([], "object"),
]


@pytest.mark.promise("no request to the control socket and no line of `--commands-fd` ends a job")
def test_requests_to_the_control_socket(launch: Launch):
    """What is wrong with one is named."""
    started = launch.start("--workers", "2", "--", *WAITS).up(2)
    name = last_run(launch).path.name
    for request, error in WRONG:
        answer = asked(name, json.dumps(request).encode())
        assert answer is not None and error in answer["error"], request
    assert asked(name, b'{"request": "tasks"}')
    before = descriptors(started.pid)
    answers = [asked(name, packet) for packet in packets(random.Random(_SEED), _REQUESTS) if packet]
    refused = [answer for answer in answers if answer is not None and "error" in answer]
    assert len(refused) > len(answers) // 2
    assert None not in answers
    soon(lambda: descriptors(started.pid) <= before)
    tasks = json.loads(launch.here("ps", "--json", name).out)
    assert [(task["state"], task["attempt"]) for task in tasks] == [("running", 1)] * 2
    ended = started.stop(2, code=130)
    assert "Traceback" not in ended.err


@pytest.mark.promise("no request to the control socket and no line of `--commands-fd` ends a job")
def test_commands_of_the_program_that_started_launch(launch: Launch):
    commands, ours = os.pipe()
    words = ["--commands-fd", str(commands), "--workers", "2", "--", *WAITS]
    errors = launch.home / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, *words],
            env={**os.environ, **launch.environment()},
            pass_fds=[commands],
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        os.close(commands)
        tasks = soon(lambda: json.loads(launch.here("ps", "--json", "latest").out or "[]"), 20)
        assert len(tasks) == 2
        before = descriptors(process.pid)
        lines = [packet for packet in packets(random.Random(_SEED), _COMMANDS) if b"\n" not in packet]
        with open(ours, "wb") as pipe:
            for line in lines:
                pipe.write(line + b"\n")
            pipe.write(b'{"task": "worker/1", "signal": 9, "all": false}\n')
            pipe.flush()
            assert process.wait(60) == 137  # the valid command after all the others
        assert before  # it was running
    finally:
        process.kill()
        process.wait()
    said = errors.read_text()
    assert "Traceback" not in said
    assert said.count("--commands-fd is not valid") >= len(lines) // 2
