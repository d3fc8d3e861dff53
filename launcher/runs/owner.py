"""The launcher process of a run: whether it is alive, and signals to it.

A pid identifies a process only until it ends. A pid, the start time (in clock ticks since boot) and the boot
id identify it for ever.
"""

import os
import signal

from launcher.agent.processes import look_at
from launcher.errors import LaunchError
from launcher.record import Record


class Owner(Record):
    """Identifies a process for ever."""

    pid: int
    #: Field 22 of ``/proc/PID/stat``.
    start_ticks: int
    boot_id: str
    #: Where the pid is valid: home folders may be shared with other machines and with containers.
    machine: str
    pid_namespace: str


def this_process() -> Owner:
    """The identity of this process.

    Raises:
        OSError: there is no ``/proc``.
    """
    ticks = start_ticks(os.getpid())
    if ticks is None:
        raise FileNotFoundError(2, "no such file", "/proc/self/stat")
    return Owner(os.getpid(), ticks, _boot_id(), os.uname().nodename, _pid_namespace())


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; ``None`` if it has ended (also a zombie)."""
    process = look_at(pid)
    return None if process is None or process.ended else process.start


def is_elsewhere(owner: Owner) -> bool:
    """Whether its pid is not valid here: it is a process of another machine or container."""
    if owner.machine != os.uname().nodename:
        return True
    return owner.boot_id == _boot_id() and owner.pid_namespace != _pid_namespace()


def is_alive(owner: Owner) -> bool:
    """Whether the process runs here; another process with the same pid does not count."""
    if is_elsewhere(owner) or owner.boot_id != _boot_id():
        return False
    return start_ticks(owner.pid) == owner.start_ticks


def open_pidfd(owner: Owner) -> int | None:
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


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
