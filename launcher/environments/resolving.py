"""Finds exact versions of all packages for a Python and a platform, here and once; downloads their wheels.

uv finds them, for any Python and platform. pip downloads, which uv can't. The versions that were found are
kept as text for ``pip install -r``, whose hash is the name of the environments with these packages.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import uv

from launcher.agent.files import cache_folder
from launcher.environments.requirements import Requirements
from launcher.errors import LaunchError
from launcher.regular_file import read_regular
from launcher.text import host_text
from launcher.transports.command import run_here
from launcher.transports.dialog import Dialog

#: Seconds for a resolution or a download.
_LIMIT = 3600.0
#: The smallest minor version of glibc for which wheels are tagged, and other names of such platforms.
_OLDEST_GLIBC, _OTHER_NAMES = 5, ("manylinux2014", "manylinux2010", "manylinux1", "linux")
#: Texts of a host that become words of command lines: its Python, and the platform of its wheels.
_TARGET = re.compile(r"3\.[0-9]{1,2} ([a-z0-9_]{1,20})-manylinux_2_([0-9]{1,3})")


class Unresolved(LaunchError):
    """No versions of the packages fit the Python and the platform."""


def hash_of(versions: str) -> str:
    """The name of an environment with these packages and this Python."""
    return hashlib.sha256(versions.encode()).hexdigest()[:16]


class Resolver:
    """Resolves the requirements of one ``launch prepare``, for all its hosts; any thread may use it.

    Args:
        wanted: the requirements.
        upgrade: find the newest versions, even if earlier ones are known.
        folder: an empty one for wheels.
    """

    def __init__(self, wanted: Requirements, upgrade: bool, folder: str) -> None:
        self._wanted, self._upgrade, self._folder = wanted, upgrade, folder
        self._lock = threading.Lock()
        key = hashlib.sha256(repr(wanted).encode()).hexdigest()[:32]
        self._cache = os.path.join(cache_folder(), "resolved", key)
        paths = [] if upgrade else glob.glob(f"{glob.escape(self._cache)}-*.txt")
        #: The hashes of all environments with the versions that an earlier ``launch prepare`` has found.
        self.known = [hash_of(read_regular(path).decode()) for path in paths]

    def resolve(self, python: str, platform: str) -> str:
        """The versions, as in a requirements file.

        Args:
            python: ``3.11``
            platform: ``x86_64-manylinux_2_36``

        Raises:
            Unresolved: there are none.
            LaunchError: uv can't find them for any Python.
        """
        path, target = f"{self._cache}-{python}-{platform}.txt", _TARGET.fullmatch(f"{python} {platform}")
        if target is None:
            raise LaunchError(f"wheels need Linux with glibc; this is {host_text(platform)}")
        if self._upgrade or not os.path.exists(path):
            argv = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-annotate", "-o", path]
            argv += ["--custom-compile-command", f"launch prepare, for Python {python}"]
            argv += ["--only-binary", ":all:", "--python-version", python, self._wanted.source]
            argv += ["--python-platform", f"{target[1]}-manylinux_2_{28 if int(target[2]) >= 28 else 17}"]
            argv += ["--upgrade"] if self._upgrade else []
            self._run(argv, self._wanted.text)
        return read_regular(path).decode()

    def download(self, python: str, platform: str, versions: str) -> str:
        """Download the wheels of all packages.

        Args:
            python, platform, versions: see `resolve`, and what it has returned.

        Returns:
            Their folder.

        Raises:
            LaunchError: they can't be downloaded.
        """
        folder = os.path.join(self._folder, hash_of(f"{platform} {versions}"))
        machine, _, newest = platform.partition("-manylinux_2_")
        names = [f"manylinux_2_{minor}" for minor in range(int(newest), _OLDEST_GLIBC - 1, -1)]
        argv = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        argv += ["-d", folder, "-r", "/dev/stdin", "--disable-pip-version-check"]
        argv += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        argv += [f"--platform={name}_{machine}" for name in (*names, *_OTHER_NAMES)]
        self._run(argv, f"{self._wanted.options}\n{versions}")
        return folder

    def _run(self, argv: Sequence[str], text: str) -> None:
        """Run uv or pip.

        Raises:
            Unresolved: it failed; with its reason.
            LaunchError: it failed before it could try.
        """
        with self._lock:  # other threads wait for the same result
            done = _ended(tuple(argv), text)
        if done["code"]:
            raise (Unresolved if done["code"] == 1 else LaunchError)(f"on this machine: {done['printed']}")


@functools.cache
def _ended(argv: tuple[str, ...], text: str) -> Any:
    """How uv or pip has ended, which runs once for the same arguments, and ends with this process.

    Args:
        argv: its command line.
        text: its input, which may have passwords, and is in no file.
    """
    with closing(run_here("this machine", "launcher.environments.remote:run_here", argv)) as program:
        dialog = Dialog(program)
        dialog.send(text, _LIMIT)
        return dialog.receive(_LIMIT)
