"""Finds exact versions of all packages for a Python and a platform, here and once; downloads their wheels.

uv finds them, for any Python and platform. pip downloads, which uv can't. The versions that were found are
kept as text for ``pip install -r``, whose hash is the name of the environments with these packages.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
import threading
from contextlib import closing

from launcher.agent.files import cache_folder
from launcher.backends.json_client import JsonClient
from launcher.backends.programs import run_here
from launcher.common.errors import LaunchError
from launcher.common.trusted_io import read_regular
from launcher.environments.requirements import Requirements

#: Seconds for a resolution or a download.
_UV_TIMEOUT_SECONDS = 3600.0
#: Texts of a host that become words of command lines: its Python, and the platform of its wheels.
_TARGET_PATTERN = re.compile(r"3\.[0-9]{1,2} ([a-z0-9_]{1,20})-manylinux_2_([0-9]{1,3})")


def hash_of(text: str) -> str:
    """The name of an environment with these versions, which name their Python, or of a file with versions."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Resolver:
    """Resolves the requirements of one ``launch prepare``, for all its hosts; any thread may use it.

    Args:
        wanted: the requirements.
        upgrade: find the newest versions, even if earlier ones are known.
        offline: hosts use no package index.
        folder: an empty one for wheels.
    """

    def __init__(self, wanted: Requirements, upgrade: bool, offline: bool, folder: str) -> None:
        self._wanted, self._upgrade, self._folder = wanted, upgrade, folder
        #: Why uv or pip has failed; empty: it has not. By its arguments.
        self._faults, self._lock = dict[tuple[str, ...], str](), threading.Lock()
        self._options = "--no-index" if offline else wanted.options
        self._cache = os.path.join(cache_folder(), "resolved", hash_of(repr(wanted)))
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
        path, target = (
            f"{self._cache}-{python}-{platform}.txt",
            _TARGET_PATTERN.fullmatch(f"{python} {platform}"),
        )
        if target is None:
            raise LaunchError(f"there are no wheels for {platform}, only for Linux with glibc")
        if self._upgrade or not os.path.exists(path):
            argv = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--upgrade", "-o", path]
            argv += ["--custom-compile-command", f"launch prepare, for Python {python}"]
            argv += ["--only-binary", ":all:", "--python-version", python, self._wanted.source]
            argv += ["--python-platform", f"{target[1]}-manylinux_2_{28 if int(target[2]) >= 28 else 17}"]
            self._run(self._wanted.text, *argv)
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
        folder = os.path.join(self._folder, f"{python}-{platform}")
        machine, _, newest = platform.partition("-manylinux_2_")
        # pip takes wheels for platforms that it is given: one for each version of glibc, the first is 2.5.
        names = [f"manylinux_2_{minor}" for minor in range(int(newest), 4, -1)]
        argv = ["pip", "download", "--quiet", "--no-input", "--no-deps", "--disable-pip-version-check"]
        argv += ["-d", folder, "-r", "/dev/stdin"]
        argv += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        argv += [f"--platform={name}_{machine}" for name in (*names, "manylinux2014", "linux")]
        self._run(f"{self._wanted.options}\n{versions}", *argv)
        return folder

    def _run(self, text: str, *argv: str) -> None:
        """Run uv or pip, once for the same arguments; it ends with this process.

        Args:
            text: its input, which may have passwords, and is in no file.
            argv: its arguments.

        Raises:
            LaunchError: it failed; with its reason.
        """
        with self._lock:  # other threads wait for the same result
            if argv not in self._faults:
                asked = {"argv": (sys.executable, "-I", "-m", *argv), "text": text}
                program = run_here("this machine", "launcher.environments.remote:run_here", asked)
                with closing(program):
                    self._faults[argv] = JsonClient(program).receive(_UV_TIMEOUT_SECONDS)["fault"]
        if self._faults[argv]:
            raise LaunchError(f"on this machine: {self._faults[argv]}")
