"""What a task does to the files of its run ends neither the launcher nor a command, and holds up neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launch

#: Damages files in the folder of its first argument, each in the way that stands after its name. When a file
#: beside the folder says so, it fails.
DAMAGES = """
import os, pathlib, shutil, sys, time
folder = pathlib.Path(sys.argv[1])
for name, way in (word.split("=") for word in sys.argv[2:]):
    path = folder / name
    if way == "whole":
        continue
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if not path.parent.is_dir():
        continue
    if way == "folder":
        path.mkdir()
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "link":
        path.symlink_to("/dev/zero")
    elif way == "large":
        path.touch()
        os.truncate(path, 1 << (22 if path.suffix == ".log" else 30))
    elif way == "nested":
        path.write_text('{"tasks": ' + "[" * 200_000)
    elif way == "other types":
        path.write_text("{%s, 'tasks': [{%s}, 7, null]}\\n".replace("'", '"') % (FIELDS, FIELDS))
    elif way == "no object":
        path.write_text("7\\n" * 5)
print("done", flush=True)
while not folder.with_name("end").exists():
    time.sleep(0.02)
sys.exit(7)
"""
#: No field has the type that it should have, but for those without which an event or a task is ignored.
FIELDS = {
    "task": "worker/0", "event": "TaskMoved", "at": 1e9, "state": [], "attempt": {}, "argv": 7, "env": 7,
    "venv": 7, "host": {}, "failure": 7, "exit_code": [], "job": 7, "pid": "x", "words": 7, "command": "x",
    "tensorboard": [], "started_at": "x", "agents": 7, "batch": 7, "origin": 7,
}  # fmt: skip
FILES = (
    "plan.json", "events.jsonl", "report.json", "launcher.json", "launcher.log", "on-end.json",
    "logs/worker-0.times", "logs/worker-0.log", "logs",
)  # fmt: skip
WAYS = ("gone", "folder", "pipe", "link", "large", "nested", "other types", "no object", "whole")


@pytest.mark.promise(
    "whatever a task does to the files of its run ends no launcher and no command, and holds up none"
)
@pytest.mark.parametrize("first", range(len(WAYS)))
def test_files_of_a_run_that_its_task_damages(launch: Launch, tmp_path: Path, first: int):
    """In all of these launches together each file is damaged in each way, and stays whole once."""
    folder = tmp_path / "run"
    damages = [f"{name}={WAYS[(first + number) % len(WAYS)]}" for number, name in enumerate(FILES)]
    program = f"FIELDS = {str(FIELDS)[1:-1]!r}{DAMAGES}"
    job = launch.start("--run-dir", folder, "--on-end", "true", "-c", program, folder, *damages)
    job.until(lambda job: "done" in job.out)
    commands = [("ps",), ("report", folder), ("logs", folder)]
    ended = [launch.here(*command) for command in commands]
    (tmp_path / "end").touch()
    job.wait(code=7)
    ended += [launch.here(*command) for command in (*commands, ("ps", folder), ("ps", "--all"))]
    # It blocks signals, so it runs in a process of its own.
    ended.append(launch("attach", folder))
    for each in (job.wait(), *ended):
        assert "Traceback" not in each.err
        assert each.code in (0, 2, 7, 125)


def test_a_pipe_in_the_place_of_a_request_to_stop(launch: Launch, tmp_path: Path):
    folder = tmp_path / "run"
    script = 'mkfifo "$0/stop-asked"; echo up; exec sleep 600'
    job = launch.start("--run-dir", folder, "--", "sh", "-c", script, folder).up(1)
    launch("stop", folder, code=0)
    job.wait(code=143)
