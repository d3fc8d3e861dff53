"""The text of one line that a task writes and rewrites. Pure."""

from __future__ import annotations

#: Text is kept in pieces of so many characters, so that cutting one takes no longer in a long line.
_PIECE = 256


class Cells:
    """Text that grows, and is cut back, at its end: neither takes longer because the line is long.

    A colour sequence is a piece of its own; it takes no room on the screen.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._colours = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        if len(self._pieces) > 1 and not self._colours:
            text = "".join(self._pieces)
            self._pieces = _cut_up(text)
            return text
        return "".join(self._pieces)

    def append(self, text: str) -> None:
        """Write text without escapes at the end."""
        last = self._pieces[-1] if self._pieces else ""
        if last and len(last) + len(text) <= _PIECE and last[0] != "\x1b":
            self._pieces[-1] = last + text
        else:
            self._pieces += _cut_up(text)
        self._length += len(text)

    def append_colours(self, sequences: str) -> None:
        """Put colour sequences at the end."""
        if sequences:
            self._pieces.append(sequences)
            self._colours += 1
            self._length += len(sequences)

    def cut(self, place: int) -> str:
        """Cut it back to so many characters; what was cut off."""
        last = self._pieces[-1] if self._pieces else ""
        kept = place - (self._length - len(last))
        if kept > 0 and last[0] != "\x1b":  # nearly always
            self._pieces[-1] = last[:kept]
            self._length = place
            return last[kept:]
        cut: list[str] = []
        while self._length > place:
            piece = self._pieces.pop()
            self._length -= len(piece)
            self._colours -= piece[0] == "\x1b"
            cut.append(piece)
        if self._length < place:  # a colour is never cut through: no cursor stands in one
            begin, cut[-1] = cut[-1][: place - self._length], cut[-1][place - self._length :]
            self._pieces.append(begin)
            self._length = place
        return "".join(reversed(cut))

    def back(self, place: int, count: int) -> int:
        """The place ``count`` characters of the screen before ``place``."""
        if not self._colours:
            return max(0, place - count)
        end = self._length
        for piece in reversed(self._pieces):
            begin, end = end - len(piece), min(end, place)
            if begin < end and piece[0] != "\x1b":
                if end - begin >= count:
                    return end - count
                count -= end - begin
            end = begin
        return 0


def _cut_up(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
