"""Decides which requests to stop a launch are one request, and which one means "at once". Pure.

`launcher.supervisor.requests` asks it about a job that runs, `launcher.launch.interrupts` about the time
before and after.

A service manager or Slurm may signal all processes of a launch, and a person may press Ctrl-C and then close
the terminal. None of that may shorten the grace of the tasks, so only the same signal again, some time after
the first one, kills them.
"""

from __future__ import annotations

import enum

# Numbers of signal(7) on Linux.
SIGHUP = 1
SIGINT = 2
SIGQUIT = 3
SIGUSR1 = 10
SIGUSR2 = 12
SIGTERM = 15
SIGXCPU = 24
#: Exit code of a launch that a time limit has ended.
TIMED_OUT_EXIT_CODE = 124
#: Signals that say that a limit is near. They stop a launch as the end of a time limit does.
LIMIT_NOTICES = (SIGUSR1, SIGUSR2, SIGXCPU)
#: Signals that mean "at once" if they come again, and how many seconds after the first one. Closer ones are
#: one request: ``timeout`` signals its command and then the process group, and a key may bounce. Nobody sends
#: the others again to say more: a terminal is closed once, and shells pass on SIGHUP.
_SECONDS_APART = {SIGINT: 0.3, SIGTERM: 1.0, SIGQUIT: 1.0}


class StopRequest(enum.Enum):
    """What a request to stop means, after those before it."""

    NEW = enum.auto()  #: the first one of its kind
    SAME = enum.auto()  #: it belongs to the first one of its kind
    AGAIN = enum.auto()  #: its sender does not want to wait


class StopRequests:
    """The requests to stop one launch so far.

    A request of another kind never means "at once": a closed terminal after Ctrl-C, or SIGTERM to all
    processes of a service, belongs to the stop that has begun, and tasks keep their time to save their state.

    Args:
        managed: Whether Slurm or Kubernetes may signal this process. They send SIGTERM more than once for one
            request: ``scancel`` signals a script and then each step.
    """

    def __init__(self, managed: bool = False) -> None:
        self._seconds_apart = {
            number: seconds
            for number, seconds in _SECONDS_APART.items()
            if not (managed and number == SIGTERM)
        }
        self._first_at: dict[int, float] = {}

    def can_repeat(self, number: int) -> bool:
        """Return whether a second signal of this number means "at once"."""
        return number in self._seconds_apart

    def add(self, number: int, at: float) -> StopRequest:
        """Return what a request means.

        Args:
            number: The signal. A closed pipe counts as SIGPIPE.
            at: When it came, in seconds.
        """
        if number not in self._first_at:
            self._first_at[number] = at
            return StopRequest.NEW
        if at < self._first_at[number]:  # the clock was set back
            self._first_at[number] = at
        apart = self._seconds_apart.get(number)
        if apart is None or at - self._first_at[number] < apart:
            return StopRequest.SAME
        return StopRequest.AGAIN
