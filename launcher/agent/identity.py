"""Identifies a process uniquely, across machines and reboots, and tells whether it is alive.

Runs, containers, Jobs and folders of ``--sync`` carry the name of the process that has made them.

A pid means something only in one pid namespace, during one boot of one machine, and until its process ends.
Host names and machine ids are not unique: cloned machines and containers share them. So a process that is not
found is dead only if it would have to be found here, or if its kernel has provably ended. In all other cases
nobody may remove what it has made: unknown is not dead.

A reboot is proven by the boots that this user has seen on a local disk: clones share the boots before they
were cloned, and none after. That takes 0.2 ms of a launch.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from contextlib import suppress
from typing import Optional, Tuple

from launcher.agent.processes import FIRST_PID_NAMESPACE, all_pids, is_nested, lines_of, read_process
from launcher.common.record import Record
from launcher.common.trusted_io import open_regular, read_most

#: The folder of a user, on a disk of this machine that survives a reboot, for the boots that it has seen.
_BOOTS_FOLDER_FORMAT = "/var/tmp/tf-launcher-%d"
#: File systems that one machine uses at a time. On others the boots of several machines would mix.
_LOCAL_FILE_SYSTEMS = frozenset(
    ["btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"]
)
#: A larger file of boots is not read.
_MAX_BYTES = 256 * 1024
#: How many of the newest boots stay in the file.
_MAX_BOOTS = 1000
#: The number of checksums of machine ids, a prime.
_CHECKSUM_MODULUS = 2**32 - 5
#: The machine id of a machine that has none.
_NO_ID = "-"
#: The form of an `owner_text`. An earlier version wrote no machine id.
_IDENTITY_PATTERN = r"(\d{1,10}):(\d{1,20}):([^:]*):(\d{1,10}):([^:]*):(pid:\[\d+\])(?::([^:]*))?"


class Fate(enum.Enum):
    """What is known about a process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class ProcessIdentity(Record):
    """Identifies one process, uniquely across machines and reboots."""

    pid: int
    #: Field 22 of ``/proc/PID/stat``: clock ticks since boot.
    start_ticks: int
    boot_id: str
    #: The host name, for the user.
    machine: str
    pid_namespace: str
    #: See `machine_id`. It is empty in a record of an earlier version.
    machine_id: str = ""


def this_process() -> ProcessIdentity:
    """Identify this process, and remember this boot of the machine.

    Raises:
        OSError: There is no ``/proc``.
    """
    ticks = start_ticks(os.getpid())
    if ticks is None:
        raise FileNotFoundError(2, "no such file", "/proc/self/stat")
    owner = ProcessIdentity(
        os.getpid(),
        start_ticks=ticks,
        boot_id=_boot_id(),
        machine=os.uname().nodename,
        pid_namespace=_pid_namespace(),
        machine_id=machine_id(),
    )
    _remember_boot(owner)
    return owner


def fate_of(owner: ProcessIdentity) -> Fate:
    """Tell whether a process is alive. Only a proof makes it dead."""
    if is_alive(owner):
        return Fate.ALIVE
    if owner.boot_id != _boot_id():
        is_dead = _is_of_this_machine(owner) and _is_remembered(owner) and _boots_are_local()
    elif owner.pid_namespace != _pid_namespace():
        is_dead = _is_without_processes(owner.pid_namespace)
    else:
        is_dead = _is_of_this_machine(owner)
    return Fate.DEAD if is_dead else Fate.UNKNOWN


def is_alive(owner: ProcessIdentity) -> bool:
    """Tell whether a process is alive here; another process with the same pid does not count."""
    if (owner.boot_id, owner.pid_namespace) != (_boot_id(), _pid_namespace()):
        return False
    return start_ticks(owner.pid) == owner.start_ticks


def start_ticks(pid: int) -> Optional[int]:
    """Return when a process started, in clock ticks since boot.

    Returns:
        None if it has ended. Then it may still be a zombie.
    """
    process = read_process(pid)
    return None if process is None or process.has_ended else process.start


