"""Finds the files of a program that ``launch export kubernetes`` writes into the ConfigMap.

A program that is neither in the ConfigMap nor in the images fails only when its pods start, so this module
also says what was left out. It reads source files, but never runs or imports them.
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
        spec: The job. Its working folder is on this machine.

    Returns:
        The content of each file by its path in the working folder, and notes for the user on what was left
        out. If the files are too large together, the packages that programs import are left out. If they
        are too large even then, or one of them is not text, there are none.
    """
    # Two sets are collected, because the smaller one may fit into a ConfigMap if the larger one does not.
    base = Path(os.path.expanduser(spec.workdir or ".")).resolve()
    program_only: set[Path] = set()
    with_imports: set[Path] = set()
    notes = []
    for program in dict.fromkeys(role.program for role in spec.roles):
        if program.kind is ProgramKind.SCRIPT:
            script = Path(os.path.realpath(base / program.name))
            # Python looks for modules beside a script first, so all of them may be imported.
            files, folder = {script, *script.parent.glob("*.py")}, script.parent
            if not os.path.isfile(script):
                notes.append(f"{program.name} is not here: the images must contain it")
                files = set()  # The modules of the images belong to it.
        elif program.kind is ProgramKind.MODULE:
            files, folder = _module(program.name, base), base
        else:  # The command is an executable with scripts as arguments, such as `python train.py`.
            scripts = (os.path.realpath(base / word) for word in program.args if word.endswith(".py"))
            files, folder = {*map(Path, scripts)}, base
        program_only |= files
        with_imports |= _with_imports(files, folder)
    candidates = ((with_imports, "the packages that the program imports"), (program_only, "the program"))
    for files, what in candidates:
        # Pods have only the working folder, so files elsewhere must be in the images anyway.
        paths = sorted(path for path in files if os.path.isfile(path) and base in path.parents)
        size = _size(paths)
        if size <= MAX_CONFIG_MAP_BYTES:
            break
        left_out = f"{plural(len(paths), 'file')}, {byte_size(size)} or more"
        notes.append(f"the ConfigMap cannot contain {what}: {left_out}; the images must contain them")
    else:  # Both sets of files are too large.
        return {}, notes
    try:
        texts = {str(path.relative_to(base)): path.read_bytes().decode() for path in paths}
        return texts, [*notes, *_missing_files_note(spec, base, texts)]
    except UnicodeDecodeError as error:
        problem = f"byte 0x{error.object[error.start]:02x} of a file beside it is not UTF-8"
        note = f"the ConfigMap cannot contain the program: {problem}; the images must contain it"
        return {}, [*notes, note]


def _missing_files_note(spec: JobSpec, base: Path, texts: Collection[str]) -> Iterator[str]:
    """Yield a note if command lines name files of the working folder that pods will not find.

    Args:
        spec: The job.
        base: The working folder.
        texts: The paths of the files in the ConfigMap, relative to the working folder.
    """
    # A role with a folder of its own runs in a folder of its image, to which its paths are relative.
    programs = [role.program for role in spec.roles if role.workdir is None]
    # Any word may name a file, even as the value of an option, as in --config=model.json. Absolute paths and
    # those below the home are left out, because users know that a pod lacks them.
    words = {word.rpartition("=")[2] for program in programs for word in (program.name, *program.args)}
    # The test also excludes empty words, which begin with an empty text.
    named = {word for word in words if word[:1] not in "/~"}
    named |= {program.name for program in programs if program.kind is ProgramKind.SCRIPT}
    files = sorted(word for word in named if os.path.isfile(base / word))
    missing = [word for word in files if os.path.normpath(word) not in texts]
    if missing:
        yield f"pods do not contain {join_names(missing)} of this machine: the images must contain them"


def _with_imports(files: set[Path], folder: Path) -> set[Path]:
    """Return these files and all modules of a folder that they import, directly or through other modules.

    The search stops as soon as the files are too large for a ConfigMap.
    """
    found, unread, seen_names = set(files), [*files], set[str]()
    while unread and _size(found) <= MAX_CONFIG_MAP_BYTES:
        for name in _imported(unread.pop()) - seen_names:
            seen_names.add(name)
            new_files = _module(name, folder) - found
            found |= new_files
            unread += new_files
    return found


def _module(name: str, folder: Path) -> set[Path]:
    """Return the files of a module below a folder, and all files of its top package.

    Args:
        name: The full name of the module, such as ``models.wide.train``.
        folder: The folder in which Python would look for it.

    Returns:
        The files. There are none if the folder does not contain the module.
    """
    first, *others = name.split(".")
    path = folder.joinpath(first, *others)
    files = {folder / f"{first}.py", path.with_name(f"{path.name}.py"), path / "__main__.py"}
    if os.path.isfile(folder / first / "__init__.py"):
        files |= _package(folder / first)
    return {file for file in files if os.path.isfile(file)}


def _package(folder: Path) -> set[Path]:
    """Return the files of all modules in a package and in the packages below it. Links are not followed."""
    subpackages = (file.parent for file in folder.glob("*/__init__.py") if not file.parent.is_symlink())
    return {*folder.glob("*.py")}.union(*map(_package, subpackages))


def _imported(file: Path) -> set[str]:
    """Return the top packages of all modules that a file imports by their full names.

    Relative imports are left out. A file that cannot be read or parsed imports nothing.
    """
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()  # Python will report the error in the task.
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - {""}


def _size(files: Iterable[Path]) -> int:
    """Return the number of bytes of all files together."""
    return sum(file.stat().st_size for file in files if os.path.isfile(file))
