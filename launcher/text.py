"""Wording that several packages share: names of signals, lists, text from other programs."""

from __future__ import annotations

from collections.abc import Sequence

#: signal(7), x86 and ARM; others are called by their number.
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    16: "SIGSTKFLT",
    17: "SIGCHLD",
    18: "SIGCONT",
    19: "SIGSTOP",
    20: "SIGTSTP",
    21: "SIGTTIN",
    22: "SIGTTOU",
    23: "SIGURG",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    26: "SIGVTALRM",
    27: "SIGPROF",
    28: "SIGWINCH",
    29: "SIGIO",
    30: "SIGPWR",
    31: "SIGSYS",
}


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 40`` where it has no name."""
    return SIGNALS.get(number, f"signal {number}")


def listed(names: Sequence[str], most: int = 5) -> str:
    """``a, b, c``; of more than ``most`` the first few, and how many others: ``a, b, c, d and 3 more``."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


def nothing_started(seconds: float) -> str:
    """Of a host that was connected to, and on which no program of ours has said anything."""
    return (
        f"nothing of ours has started there in {seconds:.0f} s; does a start-up file of its login shell "
        "(~/.bashrc?) wait, or read standard input?"
    )


def printable(text: str) -> str:
    """The text on one line, with escapes for what a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
