"""What a setting is, and how the values of several sources become the settings of one launch.

A `Setting` is one row of the table of settings: an option of the command line, a key of files, or both. The
rows of ``launch`` itself are in `launcher.config.table`, those of a backend beside the backend. The command
line and each file are read into a `Level`, and `merge` makes `Settings` of them, which are read by row:
``settings[RESTARTS]`` is an int.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from launcher.common.errors import Fault
from launcher.common.record import Record
from launcher.config import values
from launcher.config.schema import Read
from launcher.job import Role

T_co = TypeVar("T_co", covariant=True)


#: Reads the key of a switch, whose option has no value.
switch = values.flag


class SourceKind(enum.Flag):
    """The kinds of sources of settings."""

    COMMAND_LINE = enum.auto()
    JOB_FILE = enum.auto()
    #: ``launch.toml``, or ``[tool.launch]`` of ``pyproject.toml``.
    PROJECT_FILE = enum.auto()


COMMAND_LINE = SourceKind.COMMAND_LINE
FILES = SourceKind.JOB_FILE | SourceKind.PROJECT_FILE
EVERYWHERE = COMMAND_LINE | FILES


class Need(Record):
    """What a launch must have so that an option has an effect."""

    #: The fault of an option without it. Needs with the same text are the same.
    problem: str
    expected: str


class Setting(Generic[T_co]):
    """One row of the table: its option, its key in files, how its value is read, its documentation.

    Args:
        name: The key in files; the option is ``--name`` with dashes. Unique among the rows of a command.
        parse: Converts a text, or raises ``ValueError("expected ...")``. With `switch` the option has no
            value, and the key is true or false.
        help: One line for ``--help``, the man page and the reference. Empty for an option that they hide.
        metavar: What stands for the value in the help.
        default: The value of a setting that is not given.
        flags: All spellings of the option if they are not just ``--name``.
        key: The key in files if it is not the name.
        value_optional: The option may be given without a value, which means an empty text. A metavar that
            begins with ``[=`` says that its value follows a ``=``; else the next word may be the value.
        repeatable: The option may be given several times, and the key may be a list. The value is a tuple.
        by_role: The option is ``[ROLE=]VALUE``, and the key may be a mapping of roles. The value is a tuple
            of pairs; an empty role stands for every role.
        once: What to type instead if the option is given twice. Empty: the last one counts.
        given_in: Where it may be given.
        read: Reads the value of the key where that is more than a text, a list or a mapping of roles.
        path: Makes a path of a file absolute; gets the path and the folder of the file.
        join: Makes one value of those of two levels, the weaker one first. None: the stronger level's counts.
        excludes: Names of settings that a level drops from weaker levels when it gives this one.
        needs: What the option must have to have an effect.
        positional: How many words an argument without a name has: ``1``, or ``?``, ``*``, ``+``, ``...`` as
            argparse has them. None: it is an option.
        complete: Returns the words that a shell completes.
    """

    def __init__(  # noqa: PLR0913 - declarations give them by name
        self,
        name: str,
        parse: Callable[[str], Any],
        help: str = "",
        *,
        default: T_co,
        metavar: str = "",
        flags: Sequence[str] = (),
        key: str = "",
        value_optional: bool = False,
        repeatable: bool = False,
        by_role: bool = False,
        once: str = "",
        given_in: SourceKind = COMMAND_LINE,
        read: Read | None = None,
        path: Callable[[str, str], str] | None = None,
        join: Callable[[Any, Any], T_co] | None = None,
        excludes: Sequence[str] = (),
        needs: Need | None = None,
        positional: str | None = None,
        complete: Callable[[], list[str]] | None = None,
    ) -> None:
        self.name, self.parse, self.help, self.default = name, parse, help, default
        self.flags = tuple(flags) or (f"--{name.replace('_', '-')}",)
        self.key = key or name
        #: The possible values, for the help and for completion; empty: there are others.
        self.choices = parse.choices if isinstance(parse, values.OneOf) else ()
        self.metavar = metavar or ("{" + ",".join(self.choices) + "}" if self.choices else "")
        self.value_optional, self.once = value_optional, once
        self.repeatable, self.by_role = repeatable, by_role
        self.given_in, self.read, self.path, self.join = given_in, read, path, join
        self.excludes, self.needs, self.positional = tuple(excludes), needs, positional
        self.complete = complete

    def __repr__(self) -> str:
        return f"Setting({self.name!r})"

    @property
    def flag(self) -> str:
        """The option, or the name of the argument, for messages."""
        if self.positional is not None:
            return self.metavar
        usual = f"--{self.name.replace('_', '-')}"
        return usual if usual in self.flags else self.flags[-1]

    @property
    def key_help(self) -> str:
        """The description of the key, for the reference: a list needs no hint that options are repeatable."""
        text = self.help.removesuffix("; repeatable").rstrip(".")
        return f"{text[:1].upper()}{text[1:]}."

    @property
    def is_switch(self) -> bool:
        """Whether the option has no value."""
        return self.parse is switch

    @property
    def takes_next_word(self) -> bool:
        """Whether the word after the option may be its value."""
        return not (self.is_switch or self.metavar.startswith("[="))

    @property
    def without_value(self) -> Any:
        """The value of an option that is given without one."""
        return True if self.is_switch else ""


class Group(Record):
    """Rows under one title of the help."""

    title: str
    rows: tuple[Setting[Any], ...]


class FileSection(Record):
    """A key of files with settings of its own, as ``docker:``."""

    name: str
    help: str
    #: The setting that the section gives by being there.
    head: Setting[Any]
    rows: tuple[Setting[Any], ...]
    #: The fault of a value that is no mapping.
    expected: str
    #: The key that a text in place of the mapping stands for: ``docker: IMAGE``. Empty: there is none.
    short: str = ""


# ---------------------------------------------------------------------- levels


class Given(Record):
    """A value as one source gives it."""

    value: Any
    #: The source for messages: ``--restarts``, ``job.yaml:3``, ``launch.toml:14``.
    source: str
    kind: SourceKind
    #: The value as the user wrote it.
    text: str = ""


#: What one source gives, by the names of the rows.
Level = Mapping[str, Given]


class FileContent(Record):
    """What a job file or a project file says."""

    level: Level = {}
    roles: tuple[Role, ...] = ()
    #: Notes for the user.
    notes: tuple[str, ...] = ()
    #: The faults. With any of them there are no roles, and nothing of sections.
    faults: tuple[Fault, ...] = ()


def command_line_level(texts: Mapping[str, Any], rows: Sequence[Setting[Any]]) -> tuple[Level, list[Fault]]:
    """Read the texts of a command line.

    Args:
        texts: By the name of the row: a text; a list of texts for a row that may be given several times; True
            for a switch.
        rows: The rows that the command has.

    Returns:
        The values, and the faults of all texts that are wrong.
    """
    level: dict[str, Given] = {}
    faults: list[Fault] = []
    for row in rows:
        if row.name not in texts:
            continue
        written = texts[row.name]
        words = written if isinstance(written, list) else [written]
        if row.once and len(set(words)) > 1:
            faults.append(Fault(row.flag, "the option is given twice", f"expected once; {row.once}"))
        values = [_parsed(row, word, faults) for word in words]
        if None not in values:
            value = tuple(values) if row.repeatable or row.by_role else values[-1]
            level[row.name] = Given(value, source=row.flag, kind=COMMAND_LINE, text=",".join(map(str, words)))
    return level, faults


class HiddenValueError(ValueError):
    """A value is wrong and may be secret, so the fault does not show it."""


def _parsed(row: Setting[Any], word: Any, faults: list[Fault]) -> Any:
    """Return the value of one word of a command line. If it is wrong, add a fault and return None."""
    if row.is_switch:
        return True
    role, _, text = word.rpartition("=") if row.by_role else ("", "", word)
    try:
        # Without a value the parser is not asked: an empty text is no image.
        value = text if row.value_optional and not text else row.parse(text)
    except ValueError as error:
        is_hidden = isinstance(error, HiddenValueError)
        faults.append(Fault(row.flag, str(error)) if is_hidden else Fault(row.flag, repr(word), str(error)))
        return None
    return (role, value) if row.by_role else value


# ---------------------------------------------------------------------- the settings of a launch


class Settings:
    """The values of one launch with their sources. What no level gives has its default.

    It is pickled for a launcher that runs elsewhere, so it has values by the names of rows and no rows.

    Args:
        given: Name of a row -> its value and where that comes from. Of a joined value: those of all levels,
            the weakest first.
        joined: Name of a row -> its value, where it is not that of the last level.
    """

    def __init__(self, given: Mapping[str, Sequence[Given]] = {}, joined: Mapping[str, Any] = {}) -> None:
        self._given = {name: tuple(parts) for name, parts in given.items()}
        self._joined = dict(joined)

    def __getitem__(self, setting: Setting[T_co]) -> T_co:
        if not self.is_given(setting):
            return setting.default
        value: T_co = self._joined.get(setting.name, self._given[setting.name][-1].value)
        return value

    def is_given(self, setting: Setting[Any]) -> bool:
        """Return whether any level gives it; its value may be that of the default."""
        return setting.name in self._given

    def source(self, setting: Setting[Any]) -> str:
        """Return where the value is from, as ``--restarts`` or ``job.yaml:3``. Empty: it is the default."""
        return self._given[setting.name][-1].source if self.is_given(setting) else ""

    def source_kind(self, setting: Setting[Any]) -> SourceKind | None:
        """Return the kind of source that the value is from. None: it is the default."""
        return self._given[setting.name][-1].kind if self.is_given(setting) else None

    def text(self, setting: Setting[Any]) -> str:
        """Return the value as the user wrote it. Empty: it is the default."""
        return self._given[setting.name][-1].text if self.is_given(setting) else ""

    def parts(self, setting: Setting[Any]) -> Sequence[Given]:
        """Return what each level gives of a joined value, the weakest first."""
        return self._given.get(setting.name, ())

    def given_in(self, kind: SourceKind) -> Iterator[tuple[str, Given]]:
        """Yield what such a source gives, by names of rows and in its order, but what others replace."""
        for name, parts in self._given.items():
            for given in parts:
                if given.kind == kind:
                    yield name, given

    def with_values(self, values: Mapping[Setting[Any], Any]) -> Settings:
        """Return a copy with other values, as for a launcher that has other folders. Sources stay."""
        changed = {row.name: value for row, value in values.items() if self[row] != value}
        given = {name: self._given.get(name, [Given(None, "", COMMAND_LINE)]) for name in changed}
        return Settings({**self._given, **given}, {**self._joined, **changed})


def merge(levels: Sequence[Level], rows: Sequence[Setting[Any]]) -> tuple[Settings, list[Fault]]:
    """Merge levels into settings.

    Args:
        levels: What each source gives, the weakest first: a project file or job file, then the command line.
        rows: The rows of the command.

    Returns:
        The settings, and a fault for each row that is given beside one that it excludes.
    """
    by_name = {row.name: row for row in rows}
    found: dict[str, list[Given]] = {}
    for level in levels:
        for row in rows:
            for other in row.excludes:
                if row.name in level:
                    found.pop(other, None)
                if other in level:
                    found.pop(row.name, None)
        for name, given in level.items():
            weaker = found.get(name, []) if by_name[name].join else []
            found[name] = [*weaker, given]
    faults = [
        Fault(found[row.name][-1].source, f"{found[other][-1].source} is given, too", "expected one of them")
        for row in rows
        for other in row.excludes
        if row.name in found and other in found
    ]
    joined = {
        row.name: functools.reduce(row.join, [part.value for part in found[row.name]])
        for row in rows
        if row.join and row.name in found
    }
    return Settings(found, joined), faults
