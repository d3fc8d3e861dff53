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
#: What the packages of a peer are installed with; the peers themselves are pinned here.
_CONSTRAINTS = _TOP / "constraints.txt"
_HONCHO = "honcho==2.0.0"
_TORCH = "torch==2.13.0"
#: Beside the usual index: where PyPI's torch comes with CUDA (2 GB), this one has the CPU build, and it wins.
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
#: Seconds an installation may take.
_TIME_LIMIT = 1200.0


class Peer(NamedTuple):
    """Where a peer is, which one it is, or why there is none."""

    path: str
    version: str = ""
    missing: str = ""


def honcho() -> Peer:
    """honcho, from the package index."""
    return _from_index("honcho", [_HONCHO])


def torchrun() -> Peer:
    """torchrun, from torch's CPU build."""
    return _from_index("torchrun", [_TORCH, "--extra-index-url", _TORCH_INDEX])


def tensorflow() -> Peer:
    """A Python with TensorFlow's CPU build, for the tasks of launch."""
    found = _from_index("tensorflow", ["tensorflow-cpu"])
    return found._replace(path=str(FOLDER / "tensorflow" / "bin" / "python"))


def commit(name: str) -> Peer:
    """The launch of a commit of this repository, installed as a user has it."""
    fault, found = _try(["git", "-C", str(_TOP), "rev-parse", "--short", f"{name}^{{commit}}"])
    if fault:
        return Peer("", missing=fault)
    folder = FOLDER / f"launch-{found.strip()}"
    archive = f"{folder}.tar.gz"
    _make_folder()
    fault, _ = _try(["git", "-C", str(_TOP), "archive", "--prefix=launch/", "-o", archive, name])
    return Peer(str(folder / "bin" / "launch"), found.strip(), fault or _installed(folder, [archive]))


def mpirun() -> Peer:
    """Open MPI's mpirun: the one that is here, else Debian's."""
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
    """The first line a program says of its version; or nothing, and why."""
    fault, output = _try(argv)
    lines = output.strip().splitlines() or [""]
    return ("", fault) if fault else (lines[0], "")


def _from_index(name: str, packages: Sequence[str]) -> Peer:
    """The program ``name`` of a package in an environment of its own, made at the first use."""
    folder = FOLDER / name
    fault = _installed(folder, packages)
    if fault:
        return Peer("", missing=fault)
    version = _version(folder, re.split("[=>]", packages[0])[0])
    return Peer(str(folder / "bin" / name), f"{name} {version}")


def _installed(folder: Path, packages: Sequence[str]) -> str:
    """Make an environment with these packages, once. Returns why that fails; empty: it is there."""
    ready = folder / ".ready"
    fault = "" if ready.exists() else _install(folder, packages)
    if not fault:
        ready.write_text("\n".join(packages) + "\n")
    return fault


def _install(folder: Path, packages: Sequence[str]) -> str:
    _print(f"installing {packages[0]} into {folder} (once)")
    _make_folder()
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    pip += ["--retries", "1", "--constraint", str(_CONSTRAINTS)]
    steps = [[sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, *packages]]
    return next((fault for fault, _ in map(_try, steps) if fault), "")


def _make_folder() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")


def _version(folder: Path, package: str) -> str:
    found = next(folder.glob(f"lib/python*/site-packages/{package}-*.dist-info"), None)
    return found.name.split("-")[1].removesuffix(".dist") if found else "?"


def _try(argv: Sequence[str]) -> tuple[str, str]:
    """Run a command: why it failed (empty: it did not), and what it printed."""
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
    print(f"bench: {text}", file=sys.stderr, flush=True)
