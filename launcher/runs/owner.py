"""The launcher process that owns a run: whether it is alive, and signals to it.

A pid alone identifies a process only until it ends. A pid, the start time of the process (in clock ticks
since boot) and the boot id identify it for ever.
"""

import os
import signal
from typing import NamedTuple

from launcher.agent.processes import look_at
from launcher.errors import LaunchError


class Owner(NamedTuple):
    """Identifies a process for ever."""

    pid: int
    #: Field 22 of ``/proc/PID/stat``.
    start_ticks: int
    boot_id: str
    #: Home folders are shared between machines, and with containers: where the pid counts.
    machine: str
    pid_namespace: str


class AgentRecord(NamedTuple):
    """An agent of this machine, by which its processes can be found after it was killed."""

    #: The number in the process tags of all that it started.
    number: int
    #: Its watchdog, the leader of their session, and when that started, in ticks since boot.
    pid: int
    start_ticks: int


def this_process() -> Owner:
    """This process.

    Raises:
        OSError: there is no ``/proc``.
    """
    ticks = start_ticks(os.getpid())
    if ticks is None:
        raise FileNotFoundError(2, "no such file", "/proc/self/stat")
    return Owner(os.getpid(), ticks, _boot_id(), os.uname().nodename, _pid_namespace())


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; ``None`` if it is over (a zombie is)."""
    process = look_at(pid)
    return None if process is None or process.ended else process.start


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


def is_pending(pidfd: int, number: int) -> bool:
    """Whether the process has not taken this signal yet: it would take no notice of a second one."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
            pid = int(file.read().partition(b"\nPid:")[2].split()[0])
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = int(file.read().partition(b"\nShdPnd:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):  # it has ended
        return False
    return bool(pending >> (number - 1) & 1)


def user_of(pid: int) -> int | None:
    """The (real) user a process runs for; ``None`` if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            uids = file.read().partition(b"\nUid:")[2].split(None, 1)
    except OSError:
        return None
    return int(uids[0]) if uids else None


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
