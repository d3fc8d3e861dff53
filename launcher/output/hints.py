"""Hints for tasks that failed, by what their last lines show. The rows of the table are in ``hints.toml``.

`launcher.output.failure` calls `hints`. It reads only the lines and the facts that it gets.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from launcher.common.record import Record, as_dict
from launcher.package_data import read_table


class FailureFacts(Record):
    """The knowledge of the launcher about the task that failed. Conditions and texts of hints use it."""

    #: The Python that ran the task. Empty if that is not known.
    python: str = ""
    #: Whether that is the Python of launch, although another environment is active.
    beside_active_environment: bool = False
    #: Whether the task ran on another machine, and not in a container.
    elsewhere: bool = False
    #: Whether that machine was reached over SSH.
    over_ssh: bool = False
    in_container: bool = False
    #: Whether ``--sync`` copied folders to its host.
    synced: bool = False
    #: The name of its environment, if ``launch prepare`` makes this environment. Otherwise empty.
    venv: str = ""
    #: The command that prepares its host.
    prepare: str = "launch prepare"
    #: How files get into its container. Empty if it ran in none.
    files: str = ""
    #: The names of modules in the current folder and in the folder of the program.
    modules_here: frozenset[str] = frozenset()
    #: The names of variables that are set for launch, but not for the task.
    not_passed: frozenset[str] = frozenset()
    #: The names of variables that are set for the task, as far as that is known.
    passed: frozenset[str] = frozenset()


#: Returns whether a row fits the task whose line matches the pattern of the row.
Condition = Callable[[FailureFacts, "re.Match[str]"], bool]


class Hint(Record):
    """A row of the table: for which lines of a task there is a hint, and its text."""

    #: The name of the row, for the tests.
    name: str
    #: Matches the lines for which there is the hint.
    pattern: re.Pattern[str]
    #: What to do. A name in braces stands for a field of `FailureFacts`, or for a group of the pattern.
    text: str
    #: A further condition for the hint.
    when: Condition


def _is_module_here(facts: FailureFacts, found: re.Match[str]) -> bool:
    """Return whether the module that the task lacks is on this machine, but was not copied to its host."""
    away = facts.elsewhere or facts.in_container
    return away and not facts.synced and found["module"].partition(".")[0] in facts.modules_here


def _is_name_of_tensorflow_1(_: FailureFacts, found: re.Match[str]) -> bool:
    """Return whether the name that a module of TensorFlow lacks is one that TensorFlow 1 had there."""
    names: str = read_table("output/tensorflow1_names.toml").get(found["module"] or "tensorflow", "")
    return found["name"] in names.split()


#: The conditions of rows, by their names in the file.
_CONDITIONS: Mapping[str, Condition] = {
    "": lambda facts, found: True,  # It is the condition of rows that name none.
    "elsewhere": lambda facts, found: facts.elsewhere,
    "over ssh": lambda facts, found: facts.over_ssh,
    "copied": lambda facts, found: facts.elsewhere and facts.synced,
    "elsewhere, not copied": lambda facts, found: facts.elsewhere and not facts.synced,
    "in a container": lambda facts, found: facts.in_container,
    "in a prepared environment": lambda facts, found: facts.elsewhere and bool(facts.venv),
    "beside an active environment": lambda facts, found: facts.beside_active_environment,
    "module here": _is_module_here,
    "PYTHONPATH not passed": lambda facts, found: "PYTHONPATH" in facts.not_passed,
    "LD_LIBRARY_PATH not passed": lambda facts, found: "LD_LIBRARY_PATH" in facts.not_passed,
    "wants Keras 2": lambda facts, found: "TF_USE_LEGACY_KERAS" in facts.passed,
    "name of TensorFlow 1": _is_name_of_tensorflow_1,
}


@functools.cache
def known_hints() -> Sequence[Hint]:
    """Return the rows of the table.

    The first call takes 15 milliseconds and half a megabyte, which only a launch that fails has to pay.
    """
    return tuple(_read_hints())


def _read_hints() -> Iterator[Hint]:
    """Yield the rows of the file, then one row for each variable of other launchers."""
    file = read_table("output/hints.toml")
    # A row names its lines by patterns, or by the name of a list of patterns that several rows share.
    named = {name: "|".join(lines) for name, lines in file["patterns"].items()}
    for row in file["hints"]:
        pattern = re.compile("|".join(named.get(line, line) for line in row["lines"]))
        yield Hint(row["name"], pattern, row["text"], when=_CONDITIONS[row.get("when", "")])
    for placeholder, names in file["variables"].items():
        yield _variable_hint(placeholder, "|".join(names))


def _variable_hint(placeholder: str, names: str) -> Hint:
    """Return the row for a program that reads a variable of another launcher.

    Args:
        placeholder: The placeholder of launch with the same meaning.
        names: A pattern of the names that the variable has in other launchers.
    """
    # Each of the three groups may contain the variable. A pattern cannot contain two groups of one name, so
    # they differ by ``_`` at their ends, which `_text` ignores. Braces that the f-strings double remain for
    # `_text`, which fills in ``{variable}``, and shows ``{{RANK}}`` as ``{RANK}``.
    return Hint(
        f"variable {placeholder}",
        re.compile(
            rf"^KeyError: '(?P<variable>{names})'|environment variable (?P<variable_>{names}) expected"
            rf"|(?:^|: )(?P<variable__>{names}): (?:unbound variable|parameter (?:null or )?not set)"
        ),
        f"another launcher sets {{variable}}; this one passes it by -x '{{variable}}={{{{{placeholder}}}}}'"
        " (docs/tasks.md, Placeholders)",
        when=_CONDITIONS[""],  # This row has no condition.
    )


def hints(lines: Iterable[str], facts: FailureFacts, table: Sequence[Hint] | None = None) -> list[str]:
    """Return the hints for these lines, each once, in the order of the table.

    Args:
        lines: What the task printed last, or why it could not be started.
        facts: What is known about the task.
        table: The rows. None stands for those of `known_hints`.
    """
    table = known_hints() if table is None else table
    found: dict[str, str] = {}
    for line in lines:
        for row in table:
            match = row.pattern.search(line)
            if match and row.when(facts, match):
                found.setdefault(row.name, _text(row, match, facts))
                break  # The first row that fits a line is the best one.
    # A text is empty if it is only a field of the facts that is empty, as ``{files}`` may be.
    return [found[row.name] for row in table if found.get(row.name)]


def _text(row: Hint, match: re.Match[str], facts: FailureFacts) -> str:
    """Return the text of a row for a line.

    A pattern cannot contain two groups of one name, so groups with one meaning differ by ``_`` at their ends.

    Args:
        row: The row.
        match: The match of its pattern in the line.
        facts: What is known about the task.
    """
    groups = {name.rstrip("_"): text for name, text in match.groupdict().items() if text}
    known = {**as_dict(facts), "python": facts.python or "the Python that its command names"}
    return row.text.format_map({**known, **groups})
