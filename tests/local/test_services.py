"""Tasks that are given time when the job is done, and sidecars."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.timeout(120)

JOB = """\
roles:
  worker: {{count: 1, command: [-c, "print('trained')"]}}
  evaluator: {{count: 1, drain: {drain}, command: [sh, -c, "{evaluator}"]}}
  ps: {{count: 1, command: [sleep, '300']}}
  board: {{count: 1, sidecar: true, command: [sh, -c, "{board}"]}}
"""


#: Every role's program: the chief ends as soon as all run; the worker, which ends on no SIGTERM, has still
#: something to do then, for which it needs its ps.
LEFT = """\
test $JOB_NAME != worker || trap '' TERM
echo $$ > $JOB_NAME.new && mv $JOB_NAME.new $JOB_NAME
case $JOB_NAME in
  chief) until test -e worker -a -e ps; do sleep 0.05; done;;
  ps) exec sleep 300;;
  worker)
    until test -e chief -a -e ps; do sleep 0.05; done
    while kill -0 $(cat chief) 2> /dev/null; do sleep 0.05; done
    sleep $LAST
    kill -0 $(cat ps) && echo last result > result;;
esac
"""
LEFT_JOB = """\
command: [sh, program]
roles: {chief: 1, ps: 1, worker: {count: 1, drain: 30s}}
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder of a job whose chief leaves a worker behind."""
    (tmp_path / "program").write_text(LEFT)
    (tmp_path / "job.yaml").write_text(LEFT_JOB)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [["job.yaml"], ["--chief", "--ps", "1", "--workers", "1", "--drain", "30s", "sh", "program"]],
    ids=["file", "option"],
)
def test_a_worker_ends_by_itself_after_its_chief(launch: Launch, left: Path, words: list[str]):
    """It has its ps until then."""
    ended = launch("-x", "LAST=1", *words, cwd=left)
    assert ended.code == 0, ended.err
    assert (left / "result").read_text() == "last result\n"
    assert states(ended.out) == {"chief": "succeeded", "worker": "succeeded", "ps": "stopped"}


def test_who_is_stopped_hard_after_its_chief_is_told_of_drain(launch: Launch, left: Path):
    words = ["--chief", "--ps", "1", "--workers", "1", "--grace", "0.2", "-x", "LAST=30"]
    ended = launch(*words, "sh", "program", cwd=left)
    assert ended.code == 0, ended.err
    (told,) = (line for line in ended.err.splitlines() if "worker/0 did not end on SIGTERM" in line)
    assert told.endswith("; the job was done: if it ends by itself a little later, `--drain 60s` allows it")
    assert not (left / "result").exists()


def written(folder: Path, evaluator: str, drain: str = "30s", board: str = "exec sleep 300") -> Path:
    """A job file."""
    file = folder / "job.yaml"
    file.write_text(JOB.format(evaluator=evaluator, drain=drain, board=board))
    return file


def states(out: str) -> dict[str, str]:
    """Role -> state, as the table has it."""
    return dict(re.findall(r"^localhost +\d+ +(\w+) +0 +(\w+)", out, re.MULTILINE))


def test_the_evaluator_finishes(launch: Launch, tmp_path: Path):
    """It is waited for, that is said, and TensorBoard stays as long."""
    go = tmp_path / "go"
    started = launch.start(written(tmp_path, f"until test -e {go}; do sleep 0.05; done; echo evaluated"))
    started.until(lambda it: "waiting for evaluator/0" in it.err)
    go.touch()
    ended = started.wait()
    assert ended.code == 0, ended.err
    assert "evaluator/0 | evaluated\n" in ended.out
    assert "launch: waiting for evaluator/0 to finish (28 s left)\n" in ended.err
    ends = {"worker": "succeeded", "evaluator": "succeeded", "ps": "stopped", "board": "stopped"}
    assert states(ended.out) == ends


def test_it_has_no_more_time_than_that(launch: Launch, tmp_path: Path):
    ended = launch(written(tmp_path, "exec sleep 300", drain="0.3s"))
    assert ended.code == 0, ended.err
    assert "evaluator/0 did not finish within 0.3 s of the job's end: stopped" in ended.err
    assert states(ended.out)["evaluator"] == "stopped"


def test_ctrl_c_ends_the_wait(launch: Launch, tmp_path: Path):
    started = launch.start(written(tmp_path, "exec sleep 300"))
    started.until(lambda it: "waiting for evaluator/0 to finish" in it.err)
    started.send(signal.SIGINT)
    ended = started.wait()
    assert ended.code == 0, ended.err
    assert "Ctrl-C: the job is done; stopping" in ended.err


def test_a_sidecar_that_fails_is_a_remark(launch: Launch, tmp_path: Path):
    go = tmp_path / "go"
    evaluator = f"until test -e {go}; do sleep 0.05; done"
    started = launch.start(written(tmp_path, evaluator, board="exit 9"))
    started.until(lambda it: "board/0 failed" in it.err)
    go.touch()
    ended = started.wait()
    assert ended.code == 0, ended.err
    assert re.search(r"launch: board/0 failed after [\d.]+s: exit code 9; it is a sidecar", ended.err)
    assert states(ended.out)["board"] == "failed"
