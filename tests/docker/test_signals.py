"""SIGTERM to a launcher and all commands that it has started, as a service manager sends it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.conftest import Launch
from tests.docker.engine import Engine
from tests.local.seeing import last_run
from tests.local.stops import SAVES, processes_of


def test_tasks_in_containers_keep_their_grace(docker: Engine, image: str, launch: Launch, tmp_path: Path):
    words = ["--docker", image, "--workers", "2", "--grace", "20", "--", "sh", "-c", SAVES, "sh", "3"]
    started = launch.start(*words, cwd=tmp_path)
    started.until(lambda it: it.out.count("| up") == 2, 60)
    pids = [*processes_of(started.pid)]
    assert len(pids) >= 3, "the launcher, and a docker run for each task"
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    ended = started.wait(60)
    assert ended.code == 143, ended.err
    assert ended.out.count("| saved") == 2, ended.out
    assert last_run(launch).report["failure"]["reason"] == "interrupted"
