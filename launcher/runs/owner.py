"""The launcher process that owns a run: is it alive, and signals that reach nobody else.

A pid alone names a process only until it ends; then the number is somebody else's. A pid, the
moment the process started (in clock ticks since boot) and the boot itself name it for ever.
"""

from __future__ import annotations

import os
import signal

from launcher.errors import LaunchError
from launcher.model.records import NamedTuple


class Owner(NamedTuple):
    """A process, named for ever."""

    pid: int
    #: Field 22 of ``/proc/PID/stat``.
    start_ticks: int
    boot_id: str
    #: Home folders are shared between machines, and with containers: whose pid it is.
    machine: str
    pid_namespace: str


def this_process() -> Owner:
    """The process that asks.

    Raises:
        OSError: there is no ``/proc``.
    """
    ticks = start_ticks(os.getpid())
    if ticks is None:
        raise FileNotFoundError(2, "no such file", "/proc/self/stat")
    return Owner(os.getpid(), ticks, _boot_id(), os.uname().nodename, _pid_namespace())


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; ``None`` if it is over (a zombie is)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def is_elsewhere(owner: Owner) -> bool:
    """Whether its pid means nothing here: another machine's, or another container's."""
    if owner.machine != os.uname().nodename:
        return True
    return owner.boot_id == _boot_id() and owner.pid_namespace != _pid_namespace()


def is_alive(owner: Owner) -> bool:
    """Whether this very process runs here and now."""
    if is_elsewhere(owner) or owner.boot_id != _boot_id():
        return False
    return start_ticks(owner.pid) == owner.start_ticks


def attach(owner: Owner) -> int | None:
    """A pidfd of the process, or ``None`` if it is over. It polls readable when the process ends.

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
    if start_ticks(owner.pid) == owner.start_ticks:  # so the pidfd is that process, not a later one
        return pidfd
    os.close(pidfd)
    return None


def signal_owner(owner: Owner, signum: int) -> bool:
    """Send a signal to this very process; ``False`` if it is over.

    Raises:
        LaunchError: it is not ours to signal.
    """
    pidfd = attach(owner)
    if pidfd is None:
        return False
    try:
        return send(pidfd, signum)
    finally:
        os.close(pidfd)


def send(pidfd: int, signum: int) -> bool:
    """Send a signal through a pidfd; ``False`` if the process is over.

    Raises:
        LaunchError: it is not ours to signal.
    """
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise LaunchError("can't stop it: the launcher of this run is another user's") from error
    return True


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
