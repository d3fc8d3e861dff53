"""The packages that a user wants: read, and checked before anything is done with them.

Hosts get the lines, so no line may name a file of this machine. Passwords in the addresses of package indexes
stay in files that only this user can read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from launcher.config.schema import read_text, shown_path
from launcher.errors import Fault, InputError
from launcher.record import Record

#: Options of a requirements file that hosts can use; each takes an address, or nothing.
_INDEXES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")
_OPTIONS = {*_INDEXES, "--trusted-host", "--pre", "--prefer-binary"}
_FILES = ("-r", "--requirement", "-c", "--constraint", "-e", "--editable")
#: What is a file for pip, though it could be a name.
_ARCHIVE = re.compile(r"(?i)\.(whl|zip|tar|gz|tgz|bz2|xz)$")
_HASHES = re.compile(r"\s--hash[ =]\S+")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
#: The distributions of TensorFlow.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")


class Requirements(Record):
    """The packages that the user wants."""

    #: Each requirement or option, without comments.
    lines: tuple[str, ...]
    #: Where they come from, for messages.
    source: str

    @property
    def options(self) -> tuple[str, ...]:
        """The lines about package indexes."""
        return tuple(line for line in self.lines if line.startswith("-"))


def masked(text: str) -> str:
    """A text without the users and passwords in its addresses: ``https://****@index/simple``."""
    return _PASSWORD.sub("****@", text)


def wanted(files: Sequence[str], packages: Sequence[str], environ: Mapping[str, str]) -> Requirements:
    """The packages of files and of the command line.

    Without both: those of ``requirements.txt``, else of ``pyproject.toml`` in the current folder, else
    TensorFlow in the version that is installed here.

    Args:
        files: requirements files.
        packages: of the command line.
        environ: for ``${NAME}`` in the files.

    Raises:
        InputError: with all faults.
    """
    if not files and not packages and os.path.isfile("requirements.txt"):
        files = ["requirements.txt"]
    faults: list[Fault] = []
    lines = [line for path in files for line in _of_file(path, environ, faults)]
    lines += _checked("PACKAGE", packages, faults)
    source = ", ".join([*map(shown_path, files), *packages])
    if not files and not packages:
        lines, source = _of_project(faults) or _installed_here()
    if not faults and not any(not line.startswith("-") for line in lines):
        faults.append(Fault(source, "no packages", "expected at least one"))
    if faults:
        raise InputError(faults)
    return Requirements(tuple(lines), source)


def _of_file(path: str, environ: Mapping[str, str], faults: list[Fault]) -> list[str]:
    lines = []
    text = re.sub(r"\\\r?\n", lambda match: "\0", read_text(path, "requirements file", InputError))
    number = 1
    for written in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", written.replace("\0", " ")).strip()
        unset = {name for name in re.findall(r"\$\{([A-Z0-9_]+)\}", line) if name not in environ}
        problem = f"the variable {min(unset)} is not set" if unset else _problem(line)
        if line and problem:
            faults.append(Fault(f"{shown_path(path)}:{number}", f'"{masked(line)}"', problem))
        elif line:
            line = re.sub(r"^(--trusted-host)=", r"\1 ", line)
            lines.append(re.sub(r"\$\{([A-Z0-9_]+)\}", lambda match: environ[match[1]], line))
        number += 1 + written.count("\0")
    return lines


def _checked(source: str, lines: Iterable[str], faults: list[Fault]) -> list[str]:
    """The lines; those that can't be used are faults too."""
    lines = list(lines)
    found = [(line, problem) for line in lines if (problem := _problem(line))]
    faults += [Fault(source, f'"{masked(line)}"', problem) for line, problem in found]
    return lines


def name_of(line: str) -> str:
    """The name of a package, as all spellings of it have it.

    Raises:
        InvalidRequirement: a line has another form than PEP 508's.
    """
    return canonicalize_name(Requirement(_HASHES.sub("", line)).name)


def _problem(line: str) -> str:
    """Why a requirement can't be used, and what is expected; empty: it can."""
    if line.startswith("-"):
        return _problem_of_option(line)
    if _PASSWORD.search(line):
        return "has a password, which only options such as --index-url keep safe; expected no password"
    with suppress(InvalidRequirement):
        found = Requirement(_HASHES.sub("", line))
        is_file = _ARCHIVE.search(found.name) or not re.match(
            r"https?://[^\s;]+\.whl(#|$)", found.url or "http://x.whl"
        )
        if not is_file:
            return ""
    return "expected NAME, NAME==VERSION or NAME @ https://...whl: hosts have no files of this machine"


def _problem_of_option(line: str) -> str:
    name, _, value = re.sub(r"^(-[a-z])(?=[^\s-])|=", r"\1 ", line, count=1).partition(" ")
    if name in _FILES:
        return "names a file of this machine; expected its lines here"
    if name not in _OPTIONS:
        return f"expected a requirement, or one of {', '.join(sorted(_OPTIONS))}"
    if name in _INDEXES and not re.fullmatch(r"https?://\S+", value.strip()):
        return "expected an address that hosts can reach, http:// or https://"
    if name in ("--pre", "--prefer-binary") and value:
        return "expected no value"
    if name == "--trusted-host" and not re.fullmatch(r"[\w.:\[\]-]+", value.strip()):
        return "expected HOST or HOST:PORT"
    return ""


def _of_project(faults: list[Fault]) -> tuple[list[str], str] | None:
    """The dependencies of ``pyproject.toml``; ``None``: it has none, or there is no such file."""
    if not os.path.isfile("pyproject.toml"):
        return None
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]

    try:
        found = tomllib.loads(read_text("pyproject.toml", "project file", InputError))
        lines = found.get("project", {}).get("dependencies")
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise InputError([Fault("pyproject.toml", str(error), "expected TOML")]) from error
    if not lines:
        return None
    return _checked("pyproject.toml", map(str, lines), faults), "pyproject.toml"


def _installed_here() -> tuple[list[str], str]:
    for name in _TENSORFLOW:
        try:
            return [f"{name}=={metadata.version(name)}"], "the TensorFlow that is installed here"
        except metadata.PackageNotFoundError:
            continue
    expected = "expected PACKAGE..., -r FILE, requirements.txt, or TensorFlow installed here"
    raise InputError([Fault("", "no packages are named", expected)])
