"""The files of a program that ``launch export kubernetes`` writes into the ConfigMap.

A program that is not in them, and not in the images either, fails in its pods only, so the user is told what
is left out.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from launcher.common.text import byte_size, join_names, plural
from launcher.export.kubernetes import MAX_CONFIG_MAP_BYTES
from launcher.job import JobSpec, ProgramKind


def program_files(spec: JobSpec) -> tuple[dict[str, str], list[str]]:
    """Read the programs of a job, and the modules that they import, as far as the working folder has them.

    Args:
        spec: The job, whose working folder is on this machine.

    Returns:
        The content of each file by its path in the working folder, and notes for the user on what was left
        out. If the files are too large together, the packages that programs import are left out. If they
        are too large even then, or one of them is not text, there are none.
    """
    base = Path(os.path.expanduser(spec.workdir or ".")).resolve()
    own: set[Path] = set()
    every: set[Path] = set()
    notes = []
    for program in dict.fromkeys(role.program for role in spec.roles):
        if program.kind is ProgramKind.SCRIPT:
            script = Path(os.path.realpath(base / program.name))
            if not os.path.isfile(script):
                notes.append(f"{program.name} is not here: the images must have it")
            files, folder = {script, *script.parent.glob("*.py")}, script.parent
        elif program.kind is ProgramKind.MODULE:
            files, folder = _module(program.name, base), base
        else:  # python train.py
            scripts = (os.path.realpath(base / word) for word in program.args if word.endswith(".py"))
            files, folder = {*map(Path, scripts)}, base
        own |= files
        every |= _with_imports(files, folder)
    for found in (every, own):
        paths = sorted(path for path in found if os.path.isfile(path) and base in path.parents)
        size = _size(paths)
        if size <= MAX_CONFIG_MAP_BYTES:
            break
        what = "the program" if found is own else "the packages that the program imports"
        left_out = f"{plural(len(paths), 'file')}, {byte_size(size)} or more"
        notes.append(f"the ConfigMap can't have {what}: {left_out}; the images must have them")
    else:
        return {}, notes
    try:
        texts = {str(path.relative_to(base)): path.read_bytes().decode() for path in paths}
        return texts, [*notes, *_named(spec, base, texts)]
    except UnicodeDecodeError as error:
        problem = f"byte 0x{error.object[error.start]:02x} of a file beside it is not UTF-8"
        return {}, [*notes, f"the ConfigMap can't have the program: {problem}; the images must have it"]


def _named(spec: JobSpec, base: Path, texts: Collection[str]) -> Iterator[str]:
    """Yield a note on files of the working folder that the command lines name, but pods do not have."""
    programs = [role.program for role in spec.roles if role.workdir is None]
    words = {word.rpartition("=")[2] for program in programs for word in (program.name, *program.args)}
    named = {word for word in words if word[:1] not in "/~"}
    named |= {program.name for program in programs if program.kind is ProgramKind.SCRIPT}
    files = sorted(word for word in named if os.path.isfile(base / word))
    missing = [word for word in files if os.path.normpath(word) not in texts]
    if missing:
        yield f"pods do not have {join_names(missing)} of this machine: the images must have them"


def _with_imports(files: set[Path], folder: Path) -> set[Path]:
    """Return files, and the modules and packages of a folder that they import.

    Nothing more is looked for as soon as they are too large.
    """
    found, left, looked_for = set(files), [*files], set[str]()
    while left and _size(found) <= MAX_CONFIG_MAP_BYTES:
        for name in _imported(left.pop()) - looked_for:
            looked_for.add(name)
            more = _module(name, folder) - found
            found |= more
            left += more
    return found


def _module(name: str, folder: Path) -> set[Path]:
    """Return the files of a module in a folder, with those of its packages; empty if the folder has none."""
    first, *others = name.split(".")
    path = folder.joinpath(first, *others)
    files = {folder / f"{first}.py", path.with_name(f"{path.name}.py"), path / "__main__.py"}
    if os.path.isfile(folder / first / "__init__.py"):
        files |= _package(folder / first)
    return {file for file in files if os.path.isfile(file)}


def _package(folder: Path) -> set[Path]:
    """Return the modules of a package, and of the packages in it."""
    inner = (file.parent for file in folder.glob("*/__init__.py") if not file.parent.is_symlink())
    return {*folder.glob("*.py")}.union(*map(_package, inner))


def _imported(file: Path) -> set[str]:
    """Return the first names of all modules that a file imports by their full names."""
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()  # Python will report it in the task
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - {""}


def _size(files: Iterable[Path]) -> int:
    """Return the number of bytes of all files together."""
    return sum(file.stat().st_size for file in files if os.path.isfile(file))
