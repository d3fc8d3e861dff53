"""Where a bench runs: the machine, the commit, a folder in memory, an environment without settings.

`bench.run` uses it, so that no setting of the user and no disk changes what is measured.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import peers

_TOP = Path(__file__).resolve().parent.parent
#: A folder in memory, and the free bytes that the measurements need there.
_MEMORY, _ROOM = Path("/dev/shm"), 1 << 30
#: The files of launch. A change of other files, such as those of the bench, changes no result.
_MEASURED = ("launcher", "pyproject.toml", "setup.py")


def machine() -> str:
    """Return a line about this machine: cores, kernel, Python and load."""
    load = " ".join(f"{load:.2f}" for load in os.getloadavg())
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"machine: {os.cpu_count()} cores, Linux {platform.release()}, {python}, load {load}"


def commit() -> str:
    """Return the last commit of the files of launch, with ``+changes`` if they differ from it.

    In an environment that `bench.peers.commit` has made, it is the commit of that environment.
    """
    if Path(sys.prefix).parent == peers.FOLDER:
        return Path(sys.prefix).name.removeprefix("launch-")
    git = ["git", "-C", str(_TOP)]
    try:
        found = subprocess.run(
            [*git, "log", "-1", "--format=%h", "--", *_MEASURED], capture_output=True, text=True, check=True
        )
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *_MEASURED], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return "of no known commit"
    return found.stdout.strip() + ("+changes" if changed else "")


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder for temporary files, which is removed at the end of the context.

    It is in memory if there is room, so that no disk is measured.
    """
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="launch-bench-", dir=_MEMORY if roomy else None) as folder:
        yield Path(folder)


@contextmanager
def clean_environment() -> Iterator[None]:
    """Remove variables that would change how contenders run, and give launch a folder of its own for runs."""
    for name in list(os.environ):
        if name.startswith(("PYTHON", "OMPI_", "TORCH", "VIRTUAL_ENV", "TASK_")) or name == "RANK":
            del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="launch-bench-state-") as state:
        os.environ["XDG_STATE_HOME"] = state
        yield
