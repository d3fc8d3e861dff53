"""Everything that can go wrong, and the exit code of each.

::

    LaunchError                     125  launch itself failed
    ├── InputError                    2  what the user gave is wrong; nothing was started
    │   ├── HostfileError                in a hostfile or --hosts
    │   ├── JobError                     in a job file or on the command line
    │   └── PlacementError               the tasks do not fit the hosts
    ├── ProgramError                127  the program to run is not there
    ├── NotRunnableError            126  the program to run is there, and can't be run
    ├── TransportError              125  a host or its agent can't be had
    │   └── HostsError                   some of several hosts; a line for each
    └── WireError                   125  the two ends of a link do not understand each other

A task's failure is not an error of ours: it is a fact, and ends in the report.
"""

from __future__ import annotations

from launcher.model.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Iterable


class Fault(NamedTuple):
    """One thing wrong with some input."""

    #: ``file:line``, or the option it came from; empty if neither is known.
    where: str
    #: What is wrong, with the offending text quoted.
    what: str
    #: What was expected, or "did you mean ...?"; may be empty.
    expected: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}; {self.expected}" if self.expected else head


class LaunchError(Exception):
    """Root of all errors of ours."""

    exit_code = 125


class InputError(LaunchError):
    """What the user gave is wrong: all faults at once.

    Args:
        faults: at least one.
    """

    exit_code = 2

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class HostfileError(InputError):
    """A hostfile or a ``--hosts`` list is wrong."""


class JobError(InputError):
    """A job file or the command line is wrong."""


class PlacementError(InputError):
    """The tasks do not fit the hosts."""


class ProgramError(LaunchError):
    """The program to run is not there."""

    exit_code = 127


class NotRunnableError(LaunchError):
    """The program to run is there, and can't be run."""

    exit_code = 126


class TransportError(LaunchError):
    """A host, or the agent on it, can't be had."""


class HostsError(TransportError):
    """Some of the hosts can't be had: all of them at once.

    Args:
        faults: one line for each, beginning with its name; at least one.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class WireError(LaunchError):
    """A frame that can't be understood."""
