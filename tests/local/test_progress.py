"""Steps of tasks as a launch sees them: what is found, what `--stall` does, and what the report keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import last_run

PATTERN = r"it (?P<step>\d+) (?P<loss>\S+)"
#: Prints five steps, the last ones with a loss that is no number, and then only moves a bar.
HANGS = r"""
for step in 1 2 3 4 5; do echo "it $step $(test $step -lt 4 && echo 0.$step || echo nan)"; sleep 0.5; done
while :; do printf 'bar %s\r' $((n += 1)); sleep 0.05; done
"""


@pytest.mark.promise("`--progress`: steps as the user says, which `--stall` counts; a pattern harms nothing")
def test_a_hang_behind_a_moving_bar(launch: Launch):
    launch("--stall", "3", "--progress", PATTERN, "--", "sh", "-c", HANGS, code=124)
    run = last_run(launch)
    failure, (task,) = run.report["failure"], run.report["tasks"]
    assert failure["reason"] == "stalled" and "made no step for 3" in failure["text"]
    noticed = [event for event in run.events if event["event"] == "Noticed"]
    assert [(event["kind"], event["task"]) for event in noticed] == [("nan", "worker/0")]
    steps = [point["step"] for point in task["progress"]]
    assert steps == sorted(steps) and steps[-1] == 5
    assert all(point["attempt"] == 1 and "loss" not in point["metrics"] for point in task["progress"][-1:])


def test_a_pattern_that_takes_for_ever(launch: Launch, tmp_path: Path):
    """The job goes on, and its output counts for ``--stall`` again."""
    job = "command: [sh, -c, 'for i in $(seq 60); do echo 1 {x}; sleep 0.1; done']\nroles: {{worker: 1}}\n"
    pattern = r"progress: '(?P<step>\d+) (.*.*.*.*.*.*)+[yz]'"
    (tmp_path / "job.yaml").write_text(f"{job.format(x='x' * 100)}stall: 3\n{pattern}\n")
    launch(tmp_path / "job.yaml", code=0)
    events = last_run(launch).events
    assert [event["kind"] for event in events if event["event"] == "Noticed"] == ["progress"]


@pytest.mark.parametrize("words", [("(",), ("(?P<loss>.)",), (PATTERN, "--no-samples")])
def test_wrong_patterns(launch: Launch, words: tuple[str, ...]):
    ended = launch("--progress", *words, "--", "true", code=2)
    assert "--progress" in ended.err and not launch.state.exists()
