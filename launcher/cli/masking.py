"""Takes the values of ``-x NAME=VALUE`` out of our own command line: all on the machine can read it."""

from __future__ import annotations

from collections.abc import Sequence


def mask_command_line() -> None:
    """Write over them where the kernel keeps our arguments; where that may not be, they stay."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            start, end = map(int, stat.read().rpartition(b") ")[2].split()[45:47])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            said = memory.read(end - start)
            memory.seek(start)
            memory.write(overwritten(said))
    except (OSError, ValueError):
        return


def overwritten(said: bytes) -> bytes:
    """The same arguments, each ended by a zero, without those values: just as long in all."""
    words = said.decode("latin-1").split("\0")  # a byte is a character: no word grows
    shown = [mask[: len(word)] for word, mask in zip(words, masked(words), strict=True)]
    return "\0".join(shown).encode("latin-1").ljust(len(said), b"\0")


def masked(words: Sequence[str]) -> list[str]:
    """The words of a command line without those values."""
    return [_masked(word, before) for before, word in zip(["", *words], words, strict=False)]


def _masked(word: str, before: str) -> str:
    name, equals, _ = word.partition("=")
    return f"{name}=..." if equals and (before == "-x" or word.startswith("-x")) else word
