"""The pages of the reference that are made from the source: commands, hostfile, job file, Python names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe

import launcher
from launcher import backends, testing
from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS, command_module
from launcher.cli.help_text import sections_of
from launcher.config import table
from launcher.config.hostfile import HOST, HOSTFILE
from launcher.config.jobfile import ROLE
from launcher.config.schema import KeySpec
from launcher.config.settings import Setting, SourceKind

ROOT = Path(__file__).resolve().parents[1]

#: Title -> the names of `launcher` below it, in this order.
GROUPS = {
    "Run a program": "run",
    "Run functions": "TFCluster TFParallel InputMode",
    "In the function": "TFNodeContext DataFeed TFNode compat",
    "Data": "TextFiles CsvFiles TFRecordFiles ParquetFiles partitions rows data.tf_dataset",
    "Reports": "Report TaskReport Failure Reason TaskState ExitStatus TaskId",
    "Errors": (
        "LaunchError InputError HostfileError JobError JobFailed TaskFailed FeedError FeedTimeout "
        "StorageError"
    ),
}


#: In searches the options come early.
_EARLY = "---\nsearch: {boost: 10}\n---"


def pages() -> dict[str, str]:
    """The pages, by path.

    Raises:
        ValueError: public names, methods or parameters without documentation; the message names all of them.
    """
    return {
        "reference/commands.md": commands_page(),
        "reference/hostfile.md": hostfile_page(),
        "reference/jobfile.md": jobfile_page(),
        "reference/python.md": python_page(),
    }


# ---------------------------------------------------------------------- commands


def commands_page() -> str:
    """Every command with every option."""
    parts = [_EARLY, "# Commands and options", "`launch PROGRAM` is short for `launch run PROGRAM`."]
    modules = {name: command_module(name) for name in COMMANDS}
    for name, module in modules.items():
        parts.append(f"[`launch {name}`](#launch-{name})\n:   {_sentence(module.SUMMARY)}")
    for name, module in modules.items():
        usage = command_parser(name).format_usage().removeprefix("usage: ").replace(f"\n{' ' * 7}", "\n")
        parts += [f"## launch {name}", _sentence(module.SUMMARY), _code(usage, "text")]
        for section in sections_of(name):
            parts.append(f"**{section.title.capitalize()}**")
            parts += [f"`{row.name}`\n:   {_sentence(row.description)}" for row in section.rows]
        parts += ["**Examples**", _code(module.EXAMPLES, "text")]
    return _page(parts)


# ---------------------------------------------------------------------- keys of files


def hostfile_page() -> str:
    """Every key of a hostfile."""
    example = (ROOT / "hostfiles" / "lab.yaml").read_text(encoding="utf-8")
    return _page(
        [
            "# Hostfile",
            "`launch --hosts FILE` reads the hosts of a job. [All forms](../../hostfiles/README.md).",
            _code(example, "yaml"),
            "## Keys of the file",
            *_keys(HOSTFILE.values()),
            "## Keys of a host",
            "Lines of a plain hostfile have all keys but `name` and `env`.",
            *_keys(HOST.values()),
        ]
    )


def jobfile_page() -> str:
    """Every key of a job file."""
    parts = [
        "# Keys of the job file",
        "`launch job.yaml` runs a job with these settings. [Example and rules](../jobfile.md).",
        "## Keys of the job",
        *_keys([*_keys_of(table.ROWS), *(KeySpec(each.name, each.help) for each in backends.sections())]),
        "## Keys of a role",
        "A role below `roles:` is a number of tasks, or a mapping with these keys.",
        *_keys(ROLE.values()),
    ]
    for section in backends.sections():
        parts += [f"## Keys of {section.name}", section.help, *_keys(_keys_of(section.rows))]
    return _page(parts)


def _keys_of(rows: Iterable[Setting[Any]]) -> Iterator[KeySpec]:
    """The keys of job files among these rows."""
    for row in rows:
        if SourceKind.JOB_FILE in row.given_in:
            yield KeySpec(row.key, row.key_help)


def _keys(keys: Iterable[KeySpec]) -> Iterator[str]:
    """A definition of each key."""
    for key in keys:
        yield f"`{key.name}`\n:   {key.help}"


# ---------------------------------------------------------------------- Python


def python_page() -> str:
    """Every public name, which mkdocstrings documents from the source."""
    tests = [f"testing.{name}" for name in testing.__all__]
    missing = list(undocumented([*launcher.__all__, "data.tf_dataset", *tests]))
    groups = {title: names.split() for title, names in GROUPS.items()}
    grouped = [name for names in groups.values() for name in names]
    missing += [
        f"launcher.{name}: not in GROUPS of {__file__}" for name in launcher.__all__ if name not in grouped
    ]
    if missing:
        raise ValueError("public names without documentation:\n  " + "\n  ".join(missing))
    parts = ["# Python names", "[The Python API](../python-api.md) shows how they are used."]
    for title, names in groups.items():
        parts += [f"## {title}", *(f"::: launcher.{name}" for name in names)]
    parts += ["## Tests", "[The pytest fixture `cluster`](../testing.md) is a `Cluster`."]
    parts += [f"::: launcher.{name}" for name in tests]
    return _page(parts)


def undocumented(names: Iterable[str]) -> Iterator[str]:
    """Those of these names of `launcher`, their methods and their parameters that have no documentation."""
    extensions = griffe.load_extensions(str(ROOT / "docs" / "docstrings.py"), "unpack_typeddict")
    package = griffe.load("launcher", docstring_parser="google", extensions=extensions)
    for name in names:
        found = package[name]
        target = found.final_target if isinstance(found, griffe.Alias) else found
        yield from _undocumented(f"launcher.{name}", target)


def _undocumented(path: str, found: griffe.Object) -> Iterator[str]:
    """An object, its public methods and its parameters that have no documentation."""
    if found.docstring is None:
        yield path
    if isinstance(found, griffe.Function):
        yield from _parameters(path, found, found)
    if not isinstance(found, griffe.Class):
        return
    for name, member in {**found.inherited_members, **found.members}.items():
        method = member.final_target if isinstance(member, griffe.Alias) else member
        if not isinstance(method, griffe.Function):
            continue
        if name == "__init__":
            yield from _parameters(path, method, found, method.parent)
        elif not name.startswith("_"):
            yield from _undocumented(f"{path}.{name}", method)


def _parameters(path: str, function: griffe.Function, *documented: Any) -> Iterator[str]:
    """The parameters of a function that none of the objects documents."""
    sections = [section for found in documented if found.docstring for section in found.docstring.parsed]
    known = {
        entry.name.lstrip("*")
        for section in sections
        if isinstance(section, (griffe.DocstringSectionParameters, griffe.DocstringSectionAttributes))
        for entry in section.value
        if entry.description
    }
    for parameter in function.parameters:
        if parameter.name not in {"self", "cls", *known}:
            yield f"{path}({parameter.name})"


# ---------------------------------------------------------------------- Markdown


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _code(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _sentence(text: str) -> str:
    """``text`` with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
