"""``--output-dirs`` on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Launch

WRITE = 'echo $JOB_NAME $TASK_INDEX >"$OUTPUT_DIR/file"'


def test_every_task_has_a_folder_in_the_run(launch: Launch, tmp_path: Path):
    run = tmp_path / "run"
    words = ["--workers", "2", "--ps", "1", "--output-dirs", "--run-dir", str(run)]
    stays = 'test $JOB_NAME = ps && sleep 60; until test -s "$OUTPUT_DIR/../ps-0/file"; do sleep 0.05; done'
    ended = launch(*words, "--", "sh", "-c", f"{WRITE}; {stays}")
    assert ended.code == 0, ended.err
    assert {file.parent.name: file.read_text() for file in run.glob("output/*/file")} == {
        "worker-0": "worker 0\n",
        "worker-1": "worker 1\n",
        "ps-0": "ps 0\n",
    }
    plan = json.loads((run / "plan.json").read_text())
    assert plan["tasks"][0]["env"]["OUTPUT_DIR"] == str(run / "output/worker-0")


def test_from_a_job_file(launch: Launch, tmp_path: Path):
    (tmp_path / "job.yaml").write_text(
        "command: [sh, -c, 'echo > $OUTPUT_DIR/x']\nroles: {reader: 1}\noutput_dirs: yes\n"
    )
    ended = launch("--run-dir", tmp_path / "run", tmp_path / "job.yaml")
    assert ended.code == 0, ended.err
    assert (tmp_path / "run/output/reader-0/x").exists()


def test_nobody_has_one_unasked(launch: Launch, tmp_path: Path):
    ended = launch("--run-dir", tmp_path / "run", "--", "sh", "-c", 'echo "<$OUTPUT_DIR>"')
    assert "<>" in ended.out and not (tmp_path / "run/output").exists()


def test_a_dry_run_says_where(launch: Launch, tmp_path: Path):
    ended = launch("--output-dirs", "--run-dir", tmp_path / "run", "--dry-run", "true")
    assert ended.code == 0, ended.err
    assert f"{tmp_path}/run/output/worker-0" in ended.out
    assert "# --output-dirs: what tasks put into OUTPUT_DIR is in " in ended.out
    assert not (tmp_path / "run").exists()
