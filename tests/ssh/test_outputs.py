"""``--output-dirs`` on other machines: what tasks made is in the run's folder, and nothing is left there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.ssh.host import LabHost

pytestmark = pytest.mark.timeout(240)

WRITE = 'mkdir "$OUTPUT_DIR/deep" && echo $JOB_NAME $TASK_INDEX >"$OUTPUT_DIR/deep/file"; echo at $OUTPUT_DIR'


def cache_of(host: LabHost) -> list[Path]:
    """What is left in the work folder of a host's cache."""
    return list((host.there(host.home) / ".cache/tf-launcher/work").glob("*"))


@pytest.mark.parametrize("code", [0, 7])
def test_output_folders_are_copied_here(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path, code: int):
    """Also beside a sync, and of a job that failed."""
    (tmp_path / "code").mkdir()
    options = ["--hosts", "node1:2,node2", "--workers", "3", "--on-failure", "continue", "--output-dirs"]
    sync = ["--sync", str(tmp_path / "code")] if code else []
    run = tmp_path / "run"
    script = f"{WRITE}; exit {code}"
    ended = ssh_launch(*options, *sync, "--run-dir", str(run), "--", "sh", "-c", script, cwd="/")
    assert ended.code == code, ended.err
    files = {str(path.relative_to(run / "output")) for path in (run / "output").rglob("*") if path.is_file()}
    assert files == {f"worker-{number}/deep/file" for number in range(3)}
    assert (run / "output/worker-2/deep/file").read_text() == "worker 2\n"
    assert "node1 worker/0 | at /" in ended.out and "/.tf-launcher-output/worker-0" in ended.out
    assert not [left for host in hosts for left in cache_of(host)]
