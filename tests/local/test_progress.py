"""Steps of tasks as a launch sees them: what is found, what `--stall` does, and what the report keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import last_run

PATTERN = r"it (?P<step>\d+) (?P<loss>\S+)"
#: Prints steps, the last one with a loss that is no number, and then only moves a bar.
HANGS = r"""
echo it 1 0.5; echo it 2 nan
while :; do printf 'bar %s\r' $((n += 1)); sleep 0.05; done
"""


@pytest.mark.promise("`--progress`: steps as the user says, which `--stall` counts; a pattern harms nothing")
def test_a_hang_behind_a_moving_bar(launch: Launch):
    launch("--stall", "1", "--progress", PATTERN, "--", "sh", "-c", HANGS, code=124)
    run = last_run(launch)
    failure, (task,) = run.report["failure"], run.report["tasks"]
    assert failure["reason"] == "stalled" and "made no step for 1" in failure["text"]
    noticed = [event for event in run.events if event["event"] == "Noticed"]
    assert [(event["kind"], event["task"]) for event in noticed] == [("nan", "worker/0")]
    last = task["progress"][-1]
    assert (last["attempt"], last["step"], last["metrics"]) == (1, 2, {})


def test_a_pattern_that_takes_for_ever(launch: Launch, tmp_path: Path):
    """The user is told once, and the job goes on."""
    until = f"until grep -q Noticed {launch.state}/*/events.jsonl; do echo 1 {'x' * 100}; sleep 0.1; done"
    pattern = r"progress: '(?P<step>\d+) (.*.*.*.*.*.*)+[yz]'"
    (tmp_path / "job.yaml").write_text(f"command: [sh, -c, '{until}']\nroles: {{worker: 1}}\n{pattern}\n")
    launch(tmp_path / "job.yaml", code=0)
    events = last_run(launch).events
    assert [event["kind"] for event in events if event["event"] == "Noticed"] == ["progress"]


@pytest.mark.parametrize("words", [("(",), ("(?P<loss>.)",), (PATTERN, "--no-samples")])
def test_wrong_patterns(launch: Launch, words: tuple[str, ...]):
    ended = launch("--progress", *words, "--", "true", code=2)
    assert "--progress" in ended.err and not launch.state.exists()
