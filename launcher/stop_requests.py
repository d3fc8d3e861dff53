"""Decides which requests to stop a launch belong together, and which one means "stop at once".

`launcher.supervisor.requests` asks it while a job runs, and `launcher.launch.interrupts` before and after. It
is pure: it must not install signal handlers or send signals.

A service manager or Slurm may signal all processes of a launch, and a person may press Ctrl-C and then close
the terminal. None of that may shorten the time that tasks have to exit. So only the same signal again, some
time after the first one, kills them.
"""

from __future__ import annotations

import enum

# The numbers that Linux uses (signal(7)).
SIGHUP = 1
SIGINT = 2
SIGQUIT = 3
SIGUSR1 = 10
SIGUSR2 = 12
SIGTERM = 15
SIGXCPU = 24
#: Exit code of a launch that a time limit has stopped.
TIMED_OUT_EXIT_CODE = 124
#: Signals that announce a limit. They stop a launch as a time limit does.
LIMIT_NOTICES = (SIGUSR1, SIGUSR2, SIGXCPU)
#: The signals that mean "at once" when they come again, with the seconds that must lie between the first and
#: the next one. Closer ones are one request: ``timeout`` signals its command and then the process group, and
#: a key may bounce. Other signals never mean it: a terminal is closed once, and shells pass on SIGHUP.
_SECONDS_APART = {SIGINT: 0.3, SIGTERM: 1.0, SIGQUIT: 1.0}


class StopRequest(enum.Enum):
    """The meaning of a request to stop, in view of the requests before it."""

    NEW = enum.auto()  #: It is the first request by this signal.
    SAME = enum.auto()  #: It repeats an earlier request and changes nothing.
    AGAIN = enum.auto()  #: Its sender does not want to wait: tasks are killed at once.


class StopRequests:
    """The record of all requests to stop one launch, which decides what each new one means.

    A different signal never means "at once". A closed terminal after Ctrl-C, or SIGTERM to all processes of a
    service, belongs to the stop that is under way, and tasks keep their time to save their state.

    Args:
        managed: Whether Slurm or Kubernetes may signal this process. They send SIGTERM more than once for one
            request: ``scancel`` signals a script and then each step.
    """

    def __init__(self, managed: bool = False) -> None:
        #: By signal that means "at once" when it comes again: the seconds that must lie between, as in
        #: `_SECONDS_APART`. SIGTERM is not among them if Slurm or Kubernetes may repeat it.
        self._seconds_apart = {
            number: seconds
            for number, seconds in _SECONDS_APART.items()
            if not (managed and number == SIGTERM)
        }
        #: When each signal first came, by its number.
        self._first_at: dict[int, float] = {}

    def can_repeat(self, number: int) -> bool:
        """Return whether a second signal of this number means "at once"."""
        return number in self._seconds_apart

    def add(self, number: int, at: float) -> StopRequest:
        """Record a request to stop and return what it means.

        Args:
            number: The number of the signal. A closed pipe counts as SIGPIPE.
            at: The time of the request, in seconds.
        """
        if number not in self._first_at:
            self._first_at[number] = at
            return StopRequest.NEW
        # An earlier time means that the clock was set back.
        first_at = self._first_at[number] = min(at, self._first_at[number])
        # Signals that never mean "at once" have no entry, so repeating them changes nothing.
        seconds_apart = self._seconds_apart.get(number)
        if seconds_apart is None or at - first_at < seconds_apart:
            return StopRequest.SAME
        return StopRequest.AGAIN
