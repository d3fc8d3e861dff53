"""Installs the peers: each Python one into an environment of its own, Open MPI from Debian.

The environments are below ``.bench/``. `bench.contenders` calls it. A peer that cannot be installed is
reported with the reason, and the bench goes on without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TOP = Path(__file__).resolve().parent.parent
FOLDER = _TOP / ".bench"
#: The versions of packages that peers need. Those of the peers themselves are below.
_CONSTRAINTS = _TOP / "constraints.txt"
_HONCHO = "honcho==2.0.0"
_TORCH = "torch==2.13.0"
#: An additional index. PyPI's torch contains CUDA (2 GB), and pip prefers the CPU build of this index.
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
#: The time limit for one installation.
_TIME_LIMIT = 1200.0


class Peer(NamedTuple):
    """A peer: the path of its program with its version, or why it is missing."""

    path: str
    version: str = ""
    missing: str = ""


def honcho() -> Peer:
    """Install honcho from the package index, and return it."""
    return _from_index("honcho", [_HONCHO])


def torchrun() -> Peer:
    """Install the CPU build of torch, and return its torchrun."""
    return _from_index("torchrun", [_TORCH, "--extra-index-url", _TORCH_INDEX])


def tensorflow() -> Peer:
    """Install the CPU build of TensorFlow, and return the Python that imports it."""
    found = _from_index("tensorflow", ["tensorflow-cpu"])
    return found._replace(path=str(FOLDER / "tensorflow" / "bin" / "python"))


def commit(name: str) -> Peer:
    """Install the launch of a commit of this repository as a user would, and return it.

    Args:
        name: The name of the commit, as git accepts it.
    """
    fault, found = _try(["git", "-C", str(_TOP), "rev-parse", "--short", f"{name}^{{commit}}"])
    if fault:
        return Peer("", missing=fault)
    folder = FOLDER / f"launch-{found.strip()}"
    archive = f"{folder}.tar.gz"
    _make_folder()
    fault, _ = _try(["git", "-C", str(_TOP), "archive", "--prefix=launch/", "-o", archive, name])
    return Peer(str(folder / "bin" / "launch"), found.strip(), fault or _installed(folder, [archive]))


def mpirun() -> Peer:
    """Return Open MPI's mpirun: the one of this machine, or else Debian's, which root installs."""
    path = shutil.which("mpirun")
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _print("installing openmpi-bin")
        _try(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "openmpi-bin"])
        path = shutil.which("mpirun")
    if path is None:
        return Peer("", missing="apt-get install openmpi-bin would bring it")
    version, missing = version_of([path, "--version"])
    return Peer(path, version.removeprefix("mpirun "), missing)


def version_of(argv: Sequence[str]) -> tuple[str, str]:
    """Ask a program for its version.

    Args:
        argv: The command line that prints the version.

    Returns:
        The first line that it prints, and an empty text. If it fails, an empty text and the reason.
    """
    fault, output = _try(argv)
    lines = output.strip().splitlines() or [""]
    return ("", fault) if fault else (lines[0], "")


def _from_index(name: str, packages: Sequence[str]) -> Peer:
    """Return a program of a package, which is installed into an environment of its own at the first use.

    Args:
        name: The name of the program.
        packages: The arguments of pip, of which the first is the package.
    """
    folder = FOLDER / name
    fault = _installed(folder, packages)
    if fault:
        return Peer("", missing=fault)
    version = _version(folder, re.split("[=>]", packages[0])[0])
    return Peer(str(folder / "bin" / name), f"{name} {version}")


def _installed(folder: Path, packages: Sequence[str]) -> str:
    """Make an environment with some packages, unless it exists.

    Returns:
        Why that failed, or an empty text if the environment is ready.
    """
    ready = folder / ".ready"
    fault = "" if ready.exists() else _install(folder, packages)
    if not fault:
        ready.write_text("\n".join(packages) + "\n")
    return fault


def _install(folder: Path, packages: Sequence[str]) -> str:
    """Make a new environment with some packages, and return why that failed, or an empty text."""
    _print(f"installing {packages[0]} into {folder} (once)")
    _make_folder()
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    pip += ["--retries", "1", "--constraint", str(_CONSTRAINTS)]
    steps = [[sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, *packages]]
    return next((fault for fault, _ in map(_try, steps) if fault), "")


def _make_folder() -> None:
    """Make the folder of environments, which git ignores."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")


def _version(folder: Path, package: str) -> str:
    """Return the version of a package in an environment, or a question mark if it is not found."""
    found = next(folder.glob(f"lib/python*/site-packages/{package}-*.dist-info"), None)
    return found.name.split("-")[1].removesuffix(".dist") if found else "?"


def _try(argv: Sequence[str]) -> tuple[str, str]:
    """Run a command.

    Returns:
        Why it failed, or an empty text, and what it printed on stdout.
    """
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), ""
    output = done.stderr.strip().splitlines() or ["no reason given"]
    fault = f"{argv[0]} ended with {done.returncode}: {output[-1]}" if done.returncode else ""
    return fault, done.stdout


def _print(text: str) -> None:
    """Tell the user on stderr what the bench does."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
