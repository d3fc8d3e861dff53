"""``launch rm``: ended runs go, with the files that launch has made; nothing else does."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.agent.identity import ProcessIdentity, this_process
from launcher.common.record import replace
from tests.conftest import COMMAND, Launch
from tests.seeing import last_run
from tests.unit.runs.conftest import made

ELSEWHERE = replace(this_process(), boot_id="of node7", machine="node7")
#: All that a run may leave in its folder.
FILES = (
    "plan.json", "events.jsonl", "launcher.log", "stop-asked", "earlier.json", "report.json.7.new",
    "logs/worker-0.log", "logs/worker-0.times", "logs/worker-0.times.7.new", "logs/ps-0.log",
)  # fmt: skip


@pytest.fixture(autouse=True)
def at_home(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(launch.home / "state"))


def a_run(
    name: str, owner: ProcessIdentity | None = None, exit_code: int | None = 0, files: Sequence[str] = ()
) -> Path:
    """The folder of a run of worker/0 and ps/0, with more files; the last part of its name is its start."""
    paths = made(name, owner, exit_code, float(name.rpartition("-")[2]))
    for file in (*FILES, *files):
        path = Path(paths.root, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"tasks": [{"task": "worker/0"}, {"task": "ps/0"}]}))
    return Path(paths.root)


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.promise("`launch rm` removes ended runs only, and only what launch has made")
def test_a_run_that_has_ended_or_died(launch: Launch):
    a_run("one-1")
    a_run("two-2", exit_code=None)
    assert launch("--workers", "2", "--", "true").code == 0
    own = last_run(launch).path.name
    assert launch.here("rm", "one", "two-2", own, code=0).out.count(" is removed\n") == 3
    assert left(launch.state) == []


@pytest.mark.promise("`launch rm` removes ended runs only, and only what launch has made")
def test_what_is_not_ours_stays(launch: Launch, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "worker-0.log").touch()
    files = ["notes", "logs/notes-1.log", "logs/worker-0.log.gz", "output/mine", "output/worker-0/deep/x"]
    run = a_run("one-1", files=files)
    (run / "launcher.log").unlink()
    for link in ("launcher.log", "link", "output/ps-0", "output/worker-0/link", "collected"):
        (run / link).symlink_to(tmp_path / "mine")
    other = a_run("two-2")
    for file in (other / "logs").iterdir():
        file.unlink()
    (other / "logs").rmdir()
    (other / "logs").symlink_to(tmp_path / "mine")
    ended = launch.here("rm", "one", "two", "--force", code=0)
    stays = ["collected", "launcher.log", "link", "logs/notes-1.log", "logs/worker-0.log.gz", "notes"]
    stays += ["output/mine", "output/ps-0"]
    assert left(run) == sorted([*stays, "logs", "output"]) and left(other) == ["logs"]
    assert f"{run} stays" in ended.err and "and 4 more" in ended.err and f"{other} stays" in ended.err
    assert left(tmp_path / "mine") == ["worker-0.log"]
    assert "no run 'one'" in launch.here("rm", "one", code=2).err


@pytest.mark.promise("`launch rm` removes ended runs only, and only what launch has made")
@pytest.mark.parametrize("place", ["output/worker-0/model", "collected/ps-0/a/b"])
def test_results_need_force(launch: Launch, place: str):
    run = a_run("one-1", files=[place])
    (a_run("two-2") / "output" / "worker-0").mkdir(parents=True)
    before = left(run)
    assert "--force" in launch.here("rm", "one", "two", code=125).err
    assert left(run) == before
    ended = launch.here("rm", "--keep", "0", code=0)
    assert (ended.out, "one-1" in ended.err, left(run)) == ("two-2 is removed\n", True, before)
    assert launch.here("rm", "--force", "one").code == 0
    assert left(launch.state) == []


@pytest.mark.promise("`launch rm` removes ended runs only, and only what launch has made")
def test_runs_that_may_go_on(launch: Launch):
    a_run("runs-1", this_process(), exit_code=None)
    a_run("unknown-2", ELSEWHERE, exit_code=None)
    a_run("ended-3", ELSEWHERE)
    before = left(launch.state)
    for name, why in {"runs": "launch stop", "unknown": "started on node7"}.items():
        assert why in launch.here("rm", "ended", name, code=125).err
    assert launch.here("rm", "--force", "runs", "unknown").code == 125
    assert left(launch.state) == before
    assert launch.here("rm", "--keep", "0", "--older", "1d", code=0).out == "ended-3 is removed\n"
    assert sorted(os.listdir(launch.state)) == ["runs-1", "unknown-2"]


@pytest.mark.promise("`launch rm` removes ended runs only, and only what launch has made")
def test_folders_are_no_names(launch: Launch, tmp_path: Path):
    """A folder of the user, also one that is that of a run, in a repository."""
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    assert launch("--run-dir", "run", "--", "true", cwd=project).code == 0
    before = left(project)
    path = str(project / "run")
    for words in ["."], [".."], ["run"], ["./run"], [path], [""], ["*"], ["latest", "."], ["--force"], []:
        assert launch.here("rm", *words, cwd=project).code == 2, words
    assert launch.here("rm", "latest", "--keep", "1", cwd=project).code == 2
    ended = launch.here("rm", "latest", cwd=project, code=0)
    assert f"its files stay in {project}/run" in ended.out
    assert (left(project), left(launch.state)) == (before, [])


def test_by_number_and_age(launch: Launch):
    now = time.time()
    for number, age in enumerate((10, 7.1, 6.9, 0.1)):
        a_run(f"run-{number}")
        report = {"exit_code": 0, "ended_at": now - age * 86400}
        (launch.state / f"run-{number}" / "report.json").write_text(json.dumps(report))
    a_run("runs-9", this_process(), exit_code=None)
    assert launch.here("rm", "--keep", "9", code=0).out == "nothing to remove\n"
    assert launch.here("rm", "--older", "7d", "--keep", "3", code=0).out == "run-0 is removed\n"
    assert launch.here("rm", "--older", "7d", code=0).out == "run-1 is removed\n"
    assert launch.here("rm", "--keep", "1", code=0).out == "run-2 is removed\n"
    for words in (["--keep", "-1"], ["--older", "soon"], ["--keep", "1", "run-3"]):
        assert launch.here("rm", *words).code == 2
    assert sorted(os.listdir(launch.state)) == ["run-3", "runs-9"]


@pytest.mark.promise("`launch rm` removes ended runs only, and only what launch has made")
def test_twice_at_once(launch: Launch):
    """Each run is removed by one of them; none ends with an error of ours."""
    for number in range(30):
        a_run(f"run-{number}", files=[f"output/worker-0/{file}" for file in range(20)])
    (launch.state / "run-7" / "notes").touch()
    environment = {**os.environ, **launch.environment()}
    words = [*COMMAND, "rm", "--keep", "0", "--force"]
    both = [subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert not any("Traceback" in each for each in said), said
    assert left(launch.state) == ["run-7", "run-7/notes"]
