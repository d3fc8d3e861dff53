"""A host whose agent speaks the protocol and lies: the host fails, and costs the launcher little."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.ssh.host import LabHost

pytestmark = pytest.mark.timeout(120)

#: Named as the Python of a host: takes the launcher's program, runs `CODE` instead when a task is to start.
AGENT = """\
#!{python} -IS
import json, os, sys, time
sys.path.insert(0, {root!r})
from launcher.events import *
from launcher.protocol import *
def read(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit(1)
    return data
_, _, program = [read(int(read(8))) for _ in range(3)]
os.write(1, b"\\n<tf-launcher program: ready>\\n")
channel = Channel(lambda: Decoder(False), json.loads(program)[1]["token"])
channel.connect(1, 0.0)
def raw(data):
    while data:
        data = data[os.write(1, data):]
def send(*messages):
    for message in messages:
        channel.send(message)
    while output := b"".join(channel.output(time.monotonic())):
        channel.sent(os.write(1, output))
def flood(message):
    raw(b"".join(encode(message)))
def start(task):
    send(TaskStarted("", now(), task, 1, 1))
    {code}
ready = False
while data := os.read(0, 1 << 16):
    for message in channel.receive(data):
        if isinstance(message, HoldPorts):
            send(PortsHeld("", now(), dict.fromkeys(message.tasks, 7)))
        if isinstance(message, StartTask):
            start(message.task)
    send(*[] if ready else [AgentReady("", now(), 1, {{}})])
    ready = True
"""


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("send(TaskOutput('', 'worker/0', 1, b'\\x1b[31mforged'))", "'worker/0', which is no task of"),
        ("send(TaskGone('', now(), 'ps/9', 1))", "'ps/9', which is no task of"),
        ("send(TaskExited('', now(), task, 1, 'zero', None, 0, 0.0, ''))", "code is not"),
        ("send(AgentReady('', float('nan'), 1, {}))", "at is not float"),
        ("send(PortsHeld('', now(), {task: -5}))", "there is no port -5"),
        ("send(StopTasks('', (task,), ()))", "StopTasks is not for this direction"),
        ("raw(b'\\xff' * 1000)", "a message of type 255"),
        ("raw(b'\\x05\\0\\0\\0\\x80' + bytes(1 << 20))", "a message of type 5"),
        ("while True: flood(TaskOutput('', task, 1, bytes(60000)))", ""),
        ("while True: flood(TaskSignalled('', now(), task, 1, 15, 1))", ""),
    ],
    ids=["other", "unknown", "type", "nan", "port", "direction", "code", "size", "output", "events"],
)  # fmt: skip
def test_a_hostile_agent(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path, code: str, text: str):
    root = str(Path(__file__).parents[2])
    evil = hosts[1].there(hosts[1].home) / "evil"
    evil.write_text(AGENT.format(python=sys.executable, root=root, code=code))
    evil.chmod(0o755)
    hosts[1].expected.append("evil")
    hostfile = tmp_path / "lab.yaml"
    hostfile.write_text("hosts: [{name: node1}, {name: node2, python: ~/evil}]")
    words = ["--quiet", "--no-check", "--timeout", "3", "--grace", "1", "--hosts", str(hostfile)]
    started = ssh_launch.start(*words, "--workers", "2", "--", "sleep", "300.5", cwd="/")
    peak = 0
    while started.process.poll() is None:
        status = Path(f"/proc/{started.process.pid}/status").read_text()
        peak = max([peak, *map(int, re.findall(r"VmHWM:\s+(\d+)", status))])
        time.sleep(0.1)
    ended = started.wait(60)
    assert ended.code in ((125,) if text else (124, 125)), ended.err
    assert "host node2 is lost: its agent " in ended.err
    assert text in ended.err
    assert "\x1b" not in ended.out + ended.err
    assert ended.elapsed < 40
    assert peak < 250_000, "kB of memory"
