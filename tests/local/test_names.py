"""Names and notes of runs, what ``latest`` is, and ``launch rerun``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.arguments import parse_launch
from tests.conftest import Launch, Started
from tests.seeing import ROOT, Family, soon

SLEEP = ("--", "sleep", "60")
#: A host that does not exist.
NO_HOST = ("--hosts", "nohost.invalid", "--connect-timeout", "5")


def listed(launch: Launch) -> list[Mapping[str, Any]]:
    """What ``launch ps --all --json`` prints, the oldest run first."""
    found: list[Mapping[str, Any]] = json.loads(launch.here("ps", "--all", "--json", code=0).out)
    return found[::-1]


def running(launch: Launch, *words: str) -> Started:
    """A launch whose run exists."""
    count = len(list(launch.state.glob("*/plan.json")))
    started = launch.start(*words, *SLEEP)
    soon(lambda: len(list(launch.state.glob("*/plan.json"))) > count)
    return started


@pytest.mark.promise("a name belongs to one run that goes on, in queues, too, and wins over folders")
def test_a_name_belongs_to_one_run_that_runs(launch: Launch, family: Family, tmp_path: Path):
    first = running(launch, "--name", "nightly", "--note", "with\tless\x1b[2J data")
    second = running(launch, "--name", "nightly")
    assert "nightly-2" in second.err
    (tmp_path / "nightly").mkdir()
    stopped = launch("stop", "nightly", cwd=tmp_path, code=0)
    assert listed(launch)[0]["run"] in stopped.out and first.wait().code == 143
    launch("--name", "nightly", "true", code=0)
    assert [run["name"] for run in listed(launch)] == ["nightly", "nightly-2", "nightly"]
    assert [run["note"] for run in listed(launch)] == [r"with\tless\x1b[2J data", None, None]
    verdicts = [run["verdict"] for run in listed(launch)]
    assert verdicts[:2] == ["stopped by launch stop, exit code 143", None]
    assert str(verdicts[2]).startswith("ok in ")
    # `latest` is what runs, although the other one is newer.
    assert listed(launch)[1]["run"] in launch.here("stop", "latest", code=0).out
    second.wait(code=143)
    assert launch.here("logs", "nightly").err.count(listed(launch)[2]["run"]) == 1


def test_launches_at_the_same_time_get_different_names(launch: Launch, family: Family):
    started = [launch.start("--name", "sweep", *SLEEP) for _ in range(4)]
    soon(lambda: len(list(launch.state.glob("*/plan.json"))) == len(started))
    assert {run["name"] for run in listed(launch)} == {"sweep", "sweep-2", "sweep-3", "sweep-4"}
    for each in started:
        each.stop(signal.SIGTERM)


@pytest.mark.parametrize(
    "name",
    ["latest", "Latest", "worker", "worker/0", "worker-1", "ps", "workers", "chief0", "a/b", ".", "..", "-x",
     "", "a b", "a" * 65, "20261121-070912-k3f9m", "name\n", "näme"],
)  # fmt: skip
def test_names_that_mean_something_else(launch: Launch, name: str):
    ended = launch.here(f"--name={name}", "true")
    assert (ended.code, launch.state.exists()) == (2, False) and "--name" in ended.err


def test_a_role_of_the_job_is_no_name(launch: Launch, tmp_path: Path):
    (tmp_path / "job.yaml").write_text("name: reader\nnote: x\nroles: {reader: {command: 'true'}}\n")
    ended = launch.here("job.yaml", cwd=tmp_path, code=2)
    assert ended.err.startswith("launch: job.yaml:1: ")
    launch("job.yaml", "--name", "readers", cwd=tmp_path, code=0)
    assert [(run["name"], run["note"]) for run in listed(launch)] == [("readers", "x")]


def test_the_list_of_runs_begins_with_what_matters(launch: Launch):
    launch("-d", "--workers", "2", "--name", "fails", "--note", "a note", "--", "sh", "-c", "exit 3")
    soon(lambda: listed(launch)[0]["verdict"])
    header, row = launch.here("ps", "-a").out.splitlines()
    at = header.index("PROGRAM")
    assert row[at:].startswith("sh -c 'exit 3' (--workers 2 --detach)")
    assert row.split()[1] == "fails" and re.search(r" failed, exit code 3 \(worker/\d\) ", row)
    assert re.search(r" (today|yesterday) \d\d:\d\d +(today )?\d\d:\d\d ", row), "when it began and ended"
    assert header.split()[-2:] == ["NOTE", "TASKS"] and "a note" in row


def test_a_run_of_the_python_api_shows_its_program(launch: Launch, tmp_path: Path):
    (tmp_path / "driver.py").write_text("import launcher\nlauncher.run(['true'], quiet=True)\n")
    env = {**launch.environment(), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "driver.py"], cwd=tmp_path, env=env, check=True)
    assert listed(launch)[0]["program"] == "driver.py"
    again = launch.here("rerun", "latest", code=2)
    assert "driver.py" in again.err and len(listed(launch)) == 1


def test_a_failed_launch_in_the_background_is_the_latest(launch: Launch):
    launch("true", code=0)
    ended = launch("-d", *NO_HOST, "--", "true", code=125)
    assert ended.out == ""
    attached = launch("attach")
    assert attached.code == 125 and attached.err + attached.out != ""
    assert [run["exit_code"] for run in listed(launch)] == [0, 125]


# ---------------------------------------------------------------------- rerun


@pytest.mark.promise("`launch rerun` in the same folder, with other options; no file has a secret value")
def test_a_failed_run_with_secrets_runs_again(launch: Launch, tmp_path: Path):
    (tmp_path / "in").mkdir()
    program = ("sh", "-c", "echo ${#TOKEN} ${#OTHER} $COPIED ${PWD##*/} $0; exit $CODE", "a b")
    words = ("--name", "job", "--run-dir", "kept", "-dqx", "TOKEN=s3cret", "-xOTHER=s4cret", "-x", "COPIED")
    first = launch(*words, "-x", "CODE=3", "--", *program, cwd=tmp_path / "in", env={"COPIED": "c1"})
    assert first.code == 0
    soon(lambda: listed(launch)[0]["exit_code"] == 3)
    files = [file for file in (tmp_path / "in" / "kept").rglob("*") if file.is_file()]
    assert [file for file in files if re.search(rb"s[34]cret", file.read_bytes())] == []
    missing = launch("rerun", "job", "-x", "CODE=0", "-x", "TOKEN", env={"TOKEN": "new"}, cwd=tmp_path)
    assert (missing.code, len(listed(launch))) == (2, 1)
    assert "OTHER" in missing.err and "TOKEN" not in missing.err and "CODE" not in missing.err
    options = ("-x", "CODE=0", "-x", "TOKEN", "-x", "OTHER=longest", "--workers", "2")
    env = {"TOKEN": "new", "COPIED": "c2"}
    launch("rerun", "job", *options, env=env, cwd=tmp_path, code=0)
    soon(lambda: listed(launch)[-1]["exit_code"] == 0)
    assert launch.here("logs").out.splitlines() == [f"worker/{n} | 3 7 c2 in a b" for n in (0, 1)]
    again = listed(launch)[1]
    assert (again["name"], again["tasks"]) == ("job", {"worker": 2}) and "kept" not in again["run_dir"]
    # What was typed for the second run is that run's own.
    third = launch("rerun", again["run"], "-x", "CODE=4", "-x", "OTHER=x", "-x", "TOKEN=y", env=env, code=0)
    soon(lambda: listed(launch)[-1]["exit_code"] == 4, why=third.err)
    assert listed(launch)[-1]["tasks"] == {"worker": 2}


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        ("--python /nowhere/python -- true", "--venv ./env", "in the environment /"),
        ("--venv ./env -- true", f"--python {sys.executable}", "  true"),
        ("--hosts h1 -- true", "--hosts h2", "worker/0 on h2"),
        ("--tensorboard --workers 1 -- true", "--tensorboard=logs", "--logdir logs"),
        ("job.yaml --workers 3", "--workers 2", "worker/1"),
        ("-m this --x", "", "-m this --x"),
        ("--workdir=-odd -- true --name x", "", "true --name x"),
    ],
)
def test_options_that_are_given_win(launch: Launch, tmp_path: Path, words: str, options: str, expected: str):
    (tmp_path / "job.yaml").write_text("roles: {worker: {command: 'true'}}\n")
    (tmp_path / "-odd").mkdir()
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    launch("true", cwd=tmp_path, code=0)
    record = next(launch.state.glob("*/launcher.json"))
    # Few of these runs could be started here, so that another one stands for them.
    content = json.loads(record.read_text())
    line = parse_launch(words.split())
    content["origin"] |= {
        "options": line.options,
        "program": [line.job_file] if line.job_file else line.command,
    }
    record.write_text(json.dumps(content))
    again = launch("rerun", "latest", *options.split(), "--dry-run", code=0)
    assert expected in again.out and "worker/2" not in again.out


def test_what_cannot_run_again(launch: Launch, tmp_path: Path):
    (tmp_path / "gone").mkdir()
    launch("true", cwd=tmp_path / "gone", code=0)
    (tmp_path / "gone").rmdir()
    assert str(tmp_path / "gone") in launch("rerun", "latest", code=2).err
    launch("--", "true", "x" * 40_000, code=0)
    assert "too long" in launch("rerun", "latest", code=2).err
    launch("true", code=0)
    run = listed(launch)[-1]["run"]
    (launch.state / run / "launcher.json").unlink()
    for words in (
        [],
        [""],
        ["nothing"],
        [run],
        ["latest", "true"],
        ["latest", "--zzz"],
        ["--workers", "2", "latest"],
    ):
        launch("rerun", *words, code=2)
    assert len(listed(launch)) == 3
