"""Finds exact versions of all packages for a Python and a platform, here and once; downloads their wheels.

pip does it where it can: it knows the package indexes that this machine is configured for. It takes the
markers of requirements (``python_version < "3.12"``) for the Python that runs it, so uv does it for others.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from launcher.environments.requirements import Requirements, masked
from launcher.errors import LaunchError
from launcher.record import Record
from launcher.regular_file import read_regular
from launcher.text import host_text

_K = TypeVar("_K")
_T = TypeVar("_T")
#: The format of the files in the cache.
_FORMAT = 1
#: Seconds for the resolution, and for the download of wheels.
_RESOLVE_LIMIT, _DOWNLOAD_LIMIT = 600.0, 3600.0
#: Why pip or uv refuses a Python: ``Requires-Python >=3.9``, ``depends on Python>=3.9``.
_NEEDS = re.compile(r"(?:Requires-Python |depends on Python)>=3\.([0-9]{1,2})")
#: An option that uv takes on its command line only.
_TRUSTED = "--trusted-host"
#: The smallest minor version of glibc for which wheels are tagged, and older names of such platforms.
_OLDEST_GLIBC, _OLD_PLATFORMS = 5, {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


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
    #: ``glibc 2.36``; empty: musl.
    libc: str

    def platforms(self) -> list[str]:
        """The tags of wheels for it, the newest first."""
        found = re.fullmatch(r"glibc 2\.([0-9]{1,3})", self.libc)
        if found is None:
            names = [f"musllinux_1_{minor}" for minor in (2, 1)]
        else:
            names = []
            for minor in range(int(found[1]), _OLDEST_GLIBC - 1, -1):
                names += [f"manylinux_2_{minor}", *filter(None, [_OLD_PLATFORMS.get(minor)])]
        return [f"{name}_{self.machine}" for name in [*names, "linux"]]

    def uv_platform(self) -> str:
        """Its name for uv."""
        found = re.fullmatch(r"glibc 2\.([0-9]{1,3})", self.libc)
        if found is None:
            return f"{self.machine}-unknown-linux-musl"
        return f"{self.machine}-manylinux_2_{28 if int(found[1]) >= 28 else 17}"


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
    """

    def __init__(self, wanted: Requirements, upgrade: bool) -> None:
        self._wanted, self._upgrade = wanted, upgrade
        self._lock = threading.Lock()
        self._found: dict[Target, Future[Resolved]] = {}
        self._folders: dict[Resolved, Future[str]] = {}
        self._downloads: list[str] = []

    def close(self) -> None:
        """Remove the wheels."""
        for folder in self._downloads:
            shutil.rmtree(folder, ignore_errors=True)

    def cached(self, target: Target) -> Resolved | None:
        """The versions that an earlier ``launch prepare`` has found; ``None``: `resolve` finds them."""
        if self._upgrade:
            return None
        try:
            read = json.loads(read_regular(self._path(target)))
            lines = tuple(map(str, read["lines"])) if read["format"] == _FORMAT else ()
            return Resolved(lines, target.python) if lines else None
        except (OSError, ValueError, LookupError, TypeError):  # none, or it is of another version
            return None

    def resolve(self, target: Target) -> Future[Resolved]:
        """The versions, in some seconds; the future raises `Unresolved`."""
        return self._once(self._found, target, lambda: self.cached(target) or self._resolve(target))

    def wheels(self, target: Target, resolved: Resolved) -> Future[str]:
        """The folder with wheels of all packages; the future raises `Unresolved`."""
        return self._once(self._folders, resolved, lambda: self._download(target, resolved))

    def _once(self, futures: dict[_K, Future[_T]], key: _K, function: Callable[[], _T]) -> Future[_T]:
        with self._lock:
            future = futures.get(key)
            if future is None:
                future = futures[key] = Future()
                threading.Thread(target=_work, args=(future, function), daemon=True).start()
        return future

    def _path(self, target: Target) -> str:
        key = hashlib.sha256(json.dumps([self._wanted.lines, target]).encode()).hexdigest()[:32]
        cache = os.environ.get("XDG_CACHE_HOME", "")
        cache = cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")
        return os.path.join(cache, "tf-launcher", "resolved", f"{key}.json")

    def _resolve(self, target: Target) -> Resolved:
        pip, uv = importlib.util.find_spec("pip"), shutil.which("uv", path=_search())
        own = target.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
        if pip and (own or not uv):
            lines = self._by_pip(target)
        elif uv:
            lines = self._by_uv(uv, target)
        else:
            raise Unresolved("neither pip nor uv is installed here; one of them must find the versions")
        resolved = Resolved(tuple(sorted(self._with_hashes(lines))), target.python)
        path = self._path(target)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
        with open(fd, "w") as file:
            json.dump({"format": _FORMAT, "lines": resolved.lines}, file)
        os.replace(temporary, path)
        return resolved

    def _with_hashes(self, lines: Sequence[str]) -> Iterator[str]:
        """The lines with the hashes that the user gave."""
        hashes = {
            _canonical(line): re.findall(r"\s(--hash[ =]\S+)", line)
            for line in self._wanted.lines
            if not line.startswith("-")
        }
        for line in lines:
            yield " ".join([line, *hashes.get(_canonical(line), [])])

    def _by_pip(self, target: Target) -> list[str]:
        argv = [*_PIP, "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
        argv += ["--target", _NO_FOLDER, *_wheels_for(target), *_STDIN]
        lines = []
        for item in json.loads(_run(argv, self._wanted.lines, _RESOLVE_LIMIT))["install"]:
            name, version, where = (
                item["metadata"]["name"],
                item["metadata"]["version"],
                item["download_info"],
            )
            lines.append(f"{name} @ {where['url']}" if item["is_direct"] else f"{name}=={version}")
        return lines

    def _by_uv(self, uv: str, target: Target) -> list[str]:
        argv = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
        argv += ["--python-version", target.python, "--python-platform", target.uv_platform(), "-"]
        argv += [
            f"--allow-insecure-host={line.split()[1]}" for line in self._wanted.options if _TRUSTED in line
        ]
        lines = [line for line in self._wanted.lines if _TRUSTED not in line]
        printed = _run(argv, lines, _RESOLVE_LIMIT)
        return [line.strip() for line in printed.splitlines() if line[:1].isalnum()]

    def _download(self, target: Target, resolved: Resolved) -> str:
        if importlib.util.find_spec("pip") is None:
            raise Unresolved("pip, which downloads wheels, is not installed here")
        folder = tempfile.mkdtemp(prefix="tf-launcher-")
        self._downloads.append(folder)
        argv = [*_PIP, "download", "--quiet", "--no-deps", *_wheels_for(target), "-d", folder, *_STDIN]
        _run(argv, [*self._wanted.options, *resolved.lines], _DOWNLOAD_LIMIT)
        return folder


def _work(future: Future[_T], function: Callable[[], _T]) -> None:
    try:
        future.set_result(function())
    except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
        future.set_exception(error)


_PIP = [sys.executable, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check"]
#: An old pip wants a folder for another platform, and a dry run writes nothing there.
_NO_FOLDER = "/nonexistent"
#: The requirements, which may have passwords, are in no file.
_STDIN = ["-r", "/dev/stdin"]


def _search() -> str:
    """Where uv is looked for: beside this Python, then in PATH."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


def _wheels_for(target: Target) -> list[str]:
    options = ["--only-binary", ":all:", "--python-version", target.python, "--implementation", "cp"]
    return options + [word for name in target.platforms() for word in ("--platform", name)]


def _run(argv: Sequence[str], lines: Sequence[str], seconds: float) -> str:
    """The output of pip or uv for these requirements.

    Raises:
        Unresolved: it failed; with its reason.
    """
    try:
        given = "".join(f"{line}\n" for line in lines).encode()
        done = subprocess.run(argv, input=given, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unresolved(f"{os.path.basename(argv[0])} did not finish in {seconds:g}s") from error
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace")
    text = masked(done.stderr.decode("utf-8", "replace"))
    printed = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in printed if line.startswith("ERROR: ")]
    if "uv" in os.path.basename(argv[0]):
        because = re.search(r"Because .*?(?=\. |$)", " ".join(text.split()))
        errors = [because[0] if because else " ".join(text.split())]
    shown = [line for line in errors if "different python version" not in line]
    reason = (shown or errors or printed or [f"exit code {done.returncode}"])[0]
    raise Unresolved(
        host_text(reason.removeprefix("ERROR: ")), min(map(int, _NEEDS.findall(text)), default=0)
    )


def _canonical(line: str) -> str:
    """The name of a package, as all spellings of it have it."""
    name = re.match(r"[A-Za-z0-9._-]*", line)
    return re.sub(r"[-_.]+", "-", name[0] if name else "").lower()
