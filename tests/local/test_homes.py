"""What the user says of folders, Pythons and variables reaches the tasks as it was meant."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import Launch


def test_a_tilde_is_the_home_of_whoever_runs_the_tasks(launch: Launch):
    (launch.home / "work" / "bin").mkdir(parents=True)
    (launch.home / "work" / "bin" / "python").symlink_to(sys.executable)
    (launch.home / "work" / "where.py").write_text("import os\nprint(os.getcwd())\n")
    ended = launch("--workdir", "~/work", "--python", "~/work/bin/python", "where.py")
    assert ended.code == 0, ended.err
    assert f"| {launch.home}/work" in ended.out


def test_a_python_below_the_home_is_that_of_its_environment(launch: Launch):
    """A virtual environment's Python finds its packages by the path that it was started with."""
    folder = launch.home / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    (launch.home / "where.py").write_text("import sys\nprint(sys.prefix)\n")
    ended = launch("--workdir", "~", "--python", "~/venv/bin/python", "where.py")
    assert f"| {folder}" in ended.out, ended.out + ended.err


def test_the_command_line_wins_over_what_files_say_of_hosts_and_roles(launch: Launch, tmp_path: Path):
    (tmp_path / "hosts.yaml").write_text("hosts:\n  - {name: localhost, env: {BATCH: '32', HOST: '1'}}\n")
    words = ["-x", "BATCH=64", "--", "sh", "-c", "echo $BATCH $HOST"]
    ended = launch("--hosts", tmp_path / "hosts.yaml", *words)
    assert "| 64 1" in ended.out
    (tmp_path / "job.yaml").write_text(
        "env: {A: '1', B: '1'}\ncommand: [sh, -c, 'echo $A $B $C']\n"
        "roles:\n  worker: {count: 1, env: {A: '2'}}\n"
    )
    ended = launch(tmp_path / "job.yaml", "-x", "A=3", "-x", "C=3")
    assert "| 3 1 3" in ended.out, ended.out + ended.err
