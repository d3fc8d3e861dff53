"""The packages that a user wants: checked before anything is done with them. Then uv reads them.

Hosts get no line that names a file of this machine. Passwords in the addresses of package indexes are in no
file and on no command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launcher.config.schema import read_text, shown_path
from launcher.errors import Fault, InputError
from launcher.record import Record

#: Options about package indexes.
_OPTION = r"(-i|--(extra-)?index-url|-f|--find-links)[ =]https?://[^\s$]+|--trusted-host[ =][\w.:\[\]-]+"
#: A requirement has no slash, as paths have; only an address without a password has some.
_REQUIREMENT = r"\w([^/]*(?<!\.whl)|[^/@]*@ *https?://[^@\s]+\.whl(#\S+)?( .*)?)|--hash=\S+( *\\)?"
_EXPECTED = (
    "expected NAME, NAME==VERSION or NAME @ https://...whl, as hosts have no files of this machine; "
    "-i, --extra-index-url or -f with http(s)://... and variables that are set; or --trusted-host HOST"
)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_PASSWORD = re.compile(r"(?<=://)\S+@")
#: The distributions of TensorFlow.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")


class Requirements(Record):
    """The packages that the user wants."""

    #: The content of requirements files, with all options; of a project: that of its file.
    text: str = ""
    #: What uv reads: ``-`` for `text`.
    source: str = "-"
    #: Options about package indexes, a line each.
    options: str = ""


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
    if not files and not packages:
        if os.path.isfile("requirements.txt"):
            files = ["requirements.txt"]
        elif project := _project():
            return Requirements(project, "pyproject.toml")
        else:
            packages = [_installed_here()]
    written = [("PACKAGE", package) for package in packages]
    for path in files:
        lines = read_text(path, "requirements file", InputError).splitlines()
        written += [(f"{shown_path(path)}:{number}", line) for number, line in enumerate(lines, 1)]
    faults, found = [], []
    for place, line in written:
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        full = _VARIABLE.sub(lambda match: environ.get(match[1], match[0]), text)
        if full and not re.fullmatch(f"{_REQUIREMENT}|{_OPTION}", full):
            faults.append(Fault(place, f'"{masked(text)}"', _EXPECTED))
        found.append(full)
    if not faults and not any(found):
        faults.append(Fault(", ".join(map(shown_path, files)), "no packages", "expected at least one"))
    if faults:
        raise InputError(faults)
    options = [line for line in found if re.fullmatch(_OPTION, line)]
    return Requirements("\n".join(found), "-", "\n".join(options))


def _project() -> str:
    """The content of ``pyproject.toml``; empty: it has no dependencies, or there is no such file."""
    name = "pyproject.toml"
    text = read_text(name, "project file", InputError) if os.path.isfile(name) else ""
    return text if re.search(r"(?m)^dependencies\s*=", text) else ""


def _installed_here() -> str:
    from importlib import metadata

    for name in _TENSORFLOW:
        with suppress(metadata.PackageNotFoundError):
            return f"{name}=={metadata.version(name)}"
    expected = "expected PACKAGE..., -r FILE, requirements.txt, or TensorFlow installed here"
    raise InputError([Fault("", "no packages are named", expected)])
