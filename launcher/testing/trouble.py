"""What can go wrong with a cluster of a test."""

from __future__ import annotations

from launcher.errors import LaunchError


class WaitFailed(AssertionError):
    """What a test waited for did not come: not in time, or it can't come any more.

    An assertion of the test, so that it counts as a failure of it.
    """


class ClusterError(LaunchError):
    """What a test wants can't be done; the message says why."""


class JustEnded(ClusterError):
    """A task has ended between two looks at it."""


class CannotStart(ClusterError):
    """The launch ended before its cluster was there.

    Args:
        exit_code: what ``launch`` exited with: 2 for bad input, 126 or 127 for a program that can't be run...
        output: all that it said.
    """

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"the cluster did not start, launch ended with {exit_code}:\n{output.rstrip()}")
        self.exit_code = exit_code
        self.output = output
