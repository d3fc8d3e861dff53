"""Texts for the user: how tasks and hosts ended, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.report import ExitStatus, Reason
from launcher.supervisor.stopping import SIGKILL
from launcher.text import KNOWN_SIGNALS, counted, duration, listed, signal_name

_SIGNAL_HINTS = {
    4: "it used an instruction that this CPU does not have: perhaps it was built for another CPU",
    7: "a mapped file was truncated, or shared memory (/dev/shm) is full",
    9: "launch did not send it: an administrator, a batch system, a limit of CPU time (`ulimit -t`), or lack "
    "of memory (`dmesg` may show it)",
    11: "it crashed in native code: a stack may be in its log (PYTHONFAULTHANDLER is set)",
    24: "it has used all the CPU time that it may use (`ulimit -t`)",
    25: "a file would have become larger than allowed (`ulimit -f`)",
}
#: For a task that hung until it was stopped: Python prints no stacks on SIGTERM by itself.
STACKS = (
    "to see where a Python program hangs, let it call faulthandler.register(signal.SIGTERM, chain=True)"
    " (after it made its tf.distribute strategy, which may take SIGTERM for itself): its stacks are in its"
    " log then"
)
#: Of an agent that ends without a command.
LEFT = "its agent was ended from outside, and ends its tasks"
#: For a task that keeps running after SIGTERM when the chief is done, as TensorFlow's collectives do.
_DRAIN = "; the job was done: if it ends by itself a little later, `--drain 60s` allows it"
_START_REASONS = {127: Reason.NOT_FOUND, 126: Reason.NOT_RUNNABLE}


def start_reason(code: int) -> Reason:
    """Why a task could not be started; ``code`` as in `TaskNotStarted`."""
    return _START_REASONS.get(code, Reason.LAUNCHER)


def host_lost(host: str, why: str, reached: bool = True) -> str:
    """A host that is lost, or never was ready; ``why`` may begin with its name."""
    return f"host {host} {lost_how(reached)}: {why.removeprefix(f'{host}: ')}"


def lost_how(reached: bool) -> str:
    """``is lost``; ``can't be used`` for a host that never was ready for its tasks."""
    return "is lost" if reached else "can't be used"


def stubborn(task: str, leftovers: bool, drain: bool = False) -> str:
    """A task, or a process that it left behind, that SIGTERM did not end; ``drain``: advise ``--drain``."""
    subject = f"a process that {task} left behind" if leftovers else task
    text = "did not end on SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
    return f"{subject} {text}{_DRAIN if drain else ''}"


def unkillable(task: str, pids: tuple[int, ...]) -> str:
    """Processes that outlived SIGKILL."""
    return f"{task}: SIGKILL did not end pid {', '.join(map(str, pids))}"


def went_on(ended: Sequence[tuple[str, float]], waited_for: Sequence[str]) -> str:
    """The tasks that had ended and those that had not when the time was up; empty if none had ended.

    Args:
        ended: names, and after how many seconds.
        waited_for: the tasks that the job was waiting for.
    """
    if not ended:
        return ""
    names = listed([f"{task} ended after {duration(after)}" for task, after in ended])
    return f"; {names}, {listed(waited_for)} went on"


def exit_reason(status: ExitStatus, oom: str) -> Reason:
    """Why a process that was not stopped by us ended so."""
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
        return "126 and 127 are what a shell returns when a program can't be run or found: see its last lines"
    number = (status.code or 0) - 128
    if number in KNOWN_SIGNALS:
        return f"{status.code} is what a shell returns when its program was killed by {signal_name(number)}"
    return ""


def ended_before(peers: Sequence[str], after: float) -> str:
    """What may have made a task fail: others had succeeded, the last of them so many seconds earlier."""
    if not peers:
        return ""
    ended = f"{listed(peers)} had ended with 0, {duration(after)} before"
    return f"{ended}: tasks that communicate collectively must end together"


def limit(value: float, written: str = "") -> str:
    """A time limit as it was written, ``2h``; else in seconds, ``0.5 s``."""
    return written if written[-1:].isalpha() else f"{value:.10g} s"


def tasks(count: int, many_only: bool = False) -> str:
    """``1 task``, ``3 tasks``; with ``many_only`` ``task`` instead of ``1 task``."""
    return "task" if many_only and count == 1 else counted(count, "task")
