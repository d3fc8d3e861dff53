"""Takes the values of ``-x NAME=VALUE`` out of our own command line: all on the machine can read it."""

from __future__ import annotations


def mask_command_line() -> None:
    """Write over them where the kernel keeps our arguments; where that may not be, they stay."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            start, end = map(int, stat.read().rpartition(b") ")[2].split()[45:47])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            said = memory.read(end - start)
            memory.seek(start)
            memory.write(masked(said).ljust(len(said), b"\0"))
    except (OSError, ValueError):
        return


def masked(said: bytes) -> bytes:
    """The same arguments, each ended by a zero, without those values; never longer."""
    words = said.split(b"\0")
    return b"\0".join(_masked(word, before) for before, word in zip([b"", *words], words, strict=False))


def _masked(word: bytes, before: bytes) -> bytes:
    name, equals, value = word.partition(b"=")
    if not equals or not (before == b"-x" or word.startswith(b"-x")):
        return word
    return name + equals + b"..."[: len(value)]
