"""The faults of one input, collected so that all are reported at once; and the text of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from launcher.errors import Fault, InputError
from launcher.text import did_you_mean, printable

T = TypeVar("T")

#: At most so many faults are shown: a binary file given by mistake has thousands.
MOST_FAULTS = 100
#: At most so many characters of an offending text are shown.
MOST_QUOTED = 80
#: Bytes of a file; a hostfile of ten thousand hosts is a tenth of it.
MOST_BYTES = 4 * 1024 * 1024


def quoted(text: str) -> str:
    """``text`` in double quotes, on one line, shortened."""
    return f'"{printable(text if len(text) <= MOST_QUOTED else text[: MOST_QUOTED - 3] + "...")}"'


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
        """``file:line``; just the source for line 0, which means that the input has no lines."""
        return f"{self.source}:{line}" if line else self.source

    def add(self, line: int, what: str, expected: str = "") -> None:
        """Add one fault: what is wrong, with the text quoted, and what was expected."""
        self._found.append((line, Fault(self.where(line), what, expected)))

    def check(self, line: int, label: str, text: str, read: Callable[[str], T]) -> T | None:
        """The value that ``read`` makes of ``text``; where it raises ``ValueError`` a fault, and ``None``.

        Args:
            line: of the text.
            label: what the text is, as in ``slots``.
            read: raises ``ValueError`` with what it expected.
        """
        try:
            return read(text)
        except ValueError as error:
            self.add(line, f"{label} is {quoted(text)}", str(error))
            return None

    def unknown(self, line: int, word: str, known: Sequence[str], elsewhere: str = "") -> None:
        """Add the fault of an unknown key; ``elsewhere`` says where it belongs."""
        # Suggestions take time, and a file with so many faults is another kind of file.
        expected = elsewhere or (did_you_mean(word, known) if len(self) < MOST_FAULTS else "")
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


def read_text(path: str, kind: str, error: type[InputError]) -> str:
    """The text of a file that may be a pipe (``<(...)`` of a shell), up to a limit.

    Args:
        path: the file.
        kind: what it was meant to be, for messages: ``hostfile``.
        error: the class to raise.

    Raises:
        InputError: of class ``error``: the file can't be read, is too large, or is not text.
    """
    shown = shown_path(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as fault:
        raise error([Fault(shown, f"can't read the {kind}: {fault.strerror}")]) from fault
    if len(data) > MOST_BYTES:
        raise error([Fault(shown, f"too large for a {kind}: more than {MOST_BYTES // 1024 // 1024} MB")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        where = f"{shown}:{data.count(10, 0, fault.start) + 1}"
        what = f"not UTF-8 text: byte 0x{data[fault.start]:02x}"
        raise error([Fault(where, what, "expected a text file")]) from fault
    if "\0" in text:
        where = f"{shown}:{text.count(chr(10), 0, text.index(chr(0))) + 1}"
        raise error([Fault(where, "a NUL byte", "expected a text file")])
    return text


def shown_path(path: str) -> str:
    """A path as a message can show it, on one line."""
    return path if path.isprintable() else repr(path)
