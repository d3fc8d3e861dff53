"""Finds exact versions of all packages for a Python and a platform, here and once; downloads their wheels.

uv finds them, for any Python and platform. pip downloads, which uv can't. The versions that were found are
kept as text for ``pip install -r``, whose hash is the name of the environments with these packages.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import uv

from launcher.agent.files import cache_folder
from launcher.environments.remote import PATIENCE
from launcher.environments.requirements import Requirements, masked
from launcher.errors import LaunchError
from launcher.regular_file import read_regular
from launcher.text import host_text, shortened

#: Seconds for a resolution or a download.
_LIMIT = 3600.0
#: Characters of the reason why uv or pip failed.
_REASON = 400
#: The smallest minor version of glibc for which wheels are tagged, and other names of such platforms.
_OLDEST_GLIBC, _OTHER_NAMES = 5, ("manylinux2014", "manylinux2010", "manylinux1", "linux")
_PIP = [sys.executable, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check"]
#: Texts of a host that become words of command lines: its Python, and the platform of its wheels.
_TARGET = re.compile(r"3\.[0-9]{1,2} ([a-z0-9_]{1,20})-manylinux_2_([0-9]{1,3})")
_HASHED = re.compile(r"(?m)^([\w.-]+).*?((?: +--hash=\S+)+)")


class Unresolved(LaunchError):
    """No versions of the packages fit the Python and the platform."""


def hash_of(versions: str) -> str:
    """The name of an environment with these packages and this Python."""
    return hashlib.sha256(versions.encode()).hexdigest()[:16]


class Resolver:
    """Resolves the requirements of one ``launch prepare``, once for each target; any thread may use it.

    Args:
        wanted: the requirements.
        upgrade: find the newest versions, even if earlier ones are known.
        folder: an empty one for wheels.
    """

    def __init__(self, wanted: Requirements, upgrade: bool, folder: str) -> None:
        self._wanted, self._upgrade, self._folder = wanted, upgrade, folder
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor()
        self._begun: dict[object, Future[str]] = {}
        self._running: list[subprocess.Popen[str]] = []
        key = hashlib.sha256(repr(wanted).encode()).hexdigest()[:32]
        self._cache = os.path.join(cache_folder(), "resolved", key)
        paths = [] if upgrade else glob.glob(f"{glob.escape(self._cache)}-*.txt")
        #: The hashes of all environments with the versions that an earlier ``launch prepare`` has found.
        self.known = [hash_of(read_regular(path).decode()) for path in paths]

    def stop(self) -> None:
        """Kill uv and pip, and wait for their end."""
        for process in list(self._running):
            process.kill()
            process.wait()

    def resolve(self, python: str, platform: str) -> str:
        """The versions, as in a requirements file.

        Args:
            python: ``3.11``
            platform: ``x86_64-manylinux_2_36``

        Raises:
            Unresolved: there are none.
            LaunchError: uv can't find them for any Python.
        """
        return self._once((python, platform), lambda: self._resolve(python, platform))

    def wheels(self, python: str, platform: str, versions: str) -> str:
        """The folder with wheels of all packages.

        Args:
            python, platform, versions: see `resolve`, and what it has returned.

        Raises:
            Unresolved: they can't be downloaded.
        """
        return self._once((python, platform, versions), lambda: self._download(python, platform, versions))

    def _once(self, key: object, function: Callable[[], str]) -> str:
        with self._lock:
            if key not in self._begun:
                self._begun[key] = self._pool.submit(function)
        return self._begun[key].result()

    def _resolve(self, python: str, platform: str) -> str:
        path, target = f"{self._cache}-{python}-{platform}.txt", _TARGET.fullmatch(f"{python} {platform}")
        if target is None:
            raise LaunchError(f"it has no glibc, for which wheels are made: {host_text(platform)}")
        if os.path.exists(path) and not self._upgrade:
            return read_regular(path).decode()
        argv = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        argv += ["--only-binary", ":all:", "--python-version", python, self._wanted.source]
        argv += ["--python-platform", f"{target[1]}-manylinux_2_{28 if int(target[2]) >= 28 else 17}"]
        versions = f"# Python {python}\n{self._with_hashes(self._run(argv, self._wanted.text))}"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w") as file:
            file.write(versions)
        os.replace(temporary, path)
        return versions

    def _with_hashes(self, versions: str) -> str:
        """The versions with the hashes that the user gave."""
        hashed = _HASHED.findall(re.sub(r"\\\n", " ", self._wanted.text))
        hashes = {re.sub("[-_.]+", "-", name).lower(): found for name, found in hashed}
        return re.sub(r"(?m)^([\w.-]+).*", lambda line: line[0] + hashes.get(line[1], ""), versions)

    def _download(self, python: str, platform: str, versions: str) -> str:
        folder = os.path.join(self._folder, hash_of(f"{platform} {versions}"))
        machine, _, newest = platform.partition("-manylinux_2_")
        names = [f"manylinux_2_{minor}" for minor in range(int(newest), _OLDEST_GLIBC - 1, -1)]
        argv = [*_PIP, "download", "--quiet", "--no-deps", "-d", folder, "-r", "/dev/stdin"]
        argv += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        argv += [f"--platform={name}_{machine}" for name in (*names, *_OTHER_NAMES)]
        self._run(argv, f"{self._wanted.options}\n{versions}")
        return folder

    def _run(self, argv: Sequence[str], text: str) -> str:
        """The output of uv or pip for a text, which may have passwords, and is in no file.

        Raises:
            Unresolved: it failed; with its reason.
            LaunchError: it failed before it could try.
        """
        pipe = subprocess.PIPE
        with subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace",
            env={**PATIENCE, **self._index(), **os.environ}, start_new_session=True,
        ) as process:  # fmt: skip
            self._running.append(process)
            try:
                printed, errors = process.communicate(text, _LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                errors = f"it did not finish in {_LIMIT:g}s"
        if process.returncode:
            reason = shortened(host_text(masked(" ".join(errors.split()))), _REASON)
            raise (Unresolved if process.returncode == 1 else LaunchError)(f"on this machine: {reason}")
        return printed

    def _index(self) -> dict[str, str]:
        """The package index that pip is configured for here, for uv, unless the user names one."""
        if re.search(r"(?m)^(-i|--index-url)\b", self._wanted.options):
            return {}
        done = subprocess.run([*_PIP, "config", "get", "global.index-url"], capture_output=True, text=True)
        index = os.environ.get("PIP_INDEX_URL") or done.stdout.strip()
        return {"UV_DEFAULT_INDEX": index} if index else {}
