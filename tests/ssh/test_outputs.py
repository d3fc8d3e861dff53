"""``--output-dirs`` on other machines: what tasks made is in the run's folder, and nothing is left there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.ssh.host import LabHost

pytestmark = pytest.mark.timeout(240)

WRITE = 'mkdir "$OUTPUT_DIR/deep" && echo $JOB_NAME $TASK_INDEX >"$OUTPUT_DIR/deep/file"; echo at $OUTPUT_DIR'


def made(run: Path) -> dict[str, str]:
    """What is in the folders of the tasks, by path."""
    top = run / "output"
    return {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}


def cache_of(host: LabHost) -> list[Path]:
    """What is left in the work folder of a host's cache."""
    return list((host.there(host.home) / ".cache/tf-launcher/work").glob("*"))


def test_what_tasks_make_comes_here(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    words = [
        "--hosts",
        "node1:2,node2",
        "--workers",
        "3",
        "--output-dirs",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    ended = ssh_launch(*words, "--", "sh", "-c", WRITE, cwd="/")
    assert ended.code == 0, ended.err
    assert made(tmp_path / "run") == {f"worker-{n}/deep/file": f"worker {n}\n" for n in range(3)}
    assert "node1 worker/0 | at /" in ended.out and "/.tf-launcher-output/worker-0" in ended.out
    assert not [left for host in hosts for left in cache_of(host)]


def test_also_of_a_job_that_failed_and_beside_a_sync(
    ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/job.sh").write_text(WRITE + "; exit 7")
    words = ["--hosts", "node1", "--workers", "1", "--output-dirs", "--run-dir", str(tmp_path / "run")]
    ended = ssh_launch(*words, "--sync", ".", "--", "sh", "job.sh", cwd=tmp_path / "code")
    assert ended.code == 7, ended.err
    assert made(tmp_path / "run") == {"worker-0/deep/file": "worker 0\n"}
    assert not cache_of(hosts[0])
