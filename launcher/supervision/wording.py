"""How ends are put into words, and what to try next."""

from __future__ import annotations

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


#: What is said of an agent that ends although we did not ask it to.
LEFT = "its agent was ended from outside, and ends its tasks"

_START_REASONS = {127: Reason.NOT_FOUND, 126: Reason.NOT_RUNNABLE}


def start_reason(code: int) -> Reason:
    """Why a task could not be started; ``code`` as in `TaskNotStarted`."""
    return _START_REASONS.get(code, Reason.LAUNCHER)


def lost(host: str, why: str, reached: bool = True) -> str:
    """A host that can't be had any more, or never could; ``why`` may begin with its name."""
    return f"host {host} {lost_how(reached)}: {why.removeprefix(f'{host}: ')}"


def lost_how(reached: bool) -> str:
    """What is wrong with a host, by whether it was ever ready for its tasks."""
    return "is lost" if reached else "can't be used"


def stubborn(who: str, leftovers: bool) -> str:
    """A task, or what is left of one, that SIGTERM did not end."""
    whom = f"what {who} left behind" if leftovers else who
    return f"{whom} did not end on SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"


def unkillable(who: str, pids: tuple[int, ...]) -> str:
    """Processes that outlived SIGKILL."""
    return f"{who}: SIGKILL did not end pid {', '.join(map(str, pids))}"


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
    number = (status.code or 0) - 128
    if number in SIGNALS:
        return f"{status.code} is what a shell says when its program was killed by {signal_name(number)}"
    return ""


def seconds(value: float) -> str:
    """``0.3 s``, ``12 s``."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def limit(value: float) -> str:
    """A time that was given, as it was given: ``10 s``, ``0.5 s``."""
    return f"{value:g} s"


def some(names: tuple[str, ...], most: int = 5) -> str:
    """``a, b, c``; long lists are cut: ``a, b and 7 others``."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"


def tasks(count: int, many_only: bool = False) -> str:
    """``1 task``, ``3 tasks``; ``many_only``: the 1 is not said."""
    one = "task" if many_only else "1 task"
    return one if count == 1 else f"{count} tasks"


def processes(count: int) -> str:
    """``1 process``, ``3 processes``."""
    return "1 process" if count == 1 else f"{count} processes"


def whose(host: str | None, several: bool) -> str:
    """`` on node1`` where there are several hosts, else nothing."""
    return f" on {host}" if host and several else ""
