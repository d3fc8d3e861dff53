"""The probe, as the launcher talks to it: a process of its own, JSON lines both ways."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import probe_work
from launcher.agent.probe_facts import without_secret
from launcher.agent.probe_work import Commands, together
from launcher.model.watermark import agent_number, watermark
from launcher.processes import kernel
from tests.local.seeing import alive, named, soon

ROOT = str(Path(__file__).parents[3])
#: Seconds for what takes a moment, on a machine that has other work too.
SOON = 45.0
START = """\
import sys
sys.path.insert(0, sys.argv[1])
from launcher.agent.probe import main
sys.exit(main({"host": "x"}))
"""


class Probe:
    """A running probe."""

    def __init__(self) -> None:
        argv = [sys.executable, "-I", "-S", "-c", START, ROOT]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def say(self, **question: Any) -> None:
        self.stdin.write(json.dumps(question).encode() + b"\n")
        self.stdin.flush()

    def ask(self, **question: Any) -> Any:
        self.say(**question)
        return json.loads(self.stdout.readline())

    def facts(self, **changed: Any) -> Any:
        usual: dict[str, Any] = {
            "python": sys.executable,
            "workdir": None,
            "venv": None,
            "env": {},
            "seconds": SOON,
        }
        return self.ask(do="facts", **{**usual, **changed})["facts"]

    def end(self) -> tuple[int, bytes]:
        """Close its stdin: its exit status, and what it printed to stderr."""
        self.stdin.close()
        assert self.process.stderr
        status = self.process.wait(SOON)
        with self.process.stderr, self.stdout:
            return status, self.process.stderr.read()


@pytest.fixture
def probe() -> Iterator[Probe]:
    started = Probe()
    yield started
    started.stdin.close()  # so it ends what it runs
    try:
        started.process.wait(SOON)
    except subprocess.TimeoutExpired:
        started.process.kill()
    for stream in (started.stdin, started.stdout, started.process.stderr):
        assert stream
        stream.close()
    started.process.wait()


def test_one_errand_serves_a_whole_check(probe: Probe):
    before = time.time()
    assert before <= probe.ask(do="clock")["at"] <= time.time()
    assert probe.facts()["hostname"] == os.uname().nodename
    names = probe.ask(do="names", names=["127.0.0.1"], seconds=SOON)["names"]
    assert names["127.0.0.1"]["found"] == ["127.0.0.1"]
    port = probe.ask(do="listen", challenge="c", token="t")["port"]
    peers = [{"address": "127.0.0.1", "port": port, "token": "t"}]
    reached = probe.ask(do="connect", challenge="c", peers=peers, seconds=SOON, all_seconds=SOON)["pairs"]
    assert [pair["result"] for pair in reached] == ["ok"]
    assert 0 < reached[0]["rtt_s"] < 1
    assert probe.end() == (0, b"")


def test_several_requests_in_one_piece(probe: Probe):
    probe.stdin.write(b'{"do": "clock"}\n{"do": "clock"}\n{"do"')
    probe.stdin.flush()
    first, second = (json.loads(probe.stdout.readline()) for _ in range(2))
    assert first["at"] <= second["at"]
    assert probe.end()[0] == 0


def test_a_request_that_nobody_understands(probe: Probe):
    probe.say(do="dance")
    assert probe.stdout.read() == b""
    status, said = probe.end()
    assert status == 2 and b"no such request" in said


# ---------------------------------------------------------------------- facts


def test_facts_of_this_machine(probe: Probe, tmp_path: Path):
    facts = probe.facts(workdir=str(tmp_path))
    assert facts["cpus"] == len(os.sched_getaffinity(0))
    assert 0 < facts["available"] <= facts["memory"]
    assert len(facts["load"]) == 3
    assert facts["folders"]["workdir"] == {
        "path": str(tmp_path), "free": pytest.approx(_free(tmp_path), rel=0.2), "why": "",
    }  # fmt: skip
    assert facts["limits"]["files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert list(tmp_path.iterdir()) == [], "nothing is left of what was tried"


def _free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def test_a_folder_that_is_not_there(probe: Probe, tmp_path: Path):
    workdir = probe.facts(workdir=str(tmp_path / "nowhere"))["folders"]["workdir"]
    assert workdir["why"] == "No such file or directory" and workdir["free"] is None


def test_versions_without_importing_anything(probe: Probe, tmp_path: Path):
    """A TensorFlow that can't be imported has its version all the same."""
    for name, version in (("tensorflow_cpu", "2.19.1"), ("keras", "3.9.0")):
        package = tmp_path / f"{name}-{version}.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('imported')")
    python = probe.facts(env={"PYTHONPATH": str(tmp_path)})["task_python"]
    assert (python["state"], python["tensorflow"], python["distribution"]) == (
        "ok",
        "2.19.1",
        "tensorflow-cpu",
    )
    assert python["keras"] == "3.9.0"
    assert python["version"] == ".".join(map(str, sys.version_info[:3]))


