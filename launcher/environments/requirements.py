"""The packages that a user wants: checked before anything is done with them. Then uv reads them.

Hosts get no line that names a file of this machine. Passwords in the addresses of package indexes are in no
file and on no command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from string import Template

from launcher.common.errors import Fault, InputError
from launcher.common.record import Record
from launcher.config.schema import read_text, shown_path

#: Options about package indexes.
_OPTION_PATTERN = (
    r"(-i|--(extra-)?index-url|-f|--find-links)[ =]https?://[^\s$]+|--trusted-host[ =][\w.:\[\]-]+"
)
#: A package by its name, or with the address of its wheel; no path, option or password.
_REQUIREMENT_PATTERN = r"(?!.*\s-)\w([^/\\\n]*(?<!\.whl)|[^/@\n]*@ *https?://[^@\s]+\.whl(#\S+)?( *;.*)?)"
#: A user and a password in a wrong line: also in an address without a scheme, or with spaces.
_SECRET_PATTERN = r"(?<=://).+@|(?<![^\s=:])[^\s=:]+:(?!//).*@"
_EXPECTED = (
    "expected NAME, NAME==VERSION or NAME @ https://...whl, as hosts have no files of this machine; "
    "-i, --extra-index-url or -f with http(s)://... and variables that are set; or --trusted-host HOST"
)
#: The file of a project, and the distributions of TensorFlow.
_PROJECT_FILE = "pyproject.toml"
_TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")


class Requirements(Record):
    """The packages that the user wants."""

    #: The content of requirements files, with all options; of a project: that of its file.
    text: str = ""
    #: What uv reads: ``-`` for `text`.
    source: str = "-"
    #: Options about package indexes, a line each.
    options: str = ""


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
        project = (
            read_text(_PROJECT_FILE, "project file", InputError) if os.path.isfile(_PROJECT_FILE) else ""
        )
        if os.path.isfile("requirements.txt"):
            files = ["requirements.txt"]
        elif re.search(r"(?m)^dependencies\s*=", project):
            return Requirements(project, _PROJECT_FILE)
        else:
            from importlib import metadata  # 18 ms

            here = [
                found for name in _TENSORFLOW_DISTRIBUTIONS for found in metadata.distributions(name=name)
            ]
            packages = [f"{found.metadata['Name']}=={found.version}" for found in here[:1]]
        if not files and not packages:
            expected = "expected PACKAGE..., -r FILE, requirements.txt, or TensorFlow installed here"
            raise InputError([Fault("", "no packages are named", expected)])
    written = [("PACKAGE", package) for package in packages]
    for path in files:
        lines = read_text(path, "requirements file", InputError).splitlines()
        written += [(f"{shown_path(path)}:{number}", line) for number, line in enumerate(lines, 1)]
    faults, found = [], []
    for place, line in written:
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        full = Template(text).safe_substitute(environ)
        if full and not re.fullmatch(f"{_REQUIREMENT_PATTERN}|{_OPTION_PATTERN}", full):
            faults.append(Fault(place, f'"{re.sub(_SECRET_PATTERN, "****@", text)}"', _EXPECTED))
        found.append(full)
    if faults:
        raise InputError(faults)
    options = [line for line in found if re.fullmatch(_OPTION_PATTERN, line)]
    return Requirements("\n".join(found), "-", "\n".join(options))
