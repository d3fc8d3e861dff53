"""What a terminal would obey: escape sequences and control characters, recognised and removed.

A task must not be able to move our cursor, clear the screen, set a title or switch the
character set. Colours (SGR, ``ESC [ ... m``) are harmless and may be kept.
"""

from __future__ import annotations

import re
from functools import cache

RESET = "\x1b[0m"
_RESETS = (RESET, "\x1b[m")

#: Every control byte but tab and newline.
_CONTROLS = bytes(code for code in range(32) if code not in (9, 10)) + b"\x7f"

#: The longest title or other string that is taken as one; what is longer is text.
_STRING_LIMIT = 4096

#: How many colours in a row are remembered when what they coloured is overwritten.
_CARRIED = 8


def has_controls(data: bytes) -> bool:
    """Whether it holds anything but text, tabs and newlines (also the 8-bit controls, U+0080 to U+009F).

    One ``memchr`` for each: ten times as fast as one regular expression for all.
    """
    for code in _CONTROLS:
        if code in data:
            return True
    return b"\xc2" in data and re.search(b"\xc2[\x80-\x9f]", data) is not None


@cache
def tokens() -> re.Pattern[str]:
    """Everything that is not text. Groups: ``partial`` (may go on in the next chunk), ``sgr``, ``move``.

    ``partial`` comes first and matches only at the very end, so that text cut anywhere is
    read as if it had come in one piece. Sequences have a bounded length, hence so has it. All
    begin with one set of characters, looked back upon later: ``re`` skips over text fast then.
    """
    csi = r"(?:(?<=\x1b)\[|(?<=\x9b))[0-?]{0,64}[ -/]{0,8}"
    string = r"(?:(?<=\x1b)[\]PX^_]|(?<=[\x90\x98\x9d-\x9f]))[^\x00-\x1f\x7f-\x9f]"
    string += f"{{0,{_STRING_LIMIT}}}"
    return re.compile(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f](?:"
        rf"(?P<partial>(?:{csi}|{string}\x1b?|(?<=\x1b)[ -/]{{0,8}})\Z)"
        r"|(?P<sgr>(?<=\x1b)\[[0-9;:]{0,64}m)"
        rf"|{csi}[@-~]"
        rf"|{string}(?:\x07|\x1b\\|\x9c)"
        r"|(?<=\x1b)[ -/]{0,8}[0-~]"
        r"|(?P<move>(?<=\r)|(?<=\x08)\x08*)"
        r"|)"
    )


def strip(text: str, keep_colours: bool) -> str:
    """``text`` (whole lines) without anything that is not text, tab or newline; colours if wanted."""
    if not keep_colours:
        return tokens().sub("", text)
    return tokens().sub(lambda found: found[0] if found["sgr"] else "", text)


def colours(text: str) -> list[str]:
    """The colour sequences in a text that holds no other escapes."""
    return re.findall(r"\x1b\[[0-9;:]*m", text)


def is_reset(colour: str) -> bool:
    """Whether this colour sequence ends all colours."""
    return colour in _RESETS


def closed(line: str) -> str:
    """The line, with a reset at its end if a colour was left on: the next line is another task's."""
    last = line.rfind("\x1b")
    return line if last < 0 or line.startswith(_RESETS, last) else line + RESET


def carried(cut: str) -> str:
    """The colours that are on after ``cut``: they also colour what overwrites it."""
    if "\x1b" not in cut:
        return ""
    on: list[str] = []
    for colour in colours(cut):
        on = [colour] if is_reset(colour) else [*(c for c in on if c != colour), colour][-_CARRIED:]
    return "".join(on)
