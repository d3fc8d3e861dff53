"""Defines settings, and merges the values of several sources into the settings of one launch.

A `Setting` is one row of the table of settings: an option of the command line, a key of files, or both. The
rows of ``launch`` itself are in `launcher.config.table`, and those of a backend are beside the backend. The
command line and each file are read into a `Level`. `merge` makes `Settings` of the levels, whose values are
read by row: ``settings[RESTARTS]`` is an int. No code may look at argparse's result or at a file instead.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from launcher.common.errors import Fault
from launcher.common.record import Record
from launcher.common.text import without_passwords
from launcher.config import values
from launcher.config.schema import Read
from launcher.job import Role

T_co = TypeVar("T_co", covariant=True)


#: The reader for the key of a switch, which is a setting whose option has no value.
switch = values.flag


class SourceKind(enum.Flag):
    """The kinds of sources from which the value of a setting can come."""

    COMMAND_LINE = enum.auto()
    JOB_FILE = enum.auto()
    #: ``launch.toml``, or ``[tool.launch]`` of ``pyproject.toml``.
    PROJECT_FILE = enum.auto()


COMMAND_LINE = SourceKind.COMMAND_LINE
FILES = SourceKind.JOB_FILE | SourceKind.PROJECT_FILE
EVERYWHERE = COMMAND_LINE | FILES


#: What messages and files show in place of a value that may be secret.
HIDDEN = "..."


class Need(Record):
    """Something without which an option has no effect, such as other machines among the hosts."""

    #: The fault of the option without it. Needs with the same text are the same need.
    problem: str
    #: What to write so that the option has an effect.
    expected: str


class Setting(Generic[T_co]):
    """One user-visible option with its key in files, declared once with its reader and its documentation.

    Args:
        name: The key in files. The option is ``--name`` with dashes. Within a command the name is unique.
        parse: Converts a text, or raises ``ValueError("expected ...")``. With `switch` the option has no
            value, and the key is true or false.
        help: One line for ``--help``, the man page and the reference. It is empty for a hidden option.
        metavar: What stands for the value in the help.
        default: The value if no source sets the setting.
        flags: All spellings of the option, if they are not just ``--name``.
        key: The key in files, if it is not the name.
        value_optional: Whether the option may stand without a value, which means an empty text. If the
            metavar begins with ``[=``, the value follows a ``=``. Otherwise the next word may be the value.
        repeatable: Whether the option may be repeated, and the key may be a list. The value is a tuple.
        by_role: Whether the option is ``[ROLE=]VALUE``, and the key may be a mapping of roles. The value is a
            tuple of pairs, in which an empty role means all roles.
        once: What to type instead of repeating the option. Without it the last one counts.
        given_in: The kinds of sources that may set it.
        read: Reads the value of the key where that is more than a text, a list or a mapping of roles.
        masked: Returns what messages and the files of a run may contain of a text, because the rest may be
            secret.
        path: Makes a path in a file absolute. It is called with the path and the folder of the file.
        join: Makes one value of the values of two levels, of which the weaker one is passed first. With None
            the value of the stronger level counts.
        excludes: The names of settings of weaker levels that do not count where a level sets this one.
        needs: What the option needs to have an effect.
        positional: For an argument without a name the number of its words, as argparse writes it: ``1``,
            ``?``, ``*``, ``+`` or ``...``. None means an option.
        complete: Returns the words that a shell offers as values.
    """

    def __init__(  # noqa: PLR0913 - the rows of the table pass them by name
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
        masked: Callable[[str], str] = str,
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
        #: All possible values, for the help and for completion. It is empty if they cannot be listed.
        self.choices = parse.choices if isinstance(parse, values.OneOf) else ()
        self.metavar = metavar or ("{" + ",".join(self.choices) + "}" if self.choices else "")
        self.value_optional, self.once = value_optional, once
        self.repeatable, self.by_role = repeatable, by_role
        self.given_in, self.read, self.path, self.join = given_in, read, path, join
        self.excludes, self.needs, self.positional = tuple(excludes), needs, positional
        self.masked, self.complete = masked, complete

    def __repr__(self) -> str:
        return f"Setting({self.name!r})"

    @property
    def flag(self) -> str:
        """The option as messages write it, such as ``--restarts``.

        For an argument without a name this is its metavar, such as ``RUN``.
        """
        if self.positional is not None:
            return self.metavar
        # Of several spellings, messages use that of the name, or the last one, which is the longest.
        spelling_of_name = f"--{self.name.replace('_', '-')}"
        return spelling_of_name if spelling_of_name in self.flags else self.flags[-1]

    @property
    def key_help(self) -> str:
        """The description of the key in the reference of files, made from the help of the option."""
        text = self.help.removesuffix("; repeatable").rstrip(".")
        return f"{text[:1].upper()}{text[1:]}."

    @property
    def is_switch(self) -> bool:
        """Whether the option is typed without a value, as ``--detach`` is."""
        return self.parse is switch

    @property
    def takes_next_word(self) -> bool:
        """Whether the word after the option may be its value.

        A switch accepts no value, and after ``[=VALUE]`` in the help the value follows a ``=``.
        """
        return not (self.is_switch or self.metavar.startswith("[="))

    @property
    def without_value(self) -> Any:
        """The value that an option without a value sets: True for a switch, or else an empty text."""
        return True if self.is_switch else ""


class Group(Record):
    """The rows under one title of the help."""

    title: str
    rows: tuple[Setting[Any], ...]


class FileSection(Record):
    """A key of files whose value is a mapping with settings of its own, such as ``docker:`` of a backend."""

    name: str
    help: str
    #: The setting that the presence of the section sets, such as that of ``--docker``.
    head: Setting[Any]
    #: The settings in the section.
    rows: tuple[Setting[Any], ...]
    #: What messages say to write in place of a value that is no mapping.
    expected: str
    #: The key that is meant by a text in place of the mapping, as in ``docker: IMAGE``. It is empty if a text
    #: is not allowed.
    short: str = ""


# ---------------------------------------------------------------------- levels


class Given(Record):
    """The value of a setting in one source."""

    value: Any
    #: The source for messages, such as ``--restarts``, ``job.yaml:3`` or ``launch.toml:14``.
    source: str
    kind: SourceKind
    #: The value as the user wrote it, `HIDDEN` in place of what may be secret.
    text: str = ""


#: All values in one source, by the names of their settings.
Level = Mapping[str, Given]


class FileContent(Record):
    """The content of a job file or of a project file."""

    #: The settings.
    level: Level = {}
    #: The roles of a job file.
    roles: tuple[Role, ...] = ()
    #: Notes for the user.
    notes: tuple[str, ...] = ()
    #: The faults. If there are any, the roles and the settings of sections are missing.
    faults: tuple[Fault, ...] = ()


def command_line_level(texts: Mapping[str, Any], rows: Sequence[Setting[Any]]) -> tuple[Level, list[Fault]]:
    """Convert the texts of a command line to the values of settings.

    Args:
        texts: The texts by the name of the setting. It is a list of texts for a setting that may be repeated,
            and True for a switch.
        rows: The settings of the command.

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
        if None not in values:  # None stands for a wrong text, whose fault was added.
            value = tuple(values) if row.repeatable or row.by_role else values[-1]
            text = ",".join(map(row.masked, words))
            level[row.name] = Given(value, source=row.flag, kind=COMMAND_LINE, text=text)
    return level, faults


def option_words(
    texts: Mapping[str, Any], rows: Sequence[Setting[Any]], *, recorded: bool = False
) -> Iterator[str]:
    """Yield words for a command line that set the same settings.

    Args:
        texts: The texts of the command line, as for `command_line_level`.
        rows: The settings of the command. Hidden ones are left out, because programs and not users set them.
        recorded: Whether the words are for the folder of a run, which contains no secret values.
    """
    for row in rows:
        if row.name not in texts or not row.help:
            continue
        written = texts[row.name]
        for text in written if isinstance(written, list) else [written]:
            if row.is_switch or (row.value_optional and not text):
                yield row.flag
                continue
            value = row.masked(text) if recorded else text
            # A word that is empty or begins with a dash would not be taken for the value.
            is_next_word = row.takes_next_word and value and not value.startswith("-")
            yield from (row.flag, value) if is_next_word else (f"{row.flag}={value}",)


def _parsed(row: Setting[Any], word: Any, faults: list[Fault]) -> Any:
    """Convert one value of an option. If it is wrong, add a fault and return None.

    Args:
        row: The setting of the option.
        word: The text, or True for a switch.
        faults: Receives the fault.

    Returns:
        The value of the setting. For ``[ROLE=]VALUE`` this is a pair of the role, which may be empty, and
        the value.
    """
    if row.is_switch:
        return True
    role, _, text = word.rpartition("=") if row.by_role else ("", "", word)
    try:
        # The parser would refuse the empty text of an option without its value, for example as an image.
        value = text if row.value_optional and not text else row.parse(text)
    except ValueError as error:
        faults.append(Fault(row.flag, repr(without_passwords(row.masked(word))), str(error)))
        return None
    return (role, value) if row.by_role else value


# ---------------------------------------------------------------------- the settings of a launch


class Settings:
    """The values of all settings of one launch, with their sources, as ``settings[RESTARTS]``.

    A setting that no source sets has its default. The object is pickled for a launcher that runs elsewhere,
    so it contains the values by the names of the settings, and no `Setting`.

    Args:
        given: The values by the name of the setting, the weakest level first. The last one counts.
        joined: By the name of the setting, the value that counts instead, where those of several levels were
            joined.
    """

    def __init__(self, given: Mapping[str, Sequence[Given]] = {}, joined: Mapping[str, Any] = {}) -> None:
        self._given = {name: tuple(parts) for name, parts in given.items()}
        self._joined = dict(joined)

    def __getitem__(self, setting: Setting[T_co]) -> T_co:
        """Return the value of a setting, or its default if no source sets it."""
        if not self.is_given(setting):
            return setting.default
        value: T_co = self._joined.get(setting.name, self._given[setting.name][-1].value)
        return value

    def is_given(self, setting: Setting[Any]) -> bool:
        """Return whether any source sets a setting, perhaps to its default."""
        return setting.name in self._given

    def source(self, setting: Setting[Any]) -> str:
        """Return where a value was set, such as ``--restarts`` or ``job.yaml:3``. A default has no source."""
        return self._given[setting.name][-1].source if self.is_given(setting) else ""

    def source_kind(self, setting: Setting[Any]) -> SourceKind | None:
        """Return the kind of source that sets a value, or None for a default."""
        return self._given[setting.name][-1].kind if self.is_given(setting) else None

    def text(self, setting: Setting[Any]) -> str:
        """Return a value as the user wrote it. It is empty for a default."""
        return self._given[setting.name][-1].text if self.is_given(setting) else ""

    def parts(self, setting: Setting[Any]) -> Sequence[Given]:
        """Return the values of a joined setting in each source that sets it, the weakest first."""
        return self._given.get(setting.name, ())

    def given_in(self, kind: SourceKind) -> Iterator[tuple[str, Given]]:
        """Yield the values that a kind of source sets, without those that a stronger source replaces.

        They come as pairs of the name of the setting and its value, in the order of the source.
        """
        # `merge` has left out what a stronger source replaces.
        for name, parts in self._given.items():
            for given in parts:
                if given.kind == kind:
                    yield name, given

    def with_values(self, values: Mapping[Setting[Any], Any]) -> Settings:
        """Return a copy in which some settings have other values, but the same sources.

        It is for a launcher on another machine, where folders have other paths.
        """
        changed = {row.name: value for row, value in values.items() if self[row] != value}
        # A setting that no source sets would keep its default, so it becomes one of the command line. Its
        # value there is not read, because `_joined` overrides it.
        new = {name: [Given(None, "", COMMAND_LINE)] for name in changed.keys() - self._given.keys()}
        return Settings({**self._given, **new}, {**self._joined, **changed})


def merge(levels: Sequence[Level], rows: Sequence[Setting[Any]]) -> tuple[Settings, list[Fault]]:
    """Merge the values of several sources into the settings of one launch.

    For each setting:

    - The value of the strongest source counts, unless the setting has a ``join``. Then all values are joined.
    - A value removes values of weaker sources for the settings that exclude it or that it excludes, such as
      ``--python`` and ``--venv``. In the same source they are a fault.

    Args:
        levels: The values of each source, the weakest first: a project file or job file, then the command
            line.
        rows: The settings of the command.

    Returns:
        The settings, and a fault for each setting that the same source sets together with one that it
        excludes.
    """
    by_name = {row.name: row for row in rows}
    exclusive_names = [(row.name, other) for row in rows for other in row.excludes]
    given: dict[str, list[Given]] = {}
    for level in levels:
        # A setting of this level removes the settings of weaker levels that it excludes or that exclude it.
        for name, other in exclusive_names:
            if name in level:
                given.pop(other, None)
            if other in level:
                given.pop(name, None)
        for name, value in level.items():
            weaker_values = given.get(name, []) if by_name[name].join else []
            given[name] = [*weaker_values, value]
    # What is left of two settings that exclude each other comes from the same source.
    faults = [
        Fault(given[name][-1].source, f"{given[other][-1].source} is given, too", "expected one of them")
        for name, other in exclusive_names
        if name in given and other in given
    ]
    joined = {
        row.name: functools.reduce(row.join, [part.value for part in given[row.name]])
        for row in rows
        if row.join and row.name in given
    }
    return Settings(given, joined), faults
