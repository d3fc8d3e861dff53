"""The root file system of an image: this machine's Python, its libraries, and a few programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: Programs beside Python.
_PROGRAMS = (
    "sh", "cat", "chmod", "echo", "env", "false", "grep", "head", "hostname", "id", "kill", "ln", "ls",
    "mkdir", "mv", "pwd", "rm", "seq", "setsid", "sleep", "tail", "tee", "timeout", "touch", "true", "uname",
)  # fmt: skip
#: Libraries that TensorFlow needs.
_LIBRARIES = re.compile(r"=> (/\S+/lib(?:stdc\+\+|gcc_s|pthread|dl|rt|util|m|z)\.so\.\d+)$", re.M)
#: What no program of the tests imports of the standard library. Its compiled modules are there: a user who is
#: not root can't write them.
_LEFT_OUT = re.compile(
    r"/(site-packages|dist-packages|test|tests|idlelib|tkinter|lib2to3|ensurepip|config-3.*|.*\.opt-\d\.pyc)$"
)


@contextmanager
def root_files(folder: Path) -> Iterator[Path]:
    """A tar archive with the files of an image.

    Args:
        folder: for the archive, which goes at the end.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="image-") as made:
        archive = Path(made, "root.tar")
        with tarfile.open(archive, "w") as tar:
            _add(tar)
        yield archive


def _add(tar: tarfile.TarFile) -> None:
    python = os.path.realpath(sys.executable)
    library = sysconfig.get_path("stdlib")
    programs = [path for name in _PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))]
    modules = [str(path) for path in Path(library, "lib-dynload").glob("*.so")]
    for path in {os.path.realpath(program) for program in programs} | {python}:
        tar.add(path)
    for path in sorted(_libraries([python, *programs, *modules])):
        tar.add(os.path.realpath(path), path)
    tar.add(library, filter=lambda member: None if _LEFT_OUT.search(f"/{member.name}") else member)
    for program in programs:
        _link(tar, f"usr/bin/{os.path.basename(program)}", os.path.realpath(program))
    _link(tar, "usr/bin/python3", python)
    for name in ("bin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            _link(tar, name, os.readlink(f"/{name}"))
    for name in ("work", "tmp"):
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    if f"/{name}" != target:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        tar.addfile(link)


def _libraries(programs: Iterable[str]) -> set[str]:
    """The shared libraries that these programs and modules need, at real folders."""
    printed = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    found = re.findall(r"(?:=> |^\t)(/\S+) \(0x", printed, re.M)
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    found += [path for path in _LIBRARIES.findall(known) if "32" not in path]
    return {os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in found}
