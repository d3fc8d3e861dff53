"""How ends are put into words, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.report import ExitStatus, Reason
from launcher.supervision.stopping import SIGKILL
from launcher.text import SIGNALS, counted, duration, listed, signal_name

_SIGNAL_HINTS = {
    4: "it used an instruction this CPU does not have: perhaps it was built for another one",
    7: "a mapped file was cut, or shared memory (/dev/shm) is full",
    9: "nobody here sent it: an administrator, a batch system, a limit of CPU time (`ulimit -t`), or want of "
    "memory (`dmesg` may tell)",
    11: "it crashed in native code: a stack may be in its log (PYTHONFAULTHANDLER is set)",
    24: "it has used the CPU time that it may (`ulimit -t`)",
    25: "a file would have become larger than it may (`ulimit -f`)",
}

#: What to do about a task that hung until it was stopped: Python has no stacks for SIGTERM by itself.
STACKS = (
    "to see where a Python program hangs, let it call faulthandler.register(signal.SIGTERM, chain=True)"
    " (after it made its tf.distribute strategy, which may take SIGTERM for itself): its stacks are in its"
    " log then"
)

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


#: What to try with a task that holds SIGTERM when the chief is done, as TensorFlow's collectives do.
_DRAIN = "; the job was done: where it ends by itself a little later, `--drain 60s` lets it"


def stubborn(who: str, leftovers: bool, drain: bool = False) -> str:
    """A task, or what is left of one, that SIGTERM did not end; ``drain``: say what would have let it end."""
    whom = f"what {who} left behind" if leftovers else who
    what = "did not end on SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
    return f"{whom} {what}{_DRAIN if drain else ''}"


def unkillable(who: str, pids: tuple[int, ...]) -> str:
    """Processes that outlived SIGKILL."""
    return f"{who}: SIGKILL did not end pid {', '.join(map(str, pids))}"


def went_on(ended: Sequence[tuple[str, float]], waited_for: Sequence[str]) -> str:
    """Who had ended, after how many seconds, and who had not; empty if nobody had.

    Args:
        ended: names and seconds.
        waited_for: those on whom the job's end hung.
    """
    if not ended:
        return ""
    names = listed([f"{who} ended after {duration(after)}" for who, after in ended])
    return f"; {names}, {listed(waited_for)} went on"


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


def ended_before(peers: Sequence[str], after: float) -> str:
    """What may have made a task fail: others had ended well, the last of them so many seconds earlier."""
    if not peers:
        return ""
    who = f"{listed(peers)} had ended with 0, {duration(after)} before"
    return f"{who}: what meets in a collective must end together"


def limit(value: float, said: str = "") -> str:
    """A time that was given, as it was given: ``10 s``, ``0.5 s``, ``2h``.

    Args:
        value: seconds.
        said: what the user wrote, if anything; without a unit it is seconds.
    """
    return said if said[-1:].isalpha() else f"{value:.10g} s"


def tasks(count: int, many_only: bool = False) -> str:
    """``1 task``, ``3 tasks``; ``many_only``: the 1 is not said."""
    one = "task" if many_only else "1 task"
    return one if count == 1 else counted(count, "task")
