"""Collecting what is wrong with an input, so that the user hears all of it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.errors import Fault, InputError

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


#: So many faults are shown: a binary file given by mistake has thousands.
MOST_FAULTS = 100

#: So many characters of an offending text are shown.
MOST_QUOTED = 80


def quoted(text: str) -> str:
    """``text`` in double quotes, on one line, shortened: fit for any terminal."""
    shown = text if len(text) <= MOST_QUOTED else text[: MOST_QUOTED - 3] + "..."
    return '"' + "".join(map(_visible, shown)) + '"'


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def expected_one_of(word: str, known: Sequence[str]) -> str:
    """What to say of a word that is not among the ``known``: the one it resembles, else all of them."""
    import difflib  # 5 ms that only a fault costs

    near = difflib.get_close_matches(word[:MOST_QUOTED], known, n=1)
    return f"did you mean {quoted(near[0])}?" if near else f"expected one of {', '.join(known)}"


class Faults:
    """The faults of one input, by line.

    Args:
        source: the file's name, or the option it came from.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: list[tuple[int, Fault]] = []

    def __len__(self) -> int:
        return len(self._found)

    def where(self, line: int) -> str:
        """``file:line``; line 0 means that the input has no lines: just the source."""
        return f"{self.source}:{line}" if line else self.source

    def add(self, line: int, what: str, expected: str = "") -> None:
        """Note one fault: what is wrong, with the text quoted, and what was expected."""
        self._found.append((line, Fault(self.where(line), what, expected)))

    def check(self, line: int, label: str, text: str, read: Callable[[str], T]) -> T | None:
        """What ``read`` makes of ``text``; where it raises ``ValueError`` a fault, and ``None``.

        Args:
            label: what the text is, as in ``slots``.
            read: raises ``ValueError`` with what it expected.
        """
        try:
            return read(text)
        except ValueError as error:
            self.add(line, f"{label} is {quoted(text)}", str(error))
            return None

    def unknown(self, line: int, word: str, known: Sequence[str], elsewhere: str = "") -> None:
        """Note a key that nobody knows, at least here: ``elsewhere`` says where it belongs."""
        # Nobody reads the suggestions of a file that is no such file at all, and they take time.
        expected = elsewhere or (expected_one_of(word, known) if len(self) < MOST_FAULTS else "")
        self.add(line, f"unknown key {quoted(word)}", expected)

    def all(self) -> tuple[Fault, ...]:
        """Every fault once, in the order of the lines, the first hundred of them."""
        ordered = sorted(self._found, key=lambda found: found[0])
        faults = tuple(dict.fromkeys(fault for _, fault in ordered))
        if len(faults) <= MOST_FAULTS:
            return faults
        rest = Fault(self.source, f"and {len(faults) - MOST_FAULTS} more faults")
        return (*faults[:MOST_FAULTS], rest)

    def raise_any(self, error: type[InputError]) -> None:
        """Raise ``error`` with all faults, if there are any."""
        if self._found:
            raise error(self.all())