def test_a_python_that_prints_before_it_answers(probe: Probe, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('hello', end='')")
    assert probe.facts(env={"PYTHONPATH": str(tmp_path)})["task_python"]["state"] == "ok"


@pytest.mark.parametrize(
    ("script", "state", "said"),
    [
        (None, "missing", "No such file or directory"),
        ("#!/bin/sh\necho broken >&2; exit 3\n", "failed", "broken"),
        ("#!/bin/sh\necho hello\n", "failed", "hello"),
        ("#!/bin/sh\nsleep 60 & sleep 60\n", "slow", ""),
    ],
)
def test_a_python_that_is_none(probe: Probe, tmp_path: Path, script: str | None, state: str, said: str):
    path = tmp_path / "python"
    if script is not None:
        path.write_text(script)
        path.chmod(0o755)
    python = probe.facts(python=str(path), seconds=0.5 if state == "slow" else SOON)["task_python"]
    assert (python["state"], python["said"]) == (state, said)


def test_a_name_is_looked_up_along_the_path_of_the_tasks(probe: Probe, tmp_path: Path):
    (tmp_path / "mine").symlink_to(sys.executable)
    assert probe.facts(python="mine")["task_python"]["state"] == "missing"
    python = probe.facts(python="mine", env={"PATH": str(tmp_path)})["task_python"]
    assert (python["state"], python["path"]) == ("ok", str(tmp_path / "mine"))


def test_a_path_is_relative_to_where_tasks_run(probe: Probe, tmp_path: Path):
    (tmp_path / "mine").symlink_to(sys.executable)
    python = probe.facts(python="./mine", workdir=str(tmp_path))["task_python"]
    assert (python["state"], python["path"]) == ("ok", str(tmp_path / "mine"))


def test_a_virtual_environment(probe: Probe):
    python = probe.facts(python="python", venv=sys.prefix)["task_python"]
    assert (python["state"], python["path"]) == ("ok", f"{sys.prefix}/bin/python")
    assert probe.facts(python="python", venv="/nowhere")["task_python"]["state"] == "missing"


def test_gpus(probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 0, GPU-12ab, NVIDIA H200, 143771 MiB\n")
    smi.chmod(0o755)
    with_path = Probe()
    found = with_path.facts()["gpus"]
    assert found == {
        "state": "ok",
        "said": "",
        "list": [{"index": "0", "uuid": "GPU-12ab", "name": "NVIDIA H200", "memory": "143771 MiB"}],
    }
    smi.write_text("#!/bin/sh\necho Driver/library version mismatch; exit 9\n")
    found = with_path.facts()["gpus"]
    assert (found["state"], found["said"], found["list"]) == ("failed", "Driver/library version mismatch", [])
    with_path.end()
    monkeypatch.setenv("PATH", "/nowhere")
    without = Probe()
    assert without.facts()["gpus"]["state"] == "none"
    without.end()


def test_proxies_come_without_their_password(probe: Probe):
    env = {"https_proxy": "http://me:secret@proxy:3128", "no_proxy": "a,b", "TF_CONFIG": "{}", "SECRET": "x"}
    found = probe.facts(env=env)["environment"]
    assert found["https_proxy"] == "http://proxy:3128"
    assert (found["no_proxy"], found["TF_CONFIG"]) == ("a,b", "set")
    assert "SECRET" not in found


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p@h:1/x", "http://h:1/x"),
        ("u:p@h:1", "h:1"),
        ("h:1", "h:1"),
        ("http://u:p@q@h", "http://h"),
    ],
)
def test_without_secret(url: str, shown: str):
    assert without_secret(url) == shown


def test_a_lost_process_is_a_leftover(probe: Probe, tmp_path: Path):
    """It carries a mark of a task, and no agent is above it. A launch beside us may sweep it: then again."""
    swept = True
    while swept:
        pid = _lost()
        left = probe.facts(python="/no/such")["leftovers"]
        swept = not _ended(pid) and {"pid": pid, "name": "sleep"} not in left["processes"]
    assert {"pid": pid, "name": "sleep"} in left["processes"]
    assert left["count"] >= 1


def _lost() -> int:
    """The pid of a process of a task that nobody looks after; 0 if somebody has swept it at once."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    mark = watermark(agent_number(int.from_bytes(os.urandom(8), "little")), 1)
    argv = ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 60 >/dev/null"]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, check=False, timeout=SOON,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard)),
    )  # fmt: skip
    pid = int(done.stdout or 0)
    soon(lambda: not alive(pid) or named({pid}, "sleep"))
    return pid


def _ended(pid: int) -> bool:
    """End it; whether it was there for that."""
    process = kernel.look_at(pid)
    return process is not None and not process.ended and kernel.send(process, signal.SIGKILL)


# ---------------------------------------------------------------------- the end


def test_the_end_of_stdin_ends_what_it_runs(probe: Probe, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ >"{tmp_path}/pid"\nsleep 60\n')
    python.chmod(0o755)
    probe.say(do="facts", python=str(python), workdir=None, venv=None, env={}, seconds=600.0)
    told = tmp_path / "pid"
    soon(lambda: told.exists() and told.read_text().endswith("\n"))
    pid = int(told.read_text())
    assert probe.end()[0] == 0
    assert not Path(f"/proc/{pid}").exists()


class _Clock:
    """The time of whoever made it is up once all others have looked at it so many times."""

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._came = threading.Semaphore(0)
        self._owner = threading.current_thread()
        self._began = False

    def monotonic(self) -> float:
        if threading.current_thread() is not self._owner:
            self._came.release()
            return 0.0
        if not self._began:
            self._began = True
            return 0.0
        while self._looks:
            assert self._came.acquire(timeout=SOON)
            self._looks -= 1
        return 1000.0


def test_what_is_not_done_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    """Each of three threads looks at the clock before it begins, and again after each job it has done."""
    monkeypatch.setattr(probe_work, "time", _Clock(looks=3 + 2))
    release = threading.Event()
    results = together([lambda: 1, lambda: release.wait(SOON), lambda: 3], 0.3)
    release.set()
    assert results == [1, None, 3]


def test_a_bounded_number_at_a_time():
    lock, now, most = threading.Lock(), 0, 0

    def job() -> bool:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        return True

    assert together([job] * 40, SOON, at_once=4) == [True] * 40
    assert most <= 4


def test_a_command_that_says_too_much():
    said = Commands().run([sys.executable, "-c", "print('x' * 10_000_000)"], SOON, dict(os.environ))
    assert len(said.text) == 64 * 1024
