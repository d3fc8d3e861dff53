"""How ends are put into words, and what to try next."""

from __future__ import annotations

from typing import Optional, Tuple

from launcher.model.status import ExitStatus, Reason
from launcher.supervision.stopping import SIGKILL

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

_SIGNAL_HINTS = {
    4: "it used an instruction this CPU does not have: perhaps it was built for another one",
    7: "a mapped file was cut, or shared memory (/dev/shm) is full",
    9: "nobody here sent it: an administrator, a batch system, or want of memory (`dmesg` may tell)",
    11: "it crashed in native code: a stack may be in its log (PYTHONFAULTHANDLER is set)",
}


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 40`` where it has no name."""
    return SIGNALS.get(number, f"signal {number}")


def exit_reason(status: ExitStatus, oom: str) -> Reason:
    """Why a process that we did not stop ended like this."""
    if status.signal is None:
        return Reason.EXIT
    return Reason.OUT_OF_MEMORY if oom and status.signal == SIGKILL else Reason.SIGNAL


def exit_detail(status: ExitStatus, oom: str) -> str:
    """The end in a few words."""
    if status.signal is None:
        return f"exit code {status.code}"
    name = f"killed by {signal_name(status.signal)}"
    return f"{name}, out of memory ({oom})" if oom else name


def exit_hint(status: ExitStatus, oom: str) -> str:
    """What the user could look at; may be empty."""
    if oom:
        return "give it a machine with more memory, or make its batches or caches smaller"
    if status.signal is not None:
        return _SIGNAL_HINTS.get(status.signal, "")
    if status.code in (126, 127):
        return (
            "126 and 127 are what a shell says when a program can't be run or found: look at its last lines"
        )
    if status.code is not None and status.code > 128 and status.code - 128 in SIGNALS:
        return f"{status.code} is what a shell says when its program was killed by {signal_name(status.code - 128)}"
    return ""


def seconds(value: float) -> str:
    """``0.3 s``, ``12 s``."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def some(names: Tuple[str, ...], most: int = 5) -> str:
    """``a, b, c``; long lists are cut: ``a, b and 7 others``."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"


def tasks(count: int) -> str:
    """``1 task``, ``3 tasks``."""
    return "1 task" if count == 1 else f"{count} tasks"


def whose(host: Optional[str], several: bool) -> str:
    """`` on node1`` where there are several hosts, else nothing."""
    return f" on {host}" if host and several else ""
