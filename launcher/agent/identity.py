"""Identifies a process uniquely across machines and reboots, and finds out whether it is alive.

Runs, containers, Kubernetes Jobs and folders of ``--sync`` carry the identity of the process that has made
them. Launchers and agents call this module before they remove what a dead process has left behind.

A pid means something only in one pid namespace, during one boot of one machine, and until its process ends.
Host names and machine ids are not unique, because cloned machines and containers share them. So a process
that is not found counts as dead only if it would have to be found here, or if its kernel has provably
stopped. In all other cases its fate is unknown, and nobody may remove what it has made.

A reboot is proven by a file on a local disk with the boots that this user has seen. Cloned machines share the
boots before they were cloned, and none after. The file costs 0.2 ms of a launch.
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
from launcher.common.trusted_io import open_regular, read_at_most

#: The folder for the boots that a user has seen. It is on a disk of this machine and survives a reboot.
_BOOTS_FOLDER_FORMAT = "/var/tmp/tf-launcher-%d"
#: File systems that only one machine uses at a time. On others the boots of several machines would mix.
_LOCAL_FILE_SYSTEMS = frozenset(
    ["btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"]
)
# A larger file of boots is not read.
_MAX_BYTES = 256 * 1024
# Only the newest boots stay in the file.
_MAX_BOOTS = 1000
# The largest prime below 2**32, so that checksums of machine ids have 32 bits and depend on all of an id.
_CHECKSUM_MODULUS = 2**32 - 5
# Stands for the id of a machine that has none.
_NO_ID = "-"
# The form of an `owner_text`. An earlier version wrote no machine id.
_IDENTITY_PATTERN = r"(\d{1,10}):(\d{1,20}):([^:]*):(\d{1,10}):([^:]*):(pid:\[\d+\])(?::([^:]*))?"


class Fate(enum.Enum):
    """What is known about a process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class ProcessIdentity(Record):
    """Identifies one process, uniquely across machines, reboots and reused pids."""

    pid: int
    #: The clock ticks from boot to the start of the process, field 22 of ``/proc/PID/stat``.
    start_ticks: int
    #: The kernel's random id of this boot.
    boot_id: str
    #: The name of the host.
    machine: str
    #: The pid namespace, such as ``pid:[4026531836]``.
    pid_namespace: str
    #: The checksum from `machine_id`. It is empty in the record of an earlier version.
    machine_id: str = ""


def this_process() -> ProcessIdentity:
    """Identify this process, and remember this boot of the machine.

    Raises:
        OSError: ``/proc`` is missing.
    """
    ticks = start_ticks(os.getpid())
    if ticks is None:
        raise FileNotFoundError(2, "no such file", "/proc/self/stat")
    # "Owner", because what this process makes will carry its identity.
    owner = ProcessIdentity(
        os.getpid(),
        start_ticks=ticks,
        boot_id=_boot_id(),
        machine=os.uname().nodename,
        pid_namespace=_pid_namespace(),
        machine_id=machine_id(),
    )
    # After a reboot this proves that the processes of this boot are dead, see `fate_of`.
    _remember_boot(owner)
    return owner


def fate_of(owner: ProcessIdentity) -> Fate:
    """Return whether a process is alive or dead. Without a proof of either, its fate is unknown.

    A process that is not alive here has run during another boot, in another pid namespace of this boot
    (such as that of a container), or in the pid namespace of this process. Each case has a proof of its own.

    Args:
        owner: The process. What it has made carries its identity, so it is called the owner.
    """
    if is_alive(owner):
        return Fate.ALIVE
    if owner.boot_id != _boot_id():
        # The owner is dead if this machine has seen the owner's boot, because it runs another boot now. The
        # file of seen boots proves that only if no other machine writes to it.
        is_dead = _is_of_this_machine(owner) and _is_remembered(owner) and _boots_are_local()
    elif owner.pid_namespace != _pid_namespace():
        # The pids of another namespace mean nothing here. If no process is left in it, the owner is dead. The
        # machine is not compared: a container may have another machine id than the host it runs on.
        is_dead = _is_without_processes(owner.pid_namespace)
    else:
        # On this machine `is_alive` would have found the owner. But a virtual machine that is cloned while it
        # runs has the same boot and namespace as its clone. If the machine ids differ, the owner may run
        # in the clone.
        is_dead = _is_of_this_machine(owner)
    return Fate.DEAD if is_dead else Fate.UNKNOWN


def is_alive(owner: ProcessIdentity) -> bool:
    """Return whether a process is alive and can be seen here, and not just another one with the same pid."""
    # Its pid means something only during the same boot and in the same pid namespace.
    if (owner.boot_id, owner.pid_namespace) != (_boot_id(), _pid_namespace()):
        return False
    return start_ticks(owner.pid) == owner.start_ticks


def start_ticks(pid: int) -> Optional[int]:
    """Return the clock ticks from boot to the start of a process.

    Returns:
        None if there is no such process, or if it has ended and is a zombie.
    """
    process = read_process(pid)
    return None if process is None or process.has_ended else process.start


def machine_id() -> str:
    """Return a checksum of the id of this machine. The id itself is confidential, see machine-id(5).

    Returns:
        ``-`` if the machine has no id, as many containers.
    """
    with suppress(OSError), open("/etc/machine-id", "rb") as file:
        # The file may be empty, as in the image of a container.
        if content := file.read(64).strip():
            return f"{int.from_bytes(content, 'big') % _CHECKSUM_MODULUS:08x}"
    return _NO_ID


