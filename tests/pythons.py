"""Other Pythons of this machine that tests run programs with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def oldest_python() -> str | None:
    """A Python 3.8 on PATH or installed by pyenv; ``None`` if there is none that runs."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))]
    for python in filter(None, found):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None
