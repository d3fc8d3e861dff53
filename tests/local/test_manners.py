"""How the program behaves as one of many: on a full disk, in a narrow terminal, in process lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.local.seeing import Family, named, soon

PROGRAM = (sys.executable, "-m", "launcher")
_MUCH = ["--dry-run", "--workers", "300", "true"]


@pytest.mark.parametrize(
    "command", [_MUCH, ["ps", "--all", "--json"], ["hosts", "hostfiles/lab.yaml"], ["--help"]]
)
@pytest.mark.parametrize("to", [">/dev/full", ">/dev/full 2>&1"])
def test_a_full_disk_is_one_line(launch: Launch, command: list[str], to: str):
    for _ in range(2):
        launch("--", "true")
    ended = launch.start(*command, command=("sh", "-c", f'"$@" {to}', "sh", *PROGRAM)).wait()
    assert ended.code == 125
    expected = "" if "2>" in to else "launch: can't write the output: [Errno 28] No space left on device\n"
    assert ended.err == expected


@pytest.mark.parametrize(
    "narrow", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_name_without_letters_for_it_is_shown_with_escapes(
    launch: Launch, narrow: dict[str, str], weird_path: Path
):
    env = {**narrow, "PYTHONUTF8": "0"}
    ended = launch("--dry-run", "--workdir", weird_path, "true", env=env)
    assert (ended.code, ended.err) == (0, "")
    assert any(spelled in ended.out for spelled in (r"\xe9", r"\udcc3\udca9", r"\303\251"))
    hosts = weird_path / "hosts.yaml"
    hosts.write_text("hosts:\n- {name: a, workdir: /\u00e9}\n", encoding="utf-8")
    assert launch("hosts", hosts, env=env).code == 0
    assert launch("--", "echo", "\u00e9", env=env).code == 0
    assert launch("ps", "--all", env=env).code == 0


_INTERRUPTED = """
import os, signal, sys
class Finder:
    left = int(sys.argv.pop(1))
    def find_spec(self, name, path, target=None):
        if "launcher.__main__" in sys.modules:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv[0] = "launch"
from launcher.__main__ import main
main()
"""


@pytest.mark.timeout(300)
def test_ctrl_c_during_any_import_leaves_no_traceback(launch: Launch):
    for number in range(1, 1000, 7):
        command = (sys.executable, "-c", _INTERRUPTED, str(number))
        ended = launch.start("--dry-run", "true", command=command).wait()
        if ended.code == 0:
            break
        assert (ended.code, ended.err) == (130, ""), number
    assert 10 < number < 999


# ---------------------------------------------------------------------- in process lists


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_who_looks_for_the_launcher_finds_it_alone(launch: Launch, family: Family):
    """``pkill -f launch`` ends a job orderly: neither its agent nor the agent's guardian is hit, too."""
    started = launch.start("--workers", "1", "--", "sleep", "60")
    (agent,) = soon(lambda: named(family.alive(), "sleep") and named(family.alive(), "launch-agent"))
    (guardian,) = named(family.alive(), "launch-watchdog")
    assert b"launcher" in _command_line(started.pid)
    for pid in (agent, guardian):
        assert _command_line(pid).rstrip(b"\0") == b"tf-agent localhost"
    found = subprocess.run(["ps", "-o", "args=", "-p", str(agent)], capture_output=True, check=True)
    assert found.stdout.strip() == b"tf-agent localhost"
    started.send(15)
    assert started.wait().code == 143


def test_no_value_stands_on_the_command_line(launch: Launch, family: Family):
    words = ["-x", "TOKEN", "-x", "HOME", "--workers", "1"]
    started = launch.start(*words, "--", "sh", "-c", "echo $TOKEN; sleep 60", env={"TOKEN": "secret-one"})
    started.until(lambda it: "worker/0 | secret-one" in it.out)
    for pid in [
        started.pid,
        *named(family.alive(), "launch-agent"),
        *named(family.alive(), "launch-watchdog"),
    ]:
        assert b"secret" not in _command_line(pid)
    started.send(15)
    assert started.wait().code == 143