def machine_id() -> str:
    """Return a checksum of the id of this machine, which itself is confidential.

    Returns:
        ``-`` if the machine has no id, as in many containers.
    """
    with suppress(OSError), open("/etc/machine-id", "rb") as file:
        if found := file.read(64).strip():
            return f"{int.from_bytes(found, 'big') % _CHECKSUM_MODULUS:08x}"
    return _NO_ID


def owner_text(owner: ProcessIdentity) -> str:
    """Write a process of this user as a label: ``pid:start:boot:uid:machine:namespace:machine id``."""
    where = f"{owner.machine}:{owner.pid_namespace}:{owner.machine_id}"
    return f"{owner.pid}:{owner.start_ticks}:{owner.boot_id}:{os.getuid()}:{where}"


def read_owner(text: str) -> Optional[Tuple[ProcessIdentity, int]]:
    """Read a process and the id of its user from an `owner_text`, also from one of an earlier version.

    Returns:
        None if it is no such text.
    """
    found = re.fullmatch(_IDENTITY_PATTERN, text)
    if found is None:
        return None
    pid, start, boot, user, machine, namespace, its_id = found.groups("")
    return ProcessIdentity(
        int(pid),
        start_ticks=int(start),
        boot_id=boot,
        machine=machine,
        pid_namespace=namespace,
        machine_id=its_id,
    ), int(user)


def _is_of_this_machine(owner: ProcessIdentity) -> bool:
    """Tell whether no name of the machine differs. That alone is no proof: cloned machines share all names.

    Within a boot the machine id counts, because a host name may change. An earlier version did not record it.
    """
    if owner.boot_id == _boot_id() and owner.machine_id:
        return owner.machine_id == machine_id()
    return owner.machine == os.uname().nodename and owner.machine_id in ("", machine_id())


def _is_without_processes(pid_namespace: str) -> bool:
    """Tell whether all processes of a pid namespace of this boot have ended, as far as that can be seen here.

    The first namespace has the processes of all others, unless ``hidepid`` hides them.
    """
    pids = all_pids()
    if _pid_namespace() != FIRST_PID_NAMESPACE or 1 not in pids:
        return False
    return not any(_may_be_in(pid, pid_namespace) for pid in pids)


def _may_be_in(pid: int, pid_namespace: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == pid_namespace
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False
    except PermissionError:  # another user's: its status shows whether it is in a further namespace
        return is_nested(pid)


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


# ---------------------------------------------------------------------- the boots that this machine has seen


def _line(owner: ProcessIdentity) -> bytes:
    """Return the line for a boot. It has the namespace, because a container has its boot from its host."""
    return f"{owner.boot_id} {owner.pid_namespace}\n".encode()


def _boots() -> bytes:
    """Return the content of this user's file of boots.

    Returns:
        Nothing if there is no such file, or someone else may have written it.
    """
    try:
        with open_regular(f"{_folder()}/boots", links=False) as file:
            is_own = os.fstat(file.fileno()).st_uid == os.geteuid()
            return read_most(file, _MAX_BYTES) if is_own else b""
    except OSError:
        return b""


def _folder() -> str:
    return _BOOTS_FOLDER_FORMAT % os.geteuid()


def _is_remembered(owner: ProcessIdentity) -> bool:
    return _line(owner) in _boots().splitlines(keepends=True)


def _remember_boot(owner: ProcessIdentity) -> None:
    """Add the boot of a process to the file of boots. Without that no reboot can be proven."""
    lines = _boots().splitlines(keepends=True)
    if _line(owner) in lines:
        return
    with suppress(OSError):
        folder = _folder()
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)  # anybody may make a folder in /var/tmp
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return
        new = f"{folder}/boots.{os.getpid()}"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(b"".join([*lines[1 - _MAX_BOOTS :], _line(owner)]))
        os.replace(new, f"{folder}/boots")


def _boots_are_local() -> bool:
    """Tell whether the file of boots lies on a disk that only this machine writes to."""
    folder, kind = os.path.realpath(_folder()) + "/", ""
    longest = 0
    for fields in map(str.split, lines_of("/proc/self/mountinfo")):
        place = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields[4]).rstrip("/") + "/"
        if folder.startswith(place) and len(place) >= longest:  # a later mount hides an earlier one
            longest, kind = len(place), fields[fields.index("-") + 1]
    return kind in _LOCAL_FILE_SYSTEMS
