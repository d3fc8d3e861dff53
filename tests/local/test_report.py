"""``launch report``: what happened in a run that has ended, that runs, or whose launcher died."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from launcher.clock_times import time_in_words, time_stamp
from tests.conftest import Launch
from tests.seeing import RunFolder, last_run, soon

#: worker/1 fails in its first two attempts, each time for another reason.
NIGHT = """
import os, time
attempt = os.environ["LAUNCH_ATTEMPT"]
print("attempt", attempt, flush=True)
if os.environ["TASK_INDEX"] == "1" and attempt < "3":
    raise ValueError(f"bad row in shard {attempt}")
"""
HOUR = 3600.0


def long_ago(run: RunFolder, began_at: float) -> None:
    """Change the times in the files of a run: it began then, and took an hour. A host was lost after half."""
    report = run.report
    start, took = report["started_at"], report["ended_at"] - report["started_at"]

    def moved(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: moved(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [moved(each) for each in value]
        is_time = name in ("at", "started_at", "ended_at") and value is not None
        return began_at + (value - start) * HOUR / took if is_time else value

    for name in ("report.json", "launcher.json"):
        content = json.loads((run.path / name).read_text())
        (run.path / name).write_text(json.dumps(moved(content)))
    lost = {"event": "AgentLost", "host": "node3", "why": "node3: no answer for 60s", "all_gone": False}
    told = {"event": "Tell", "text": "host node3 is lost: no answer for 60s", "urgent": True}
    half = [{**event, "at": began_at + HOUR / 2} for event in (lost, told)]
    events = sorted([*moved(run.events), *half], key=lambda event: event["at"])
    (run.path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


@pytest.mark.promise("`launch report`: attempts, restarts, lost hosts and the first failure of any run")
def test_what_happened_last_night(launch: Launch):
    words = ("--name", "night", "--note", "new data", "--workers", "2", "--restarts", "2", "--restart", "job")
    assert launch(*words, "-c", NIGHT).code == 0
    run, began_at = last_run(launch), time.time() - 12 * HOUR
    long_ago(run, began_at)
    ended = launch.here("report", "night", code=0)
    head, note, began, *_ = ended.out.splitlines()
    assert head.startswith(f"night ({run.path.name}): -c ") and note == "note: new data"
    assert began.startswith(f"began {time_in_words(began_at, time.time())}, ended ") and "1h00m" in began
    rows = re.findall(r"(?m)^worker/1 +(\d) +localhost  (.{19})  (.{19}) +\S+  (\w+) +(.*)$", ended.out)
    assert [(number, state) for number, _, _, state, _ in rows] == [
        ("1", "failed"), ("2", "failed"), ("3", "succeeded"),
    ]  # fmt: skip
    assert [cause for *_, cause in rows[:2]] == [
        "exit code 1: ValueError: bad row in shard 1", "exit code 1: ValueError: bad row in shard 2",
    ]  # fmt: skip
    assert rows[0][1] >= time_stamp(began_at) and rows[0][2] < rows[1][1] < rows[2][2]
    told = re.findall(r"(?m)^(\d{4}-\d\d-\d\d .{8})  (.*)$", ended.out)
    assert told == sorted(told), "in the order of their times"
    assert sum("starting worker/0, worker/1 again" in text for _, text in told) == 2
    assert (time_stamp(began_at + HOUR / 2), "host node3 is lost: no answer for 60s") in told
    assert ended.out.splitlines()[-1] == f"job {run.path.name}: ok in 1h00m, tasks started again 2 times"
    as_json = json.loads(launch.here("report", "--json").out)
    assert run.report.items() <= as_json.items() and as_json["state"] == "ended"
    (lost,) = as_json["lost_hosts"]
    assert (lost["host"], lost["why"]) == ("node3", "no answer for 60s")


def test_the_first_failure(launch: Launch):
    """As at the end of the launch, with its hint."""
    ended = launch("--workers", "2", "-c", "import nowhere")
    shown = launch.here("report", "latest").out
    report = ended.err[ended.err.index("launch: first to fail") :]
    assert "hint: " in report and report in shown
    assert shown.splitlines()[-2:] == ended.out.splitlines()[-2:]


#: Fails once, then runs on.
RUNS_ON = "import os, time\nif os.environ['LAUNCH_ATTEMPT'] == '1': raise ValueError('once')\ntime.sleep(300)"


def test_a_run_that_runs_and_then_its_launcher_is_killed(launch: Launch, tmp_path: Path):
    started = launch.start("--restarts", "1", "-c", RUNS_ON)
    started.until(lambda it: "starting worker/0 again" in it.err)
    soon(lambda: asked(launch)["tasks"][0]["state"] == "running" and asked(launch)["restarts"] == 1)
    runs = launch.here("report", code=0).out
    assert "ValueError: once" in runs and "runs for" in runs.splitlines()[1]
    assert launch.here("report", "--junit", tmp_path / "no.xml").code == 125
    assert not (tmp_path / "no.xml").exists(), "it has not ended"
    started.send(signal.SIGKILL)
    started.wait()
    died = asked(launch)
    (task,) = died["tasks"]
    assert (died["state"], died["exit_code"], died["restarts"]) == ("died", 125, 1)
    assert (died["failure"]["reason"], died["failure"]["task"]) == ("launcher", None)
    assert (task["attempt"], task["state"], task["earlier"][0]["detail"]) == (2, "lost", "exit code 1")
    assert "ValueError: once" in launch.here("report").out
    assert launch.here("report", "--junit", tmp_path / "junit.xml", code=0).out.count("died") >= 2
    assert cases(tmp_path / "junit.xml") == {"worker/0": ("error",), "job": ("error",)}


def asked(launch: Launch) -> Mapping[str, Any]:
    """What ``launch report --json`` prints."""
    answer: Mapping[str, Any] = json.loads(launch.here("report", "latest", "--json").out)
    return answer


def test_a_launcher_that_died_while_a_task_had_failed(launch: Launch):
    """The task is the first failure."""
    assert launch("--workers", "2", "--", "sh", "-c", "exit $((7 * TASK_INDEX))").code == 7
    run = last_run(launch)
    (run.path / "report.json").unlink()
    died = asked(launch)
    assert (died["failure"]["task"], died["failure"]["reason"]) == ("worker/1", "exit")
    assert {task["task"]: task["state"] for task in died["tasks"]} == run_states(run)


def run_states(run: RunFolder) -> dict[str, str]:
    """The last state of each task, by its events."""
    return {event["task"]: event["state"] for event in run.events if event["event"] == "TaskMoved"}


DAMAGE = {
    "no events": b"",
    "no JSON": b"\xff{\n[]\n7\nnull\n" + b"[" * 9000 + b"\n",
    "no fields": b'{"event": "TaskMoved"}\n{"event": "Tell", "at": "x"}\n{"event": "AgentLost", "at": 1.0}\n',
    "other types": b'{"event": "TaskMoved", "at": 1.0, "task": "worker/0", "attempt": [], "state": {}}\n',
    "no such times": b"".join(
        b'{"event": "Tell", "at": %b, "text": "x"}\n' % at for at in (b"1e99", b"NaN", b"-1", b"1" * 400)
    ),
    "control characters": b'{"event": "Tell", "at": 1.0, "text": "\\u001b[2J"}\n' * 2,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_whose_files_are_damaged(launch: Launch, damage: str):
    assert launch("true").code == 0
    run = last_run(launch)
    (run.path / "events.jsonl").write_bytes(DAMAGE[damage])
    for words in ((), ("--json",)):
        ended = launch.here("report", *words, code=0)
        assert "Traceback" not in ended.err and "\x1b" not in ended.out
    (run.path / "report.json").unlink()
    assert "Traceback" not in launch.here("report", code=0).err


@pytest.mark.parametrize("field", ["started_at", "ended_at", "job", "text", "hint", "task", "detail"])
def test_a_report_of_somebody_else(launch: Launch, tmp_path: Path, field: str):
    """It may have any time, and texts that would control the terminal."""
    assert launch("--workers", "2", "--ps", "1", "--", "false").code == 1
    run, is_time = last_run(launch), field.endswith("_at")
    is_refused = is_time or field == "task"
    report = run.report
    for where in (report, report["failure"], *report["tasks"]):
        if field in where:
            where[field] = 10**18 if is_time else f"{where[field]}\x1b[2J\n\x9b"
    (run.path / "report.json").write_text(json.dumps(report))
    for words in (
        ("report",),
        ("report", "--junit", str(tmp_path / "junit.xml")),
        ("attach",),
        ("ps", "-a"),
        ("stop", "latest", "ps/0"),
    ):
        ended = launch.here(*words)
        assert ended.code == 125 if is_refused and words[0] == "report" else ended.code in (0, 1, 125)
        assert "Traceback" not in ended.err
        assert not {"\x1b", "\x9b"} & {*ended.out, *ended.err}
    assert is_refused or len(cases(tmp_path / "junit.xml")) == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [(["nonsense"], 2), (["--junit", ""], 2), (["--junit", "no/such/folder.xml"], 125), (["a", "b"], 2)],
)
def test_wrong_words(launch: Launch, words: list[str], code: int):
    assert launch("true").code == 0
    ended = launch.here("report", *words)
    assert ended.code == code and ended.err.startswith(("launch: ", "usage: ")) and not ended.out


# ---------------------------------------------------------------------- CI


def cases(path: Path) -> dict[str, tuple[str, ...]]:
    """The cases of a file of JUnit, with what is in each."""
    suites = ElementTree.parse(path).getroot()
    found = {case.get("name", ""): tuple(each.tag for each in case) for case in suites.iter("testcase")}
    (suite,) = suites
    assert suite.get("tests") == str(len(found))
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    for name, tag in counts.items():
        assert suite.get(name) == str(sum(tag in tags for tags in found.values()))
    return found


@pytest.mark.promise("`launch report --junit` and annotations show CI the first failure")
def test_a_file_for_ci(launch: Launch, tmp_path: Path):
    """Whatever a task has printed."""
    script = r"printf 'bad \033[31m\001 <&>\377\n'; exit $TASK_INDEX"
    assert launch("--workers", "2", "--ps", "1", "--", "sh", "-c", script).code == 1
    launch.here("report", "--junit", tmp_path / "junit.xml", code=0)
    assert cases(tmp_path / "junit.xml") == {"worker/0": (), "worker/1": ("failure",), "ps/0": ()}
    (failure,) = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("failure")
    assert (
        failure.get("message") == "exit code 1" and "bad" in str(failure.text) and "<&>" in str(failure.text)
    )
    assert launch("--timeout", "0.5s", "sleep", "60").code == 124
    launch.here("report", "--junit", tmp_path / "junit.xml", code=0)
    assert cases(tmp_path / "junit.xml")["job"] == ("error",)


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_an_annotation_in_github_actions(launch: Launch, tmp_path: Path, options: list[str]):
    """One, for the line of the program; nothing that a task prints can be one."""
    (tmp_path / "bad.py").write_text("print('::error::forged')\nopen('100%, no: such')\n")
    env = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path)}
    ended = launch(*options, "--workers", "2", "bad.py", cwd=tmp_path, env=env, code=1)
    (line,) = [line for line in ended.out.splitlines() if line.startswith("::")]
    properties, _, text = line.removeprefix("::error ").partition("::")
    assert "file=bad.py,line=2" in properties and "100%25, no: such" in text
    assert not any(line.startswith("::") for line in ended.err.splitlines())
    assert "::error" not in launch("true", env=env).out
    ended = launch("bad.py", cwd=tmp_path, env={**env, "GITHUB_ACTIONS": ""})
    assert "::error title" not in ended.out and os.path.exists(last_run(launch).path)
