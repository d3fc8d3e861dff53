"""A job in containers: where its tasks are, what they see, how they find each other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.backends import Docker
from tests.local.board import FOLDER, page_of, url_of, waits_for


def test_the_working_folder_and_the_owner_of_files(here: Docker, tmp_path: Path):
    (tmp_path / "program.py").write_text("open('written', 'w').write('by the task')\n")
    tmp_path.chmod(0o777)
    assert here("program.py").code == 0
    written = tmp_path / "written"
    assert (written.read_text(), written.stat().st_uid) == ("by the task", os.getuid())
    written.unlink()
    assert here("--user", "12345:23456", "program.py").code == 0
    assert (written.stat().st_uid, written.stat().st_gid) == (12345, 23456)


def test_mounts(here: Docker, tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "da,ta").mkdir()
    (tmp_path / "da,ta" / "it").write_text("seen")
    script = "cat /data/it; echo; if touch /data/new 2>/dev/null; then echo wrote; else echo refused; fi; pwd"
    words = ["--mount", "../da,ta:/data:ro", "--no-mount", "--", "sh", "-c", script]
    ended = here(*words, cwd=tmp_path / "work", code=0)
    assert [line.partition("| ")[2] for line in ended.out.splitlines()[:3]] == ["seen", "refused", "/"]


def test_tensorboard_listens_in_its_own_container(here: Docker, tmp_path: Path):
    work = tmp_path / "work"
    shutil.copytree(FOLDER, work)
    done = waits_for(work / "done")
    board = ["-x", "PYTHONPATH=.", "--output-dirs", "--tensorboard"]
    started = here.start(*board, "--", *done, cwd=work)
    url = url_of(started)
    assert "localhost" not in url
    assert page_of(url) == f"<title>TensorBoard</title>{(here.run.path / 'output').resolve()}"
    (work / "done").touch()
    assert started.wait(60).code == 0
