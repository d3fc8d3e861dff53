"""Signals to the launcher process of a run."""

import os
import signal

from launcher.agent.identity import ProcessIdentity, is_alive, start_ticks
from launcher.common.errors import LaunchError


def open_pidfd(owner: ProcessIdentity) -> int | None:
    """A pidfd of the process, readable when the process has ended; ``None``: it has ended already.

    Raises:
        LaunchError: the system has no pidfds.
    """
    if not is_alive(owner):
        return None
    try:
        pidfd = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        raise LaunchError(f"can't watch process {owner.pid}: {error.strerror}") from error
    if start_ticks(owner.pid) == owner.start_ticks:  # the pidfd is not of a later process
        return pidfd
    os.close(pidfd)
    return None


def send_sigterm(pidfd: int) -> None:
    """Send SIGTERM to a launcher; and SIGCONT, because a suspended one does not handle signals.

    Raises:
        LaunchError: the process belongs to another user.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGCONT):
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:  # it has ended
        return
    except PermissionError as error:
        raise LaunchError("can't stop it: the launcher of this run is another user's") from error


def is_pending(pidfd: int, number: int) -> bool:
    """Whether the process has not handled this signal yet; until then the kernel drops a second one."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
            pid = int(file.read().partition(b"\nPid:")[2].split()[0])
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = int(file.read().partition(b"\nShdPnd:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):  # it has ended
        return False
    return bool(pending >> (number - 1) & 1)
