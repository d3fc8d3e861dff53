"""Other Pythons of this machine. ``python -m tests.pythons`` installs Python 3.8 where it can be had."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

#: Where pyenv has them, and where uv installs one. A test may have another home.
_PYENV = Path.home() / ".pyenv/versions"
_INSTALLED = Path(sys.prefix, "pythons")


def python_of(version: str) -> str | None:
    """A Python of this version on PATH or installed by pyenv or uv; ``None`` if there is none that runs."""
    name = f"python{version}"
    folders = [*_PYENV.glob(f"{version}.*"), *_INSTALLED.glob(f"cpython-{version}.*")]
    for python in filter(None, [shutil.which(name), *(str(folder / "bin" / name) for folder in folders)]):
        try:
            if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
                return python
        except OSError:  # not there
            continue
    return None


def oldest_python() -> str | None:
    """The oldest Python that hosts may have."""
    return python_of("3.8")


def _install_the_oldest() -> None:
    if oldest_python() is not None:
        return
    uv = [str(Path(sys.prefix, "bin", "uv")), "python", "install", "--no-bin"]
    print("installing Python 3.8 for the tests of what runs on hosts", flush=True)
    done = subprocess.run(
        [*uv, "--install-dir", str(_INSTALLED), "3.8"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["uv gave no reason"])[-1].strip()
        print(f"NOT TESTED: what runs on hosts on Python 3.8, which could not be installed: {reason}")


if __name__ == "__main__":
    _install_the_oldest()