def owner_text(owner: ProcessIdentity) -> str:
    """Return the text of a label that identifies a process of this user. `read_owner` parses it.

    Its form is ``PID:START_TICKS:BOOT_ID:USER_ID:MACHINE:PID_NAMESPACE:MACHINE_ID``.
    """
    where = f"{owner.machine}:{owner.pid_namespace}:{owner.machine_id}"
    return f"{owner.pid}:{owner.start_ticks}:{owner.boot_id}:{os.getuid()}:{where}"


def read_owner(text: str) -> Optional[Tuple[ProcessIdentity, int]]:
    """Parse the text of a label that identifies a process, even that of an earlier version.

    Args:
        text: What `owner_text` has returned.

    Returns:
        The process and the id of its user, or None if the text has another form.
    """
    match = re.fullmatch(_IDENTITY_PATTERN, text)
    if match is None:
        return None
    # An earlier version wrote no machine id, which is then empty.
    pid, start, boot, user, machine, namespace, its_machine_id = match.groups("")
    return ProcessIdentity(
        int(pid),
        start_ticks=int(start),
        boot_id=boot,
        machine=machine,
        pid_namespace=namespace,
        machine_id=its_machine_id,
    ), int(user)


def _is_of_this_machine(owner: ProcessIdentity) -> bool:
    """Return whether a process may have run on this machine, as far as the names of its machine tell.

    True is no proof, because cloned machines share all names. During one boot only the machine id is
    compared, because the host name may change. An earlier version did not record the id.
    """
    if owner.boot_id == _boot_id() and owner.machine_id:
        return owner.machine_id == machine_id()
    return owner.machine == os.uname().nodename and owner.machine_id in ("", machine_id())


def _is_without_processes(pid_namespace: str) -> bool:
    """Return whether all processes of a pid namespace of this machine have provably ended.

    Only from the machine's own namespace the processes of all others can be seen. If even process 1 is
    missing there, ``hidepid`` hides processes.
    """
    pids = all_pids()
    # In these cases there may be processes that cannot be seen here.
    if _pid_namespace() != FIRST_PID_NAMESPACE or 1 not in pids:
        return False
    return not any(_may_be_in(pid, pid_namespace) for pid in pids)


def _may_be_in(pid: int, pid_namespace: str) -> bool:
    """Return whether a process may be in a pid namespace. If it has ended, it is not."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == pid_namespace
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        # Of another user's process, only the status can be read. It shows whether the namespace is ours.
        return is_nested(pid)


def _boot_id() -> str:
    """Return the kernel's random id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def _pid_namespace() -> str:
    """Return the pid namespace of this process, such as ``pid:[4026531836]``."""
    return os.readlink("/proc/self/ns/pid")


# ---------------------------------------------------------------------- the boots that this machine has seen


def _boot_line(owner: ProcessIdentity) -> bytes:
    """Return the line for the boot of a process in the file of boots.

    It contains the pid namespace, too, because a container shares the boot id of its host.
    """
    return f"{owner.boot_id} {owner.pid_namespace}\n".encode()


def _boots() -> bytes:
    """Return the content of this user's file of boots.

    Returns:
        No bytes if there is no such file, or if another user may have written it.
    """
    try:
        with open_regular(f"{_boots_folder()}/boots", links=False) as file:
            # Another user could have made a file or folder of this name in /var/tmp.
            is_own = os.fstat(file.fileno()).st_uid == os.geteuid()
            return read_at_most(file, _MAX_BYTES) if is_own else b""
    except OSError:
        return b""


def _boots_folder() -> str:
    """Return the folder of this user's file of boots, which may not exist."""
    return _BOOTS_FOLDER_FORMAT % os.geteuid()


def _is_remembered(owner: ProcessIdentity) -> bool:
    """Return whether this user's file of boots contains the boot during which a process was started."""
    return _boot_line(owner) in _boots().splitlines(keepends=True)


def _remember_boot(owner: ProcessIdentity) -> None:
    """Add the boot of a process to this user's file of boots.

    If that is not possible, no reboot of this machine can be proven later, and no error is raised.
    """
    lines = _boots().splitlines(keepends=True)
    if _boot_line(owner) in lines:
        return
    with suppress(OSError):
        folder = _boots_folder()
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        # Any user may make a folder of this name in /var/tmp. Ours must not be writable by anyone else.
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return
        # The new content replaces the file in one step, because other launches may read it meanwhile.
        temporary, flags = f"{folder}/boots.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(temporary, flags | os.O_NOFOLLOW, 0o600), "wb") as file:
            # With the new line, at most `_MAX_BOOTS` lines are kept. The oldest ones are dropped.
            file.write(b"".join([*lines[1 - _MAX_BOOTS :], _boot_line(owner)]))
        os.replace(temporary, f"{folder}/boots")


def _boots_are_local() -> bool:
    """Return whether the file of boots is on a disk to which only this machine writes.

    The type of the file system tells. The file is on the mount with the longest path that leads to it.
    """
    folder, mount, file_system = os.path.realpath(_boots_folder()) + "/", "", ""
    for line in lines_of("/proc/self/mountinfo"):
        # See proc_pid_mountinfo(5). The fifth field is the mount point, in which a blank is written as \040.
        # The type of the file system follows after a dash.
        fields = line.split()
        mount_point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4]).rstrip("/") + "/"
        # Of two mounts on the same folder, the later one hides the earlier one.
        if folder.startswith(mount_point) and len(mount_point) >= len(mount):
            mount, file_system = mount_point, fields[fields.index("-") + 1]
    return file_system in _LOCAL_FILE_SYSTEMS
