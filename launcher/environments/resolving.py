"""Finds exact versions of all packages for a Python and a platform, here and once; downloads their wheels.

uv finds them, for any Python and platform. pip downloads, which uv can't.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import uv

from launcher.environments.remote import PATIENCE, trusting
from launcher.environments.requirements import Requirements, masked, name_of
from launcher.errors import LaunchError
from launcher.record import Record
from launcher.regular_file import read_regular
from launcher.text import host_text

#: The format of the files in the cache.
_FORMAT = 2
#: Seconds for the resolution, and for the download of wheels; between looks at whether the launch ends.
_RESOLVE_LIMIT, _DOWNLOAD_LIMIT, _LOOK = 600.0, 3600.0, 0.25
#: Why uv refuses a Python: ``depends on Python>=3.9``.
_NEEDS = re.compile(r"depends on Python>=3\.([0-9]{1,2})")
#: The smallest minor version of glibc for which wheels are tagged, and other names of such platforms.
_OLDEST_GLIBC, _OTHER_NAMES = 5, ("manylinux2014", "manylinux2010", "manylinux1")
_PIP = [sys.executable, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check"]
#: Starts a program that gets SIGTERM when this process exits or is killed (PR_SET_PDEATHSIG).
_WITH_US = [
    sys.executable, "-I", "-S", "-c",
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])",
]  # fmt: skip


class Unresolved(LaunchError):
    """No versions of the packages fit.

    Args:
        text: the reason, without passwords.
        oldest: the minor version of the oldest Python for which a package has versions; 0: not known.
    """

    def __init__(self, text: str, oldest: int = 0) -> None:
        super().__init__(text)
        self.oldest = oldest


class Target(Record):
    """What wheels must run on."""

    #: ``3.11``
    python: str
    #: ``x86_64``
    machine: str
    #: ``glibc 2.36``
    libc: str

    @property
    def _glibc(self) -> int:
        """The minor version of glibc."""
        return int(self.libc.partition(".")[2])

    def platforms(self) -> list[str]:
        """The tags of wheels for it, the newest first."""
        names = [f"manylinux_2_{minor}" for minor in range(self._glibc, _OLDEST_GLIBC - 1, -1)]
        return [f"{name}_{self.machine}" for name in [*names, *_OTHER_NAMES, "linux"]]

    def uv_platform(self) -> str:
        """Its name for uv."""
        return f"{self.machine}-manylinux_2_{28 if self._glibc >= 28 else 17}"


class Resolved(Record):
    """Exact versions of all packages."""

    #: Requirements: ``six==1.16.0``, perhaps with hashes; or ``NAME @ https://...whl``.
    lines: tuple[str, ...]
    python: str

    @property
    def hash(self) -> str:
        """The name of an environment with these packages and this Python."""
        return hashlib.sha256("\n".join([self.python, *self.lines]).encode()).hexdigest()[:16]


class Resolver:
    """Resolves the requirements of one ``launch prepare``, once for each target; any thread may use it.

    Args:
        wanted: the requirements.
        upgrade: find the newest versions, even if earlier ones are in the cache.
        stopped: set when the launch ends; it ends pip and uv.
    """

    def __init__(self, wanted: Requirements, upgrade: bool, stopped: threading.Event) -> None:
        self._wanted, self._upgrade, self._stopped = wanted, upgrade, stopped
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor()
        self._begun: dict[object, Future[Any]] = {}
        self._downloads: list[subprocess.Popen[bytes]] = []
        cache = os.environ.get("XDG_CACHE_HOME", "")
        cache = cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")
        key = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:32]
        self._cache = os.path.join(cache, "tf-launcher", "resolved", key)
        paths = [] if upgrade else glob.glob(f"{glob.escape(self._cache)}-*.json")
        #: The hashes of all environments with the versions that an earlier ``launch prepare`` has found.
        self.known = [resolved.hash for path in paths if (resolved := _read(path))]

    def close(self) -> None:
        """Remove the wheels."""
        self._pool.shutdown()
        for remover in self._downloads:
            remover.communicate()

    def resolve(self, target: Target, finding: Callable[[], object]) -> Resolved:
        """The versions.

        Args:
            target: what they run on.
            finding: called if that takes seconds.

        Raises:
            Unresolved: there are none.
        """
        path = f"{self._cache}-{'-'.join(target).replace(' ', '')}.json"
        resolved = None if self._upgrade else _read(path)
        if resolved is None:
            finding()
            resolved = self._once(target, lambda: self._resolve(target, path))
        return resolved

    def wheels(self, target: Target, resolved: Resolved) -> str:
        """The folder with wheels of all packages.

        Raises:
            Unresolved: they can't be downloaded.
        """
        folder: str = self._once((target, resolved), lambda: self._download(target, resolved))
        return folder

    def _once(self, key: object, function: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._begun:
                self._begun[key] = self._pool.submit(function)
        return self._begun[key].result()

    def _resolve(self, target: Target, path: str) -> Resolved:
        argv = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-"]
        argv += ["--python-version", target.python, "--python-platform", target.uv_platform()]
        found = self._run([*argv, "--only-binary", ":all:"], self._wanted.lines, _RESOLVE_LIMIT).splitlines()
        versions = [line.strip() for line in found if line[:1].isalnum()]
        resolved = Resolved(tuple(sorted(self._with_hashes(versions))), target.python)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
        with open(fd, "w") as file:
            json.dump({"format": _FORMAT, **resolved._asdict()}, file)
        os.replace(temporary, path)
        return resolved

    def _index(self) -> dict[str, str]:
        """The package index that pip is configured for here, unless the user names one, as uv takes it."""
        if any(line.startswith(("-i ", "--index-url ")) for line in self._wanted.options):
            return {}
        argv = [*_PIP, "config", "get", "global.index-url"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_RESOLVE_LIMIT)
        index = os.environ.get("PIP_INDEX_URL") or done.stdout.strip()
        return {"UV_DEFAULT_INDEX": index} if index else {}

    def _with_hashes(self, lines: Sequence[str]) -> Iterator[str]:
        """The lines with the hashes that the user gave."""
        hashes = {name_of(line): re.findall(r"\s(--hash[ =]\S+)", line) for line in self._wanted.lines}
        for line in lines:
            yield " ".join([line, *hashes.get(name_of(line), [])])

    def _download(self, target: Target, resolved: Resolved) -> str:
        folder = tempfile.mkdtemp(prefix="tf-launcher-")
        # It ends when its standard input does: in `close`, or with this process, even if that is killed.
        remove = ["sh", "-c", 'cat; exec rm -rf "$1"', "sh", folder]
        self._downloads.append(subprocess.Popen(remove, stdin=subprocess.PIPE, start_new_session=True))
        argv = [*_PIP, "download", "--quiet", "--no-deps", "-d", folder, "-r", "/dev/stdin"]
        argv += ["--only-binary", ":all:", "--python-version", target.python, "--implementation", "cp"]
        argv += [f"--platform={name}" for name in target.platforms()]
        self._run(argv, resolved.lines, _DOWNLOAD_LIMIT)
        return folder

    def _run(self, argv: Sequence[str], lines: Sequence[str], seconds: float) -> str:
        """The output of pip or uv for these requirements, which may have passwords, and are in no file.

        Raises:
            Unresolved: it failed; with its reason.
            LaunchError: the package index can't be used.
        """
        pipe, given = subprocess.PIPE, "\n".join([*self._wanted.options, *lines, ""]).encode()
        env = {**PATIENCE, **self._index(), **os.environ, **trusting(self._wanted.trusted)}
        until, name = time.monotonic() + seconds, os.path.basename(argv[0])
        with subprocess.Popen(
            [*_WITH_US, *argv], stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
        ) as process:
            while True:
                try:
                    printed, errors = process.communicate(given, _LOOK)
                    break
                except subprocess.TimeoutExpired as error:
                    given = b""
                    if self._stopped.is_set() or time.monotonic() > until:
                        process.kill()
                        raise Unresolved(f"{name} did not finish in {seconds:g}s") from error
        if process.returncode:
            text = masked(errors.decode("utf-8", "replace"))
            oldest = min(map(int, _NEEDS.findall(" ".join(text.split()))), default=0)
            if "Failed to fetch" in text:  # so it is for any Python
                raise LaunchError(f"this machine can't use the package index: {host_text(_reason(text))}")
            raise Unresolved(host_text(_reason(text) or f"exit code {process.returncode}"), oldest)
        return printed.decode("utf-8", "replace")


def _reason(text: str) -> str:
    """Why pip or uv failed."""
    lines = [line for line in text.splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("ERROR: ")), "")  # of pip
    because = re.search(r"Because .*?(?=\. |$)", " ".join(text.split()))  # of uv
    return error.removeprefix("ERROR: ") or (because[0] if because else " ".join(text.split()))


def _read(path: str) -> Resolved | None:
    """A file of the cache; ``None``: there is none, or it is of another version."""
    try:
        read = json.loads(read_regular(path))
        lines = tuple(map(str, read["lines"])) if read["format"] == _FORMAT else ()
        return Resolved(lines, str(read["python"])) if lines else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
