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
from contextlib import closing

from launcher.agent.files import cache_folder
from launcher.environments.requirements import Requirements
from launcher.errors import LaunchError
from launcher.regular_file import read_regular
from launcher.transports.command import run_here
from launcher.transports.dialog import Dialog

#: Seconds for a resolution or a download.
_LIMIT = 3600.0
#: Texts of a host that become words of command lines: its Python, and the platform of its wheels.
_TARGET = re.compile(r"3\.[0-9]{1,2} ([a-z0-9_]{1,20})-manylinux_2_([0-9]{1,3})")


def hash_of(versions: str) -> str:
    """The name of an environment with these packages and this Python."""
    return hashlib.sha256(versions.encode()).hexdigest()[:16]


class Resolver:
    """Resolves the requirements of one ``launch prepare``, for all its hosts; any thread may use it.

    Args:
        wanted: the requirements.
        upgrade: find the newest versions, even if earlier ones are known.
        offline: hosts use no package index.
        folder: an empty one for wheels.
    """

    def __init__(self, wanted: Requirements, upgrade: bool, offline: bool, folder: str) -> None:
        self._wanted, self._upgrade, self._folder, self._lock = wanted, upgrade, folder, threading.Lock()
        self._options = "--no-index" if offline else wanted.options
        key = hashlib.sha256(repr(wanted).encode()).hexdigest()[:32]
        self._cache = os.path.join(cache_folder(), "resolved", key)
        paths = [] if upgrade else glob.glob(f"{glob.escape(self._cache)}-*.txt")
        #: The hashes of all environments with the versions that an earlier ``launch prepare`` has found.
        self.known = [hash_of(read_regular(path).decode()) for path in paths]

    def resolve(self, python: str, platform: str) -> dict[str, str]:
        """What a host needs to install the packages.

        Args:
            python: ``3.11``
            platform: ``x86_64-manylinux_2_36``

        Returns:
            ``packages``, with exact versions, and ``options``, as in a requirements file; and ``hash``.

        Raises:
            LaunchError: there are none, or uv can't find them.
        """
        path, target = f"{self._cache}-{python}-{platform}.txt", _TARGET.fullmatch(f"{python} {platform}")
        if target is None:
            raise LaunchError(f"there are no wheels for {platform}, only for Linux with glibc")
        if self._upgrade or not os.path.exists(path):
            argv = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--upgrade", "-o", path]
            argv += ["--custom-compile-command", f"launch prepare, for Python {python}"]
            argv += ["--only-binary", ":all:", "--python-version", python, self._wanted.source]
            argv += ["--python-platform", f"{target[1]}-manylinux_2_{28 if int(target[2]) >= 28 else 17}"]
            self._run(argv, self._wanted.text)
        packages = read_regular(path).decode()
        return {"hash": hash_of(packages), "packages": packages, "options": self._options}

    def download(self, python: str, platform: str) -> str:
        """Download the wheels of all packages, and return their folder.

        Args:
            python, platform: see `resolve`.

        Raises:
            LaunchError: they can't be downloaded.
        """
        versions = self.resolve(python, platform)["packages"]
        folder = os.path.join(self._folder, hash_of(f"{platform} {versions}"))
        machine, _, newest = platform.partition("-manylinux_2_")
        # pip takes wheels for platforms that it is given: one for each version of glibc, the first is 2.5.
        names = [f"manylinux_2_{minor}" for minor in range(int(newest), 4, -1)]
        argv = ["pip", "download", "--quiet", "--no-input", "--no-deps", "--disable-pip-version-check"]
        argv += ["-d", folder, "-r", "/dev/stdin"]
        argv += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        argv += [f"--platform={name}_{machine}" for name in (*names, "manylinux2014", "linux")]
        self._run(argv, f"{self._wanted.options}\n{versions}")
        return folder

    def _run(self, argv: list[str], text: str) -> None:
        """Run uv or pip.

        Raises:
            LaunchError: it failed; with its reason.
        """
        with self._lock:  # other threads wait for the same result
            fault = _fault((sys.executable, "-I", "-m", *argv), text)
        if fault:
            raise LaunchError(f"on this machine: {fault}")


@functools.cache
def _fault(argv: tuple[str, ...], text: str) -> str:
    """Why uv or pip has failed, which runs once for the same arguments, and ends with this process.

    Args:
        argv: its command line.
        text: its input, which may have passwords, and is in no file.

    Returns:
        Empty: it has not failed.
    """
    asked = {"argv": argv, "text": text}
    with closing(run_here("this machine", "launcher.environments.remote:run_here", asked)) as program:
        return str(Dialog(program).receive(_LIMIT)["fault"])
