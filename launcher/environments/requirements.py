"""The packages that a user wants: read, and checked before anything is done with them.

Hosts get the lines, so no line may name a file of this machine. Passwords in the addresses of package indexes
stay in files that only this user can read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from launcher.config.schema import read_text, shown_path
from launcher.errors import Fault, InputError
from launcher.record import Record

_ADDRESS = r"https?://\S+"
#: Options of a requirements file that hosts can use, and their values.
_OPTIONS = {
    **dict.fromkeys(("-i", "--index-url", "--extra-index-url", "-f", "--find-links"), _ADDRESS),
    **dict.fromkeys(("--pre", "--prefer-binary"), ""),
    "--trusted-host": r"[\w.:\[\]-]+",
}
_EXPECTED = "-i, --extra-index-url and -f with http(s)://..., --pre, --prefer-binary, --trusted-host HOST"
#: What is a file for pip, though it could be a name.
_ARCHIVE = re.compile(r"(?i)\.(whl|zip|tar|gz|tgz|bz2|xz)$")
_HASHES = re.compile(r"\s--hash[ =]\S+")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_PASSWORD = re.compile(r"(?<=://)\S+@")
#: The distributions of TensorFlow.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")


class Requirements(Record):
    """The packages that the user wants."""

    #: Each requirement, without comments.
    lines: tuple[str, ...] = ()
    #: Options about package indexes, a line each.
    options: tuple[str, ...] = ()
    #: Hosts whose certificates pip and uv do not check.
    trusted: tuple[str, ...] = ()


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
    written = [pair for path in files for pair in _of_file(path)] + [("PACKAGE", each) for each in packages]
    if not files and not packages:
        written = _of_project() or [_installed_here()]
    faults: list[Fault] = []
    lines: dict[str, list[str]] = {"": [], "--trusted-host": []}
    for place, text in written:
        text = " ".join(text.split())
        line = _VARIABLE.sub(lambda match: environ.get(match[1], match[0]), text)
        if problem := _problem(line):
            faults.append(Fault(place, f'"{masked(text)}"', problem))
        name, value = _option(line)
        lines.setdefault(name, []).append(value)
    if not faults and not any(lines[""]):
        faults.append(Fault(", ".join(map(shown_path, files)), "no packages", "expected at least one"))
    if faults:
        raise InputError(faults)
    needs, trusted = filter(None, lines.pop("")), lines.pop("--trusted-host")
    options = [f"{name} {value}".strip() for name, values in lines.items() for value in values]
    return Requirements(tuple(needs), tuple(options), tuple(trusted))


def _of_file(path: str) -> Iterator[tuple[str, str]]:
    """The lines of a requirements file, each with its place."""
    text, number = re.sub(r"\\\r?\n", "\0", read_text(path, "requirements file", InputError)), 1
    for line in text.splitlines():
        yield f"{shown_path(path)}:{number}", re.sub(r"(^|\s)#.*", "", line.replace("\0", " "))
        number += 1 + line.count("\0")


def _option(line: str) -> tuple[str, str]:
    """The name of an option and its value; of a requirement: no name, and itself."""
    if not line.startswith("-"):
        return "", line
    name, _, value = re.sub(r"^(-[a-z])(?=[^\s-])|=", r"\1 ", line, count=1).partition(" ")
    return name, value.strip()


def name_of(line: str) -> str:
    """The name of a package, as all spellings of it have it.

    Raises:
        InvalidRequirement: the line has another form than that of PEP 508.
    """
    return canonicalize_name(Requirement(_HASHES.sub("", line)).name)


def _problem(line: str) -> str:
    """Why a line can't be used, and what is expected; empty: it can."""
    name, value = _option(line)
    if unset := _VARIABLE.search(line):
        return f"the variable {unset[1]} is not set"
    if name:
        good = name in _OPTIONS and re.fullmatch(_OPTIONS[name], value)
        return "" if good else f"expected a requirement, or one of {_EXPECTED}"
    if _PASSWORD.search(line):
        return "has a password, which only options such as --index-url keep safe; expected no password"
    with suppress(InvalidRequirement):
        found = Requirement(_HASHES.sub("", line or "empty"))
        if not _ARCHIVE.search(found.name) and re.match(
            rf"{_ADDRESS}\.whl(#|$)", found.url or "http://x.whl"
        ):
            return ""
    return "expected NAME, NAME==VERSION or NAME @ https://...whl: hosts have no files of this machine"


def _of_project() -> list[tuple[str, str]]:
    """The dependencies of ``pyproject.toml``; empty: it has none, or there is no such file."""
    if not os.path.isfile("pyproject.toml"):
        return []
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]

    try:
        found = tomllib.loads(read_text("pyproject.toml", "project file", InputError))
        lines = found.get("project", {}).get("dependencies", [])
        if not isinstance(lines, list):
            raise InputError([Fault("pyproject.toml", "project.dependencies", "expected a list")])
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise InputError([Fault("pyproject.toml", str(error), "expected TOML")]) from error
    return [("pyproject.toml", str(line)) for line in lines]


def _installed_here() -> tuple[str, str]:
    for name in _TENSORFLOW:
        with suppress(metadata.PackageNotFoundError):
            return "the TensorFlow that is installed here", f"{name}=={metadata.version(name)}"
    expected = "expected PACKAGE..., -r FILE, requirements.txt, or TensorFlow installed here"
    raise InputError([Fault("", "no packages are named", expected)])
