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
#: A tmpfs, and the room that measuring needs there, in bytes.
_MEMORY, _ROOM = Path("/dev/shm"), 1 << 30
#: What is measured beside the measuring itself.
_MEASURED = ("launcher", "pyproject.toml", "setup.py")


def machine() -> str:
    """A line about this machine."""
    load = " ".join(f"{load:.2f}" for load in os.getloadavg())
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"machine: {os.cpu_count()} cores, Linux {platform.release()}, {python}, load {load}"


def commit() -> str:
    """The last commit of the files of launch; ``+changes``: they differ from it.

    In an environment that `bench.peers.commit` has made, that commit.
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
    """A folder in memory where there is one, so that no disk is measured; removed at the end."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="launch-bench-", dir=_MEMORY if roomy else None) as folder:
        yield Path(folder)


@contextmanager
def clean_environment() -> Iterator[None]:
    """The same for all contenders: nothing of the user's settings; runs of launch are not kept among his."""
    for name in list(os.environ):
        if name.startswith(("PYTHON", "OMPI_", "TORCH", "VIRTUAL_ENV", "TASK_")) or name == "RANK":
            del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="launch-bench-state-") as state:
        os.environ["XDG_STATE_HOME"] = state
        yield
