"""The launcher process that owns a run: its record, whether it is alive, and signals to it.

A pid alone identifies a process only until it ends. A pid, the start time of the process (in clock ticks
since boot) and the boot id identify it for ever. A run's folder may be another user's: files there are opened
so that a pipe or a link in their place does no harm.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from collections.abc import Mapping
from typing import BinaryIO, NamedTuple

from launcher.errors import LaunchError
from launcher.job import RunPaths

#: The field of ``launcher.json`` with the agents; removed once no process of theirs is left.
AGENTS = "agents"
#: Bytes of a ``launcher.json``; a longer one is not ours.
RECORD_SIZE = 64 * 1024


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


def open_regular(path: str, links: bool = True) -> BinaryIO:
    """Open a file for reading; a pipe or a device in its place is refused.

    Args:
        path: of the file.
        links: whether the last part of the path may be a link.

    Raises:
        OSError: it is not there, or no regular file.
    """
    if not stat.S_ISREG(os.stat(path, follow_symlinks=links).st_mode):  # opening some devices does something
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def read_record(paths: RunPaths) -> tuple[bytes, int]:
    """What is in ``launcher.json``, and the user it belongs to. We write a file there: a link is not ours.

    Raises:
        OSError: there is none, or it is none of ours.
    """
    with open_regular(paths.owner, links=False) as file:
        data, uid = file.read(RECORD_SIZE + 1), os.fstat(file.fileno()).st_uid
    if len(data) > RECORD_SIZE:
        raise OSError(errno.EFBIG, "it is too long", paths.owner)
    return data, uid


def user_of(pid: int) -> int | None:
    """The (real) user a process runs for; ``None`` if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            uids = file.read().partition(b"\nUid:")[2].split(None, 1)
    except OSError:
        return None
    return int(uids[0]) if uids else None


def write_record(paths: RunPaths, record: Mapping[str, object]) -> None:
    """Write ``launcher.json``, whole or not at all.

    Raises:
        OSError: it can't be written.
    """
    temporary = f"{paths.owner}.{os.getpid()}"
    # Where others may write, somebody may have put a link of this name: it is not followed.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    os.rename(temporary, paths.owner)


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
