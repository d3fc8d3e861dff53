"""What an agent reports about its host: facts, GPUs, and processes that the kernel's OOM killer killed.

The agent calls this module, and so does ``launch check``. The kernel states the facts without a delay, so
the agent asks for them itself. ``nvidia-smi`` may take seconds, so it must only run in a child of the agent.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import sys
import time
from array import array
from contextlib import suppress
from typing import Dict, List, Optional, Tuple

from launcher.agent.processes import FIRST_PID_NAMESPACE, lines_of
from launcher.common.events import HostFacts

#: A command that prints a line for each GPU. The caller adds ``--query-gpu=`` with the wanted columns.
NVIDIA_SMI = ("nvidia-smi", "--format=csv,noheader")
#: ``nvidia-smi`` is slow when it has to load the driver first.
GPU_TIMEOUT_SECONDS = 15.0
_MAX_ADDRESSES = 1000
# See netdevice(7). A struct ifreq is a name followed by a union. We use two members of the union, the socket
# address and the flags. Its largest member, a struct ifmap, determines its size.
_SIOCGIFCONF = 0x8912
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_IFREQ_UNION_BYTES = struct.calcsize("P") * 2 + 8
_IFREQ = struct.Struct(f"16s4x4s{_IFREQ_UNION_BYTES - 8}x")
_IFFLAGS = struct.Struct(f"16sH{_IFREQ_UNION_BYTES - 2}x")


def host_facts() -> HostFacts:
    """Return what an agent tells the launcher about its host when it starts."""
    return HostFacts(
        hostname=os.uname().nodename,
        addresses=tuple(own_addresses()[:_MAX_ADDRESSES]),
        cpus=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable,
        user=os.getuid(),
    )


def _ipv4_addresses() -> List[str]:
    """Return the IPv4 addresses of the network interfaces that are up, loopback included.

    This asks the kernel by the same ioctl as ``ifconfig``. ``/proc/net/fib_trie`` would list them too, but it
    contains all routes, and takes seconds to read on a router.

    Returns:
        An empty list if the kernel refuses to answer.
    """
    addresses: List[str] = []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = array("B", bytes(_MAX_ADDRESSES * _IFREQ.size))
        # A struct ifconf: the size of the buffer and its address. The kernel fills the buffer with one struct
        # ifreq for each address, and returns the size that it has used.
        pointer, size = answer.buffer_info()
        size, _ = struct.unpack("iP", fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iP", size, pointer)))
        for interface, address in _IFREQ.iter_unpack(answer.tobytes()[:size]):
            request = _IFFLAGS.pack(interface, 0)
            _, flags = _IFFLAGS.unpack(fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
            if flags & _IFF_UP:
                addresses.append(socket.inet_ntoa(address))
    return addresses


def own_addresses() -> List[str]:
    """Return the IPv4 and IPv6 addresses by which other hosts may reach this one.

    Loopback addresses are left out, and so are link-local ones of IPv6, which can be used only together with
    the name of an interface. Those of IPv4 (169.254.0.0/16) need none.
    """
    # An address may belong to several interfaces.
    unique = dict.fromkeys(_ipv4_addresses())
    addresses = [address for address in unique if not address.startswith("127.")]
    # A line consists of the address (32 hex digits), index, prefix length, scope (00 is global), flags, name.
    for line in lines_of("/proc/net/if_inet6"):
        digits, _, _, scope = line.split()[:4]
        if scope == "00":
            addresses.append(":".join(digits[start : start + 4] for start in range(0, 32, 4)))
    return addresses


def become_nvidia_smi(query: str = "--query-gpu=index,name,memory.total", units: str = "") -> None:
    """Replace this process, a child of the agent, by an ``nvidia-smi`` that answers a query.

    Args:
        query: What to print in a line for each GPU, or each process. By default the GPUs are listed.
        units: ``,nounits`` to print numbers without units.
    """
    program, form = NVIDIA_SMI
    os.execvp(program, (program, form + units, query))


def read_gpus(answer: bytes) -> Tuple[str, ...]:
    """Return the lines that describe GPUs in the output of ``nvidia-smi``.

    Args:
        answer: What the program has printed, which may be an error message.

    Returns:
        One line for each GPU: its index, name and memory. It is empty if the program listed none.
    """
    lines = answer.decode("utf-8", "replace").splitlines()
    return tuple(line.strip() for line in lines if line[:1].isdigit())


# ---------------------------------------------------------------------- processes killed by the OOM killer

# The kernel counts such a kill before it sends the signal, and logs the pid right after it. So nothing else
# needs to be read while this count has not changed.
_MACHINE_COUNTERS = "/proc/vmstat"
#: Control groups of version 1 express "no limit" by a number above this one.
_NO_LIMIT_BYTES = 1 << 60
#: The kernel writes its log at most this long after it has increased the count.
_LOG_DELAY_SECONDS = 0.02


def _kill_count(path: str) -> Optional[int]:
    """Return how many processes the OOM killer has killed, from a file with a line ``oom_kill N``.

    Returns:
        None if the file cannot be read or contains no such line.
    """
    counts = [int(line.split()[1]) for line in lines_of(path) if line.startswith("oom_kill ")]
    return counts[0] if counts else None


def _group_count_files() -> List[str]:
    """Return the paths of the files that count OOM kills in the control group of the agent and its tasks."""
    files = []
    for line in lines_of("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        # Only control groups of version 2 have no list of controllers. A machine may use both versions.
        if not controllers:
            files.append(_group_file("/sys/fs/cgroup", path, "memory.events"))
        elif "memory" in controllers.split(","):
            files.append(_group_file("/sys/fs/cgroup/memory", path, "memory.oom_control"))
    return files


def _group_file(mount: str, group: str, name: str) -> str:
    """Return the path of a file of a control group, where this process sees it.

    In a container ``/proc`` may show the path that the group has outside of the container. Then the group is
    the root of what is mounted here.

    Args:
        mount: Where the control groups are mounted.
        group: The path of the group from ``/proc/self/cgroup``.
        name: The name of the file.
    """
    file = f"{mount}{group}/{name}"
    return file if os.path.exists(file) else f"{mount}/{name}"


def _limit_text(path: str) -> str:
    """Return a clause about the memory limit of a control group, for a message about its OOM kills.

    Args:
        path: The file that counts the kills of the group. The file with the limit is in the same folder.

    Returns:
        An empty text if the group has no limit.
    """
    # The file of version 2 of control groups, and that of version 1.
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = "".join(lines_of(os.path.join(os.path.dirname(path), name)))
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES:
            return f", its limit is {int(limit) >> 20} MiB"
    return ""


class OomWatch:
    """Finds out whether the kernel's OOM killer killed a task.

    It compares the kernel's counts of OOM kills with those from when the agent started. Each count that it
    has used as evidence for one process is not evidence for the next.
    """

    def __init__(self) -> None:
        """Remember how many processes the kernel's OOM killer has killed so far."""
        #: The kernel's log, which is the strongest evidence if this user may read it.
        self._log = KernelLog()
        #: How many kills of our control group are no evidence for a later process, by the file with the
        #: kernel's count, usually one: those before the agent started, and one more with each that was
        #: evidence for a process. None if the file cannot be read.
        self._groups = {path: _kill_count(path) for path in _group_count_files()}
        #: How many kills of the whole machine are no evidence for a later process, in the same way.
        self._machine = _kill_count(_MACHINE_COUNTERS)

    def evidence(self, pid: int) -> str:
        """Return the evidence that the OOM killer has killed a process, and count it as used.

        Args:
            pid: A process that SIGKILL has ended.

        Returns:
            A text for the user, or an empty text if there is no evidence.
        """
        machine = _kill_count(_MACHINE_COUNTERS)
        # Nothing was killed on this machine since the count was last used.
        if machine is not None and machine == self._machine:
            return ""
        # The strongest evidence comes first.
        return self._log.record_of(pid) or self._group_evidence() or self._machine_evidence(machine)

    def _group_evidence(self) -> str:
        """Return a text about a new OOM kill in our control group, and count it as used.

        Returns:
            An empty text if all kills of the group were evidence for earlier processes.
        """
        for path, before in self._groups.items():
            now = _kill_count(path)
            if before is not None and now is not None and now > before:
                # One kill is evidence for one process.
                self._groups[path] = before + 1
                kills = f"the control group's out-of-memory kills went from {before} to {now}"
                return f"{kills}{_limit_text(path)} ({path})"
        return ""

    def _machine_evidence(self, now: Optional[int]) -> str:
        """Return a text about a new OOM kill anywhere on the machine, and count it as used.

        This is weak evidence, because the kill may concern a process of anyone. So it counts only where
        neither the kernel's log nor the counts of our control group can be read.

        Args:
            now: How many processes the OOM killer has killed on this machine, or None if that is unknown.

        Returns:
            An empty text if there is no new kill, or if there is a better source.
        """
        before = self._machine
        has_better_source = self._log.readable or any(count is not None for count in self._groups.values())
        if has_better_source or before is None or now is None or now <= before:
            return ""
        self._machine = before + 1
        return f"the machine's out-of-memory kills went from {before} to {now} during the job"


class KernelLog:
    """The records of OOM kills in the kernel's log, from now on.

    `readable` is false if this user may not read the log. It is false in a container, too, because the pids
    in the log mean other processes there.
    """

    def __init__(self) -> None:
        """Open the kernel's log at its end, if this user may read it and its pids are those that we see."""
        #: The texts of the records that were read and not asked for yet, by the pid of the killed process.
        self._killed: Dict[int, str] = {}
        #: The descriptor of the log, or -1 if it cannot be read.
        self._fd = -1
        with suppress(OSError):
            # In a container the pids in the log would mean other processes than ours.
            if os.readlink("/proc/self/ns/pid") == FIRST_PID_NAMESPACE:
                self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
                os.lseek(self._fd, 0, os.SEEK_END)
        #: Whether the log can be used as evidence.
        self.readable = self._fd >= 0

    def record_of(self, pid: int) -> str:
        """Return the log's record of the kill of a process, and forget it.

        The kernel may write the record after the process has ended, so this waits up to
        `_LOG_DELAY_SECONDS` for it. If the log cannot be read, this does not wait.

        Args:
            pid: A process that SIGKILL has ended.

        Returns:
            A text for the user, or an empty text if there is no record.
        """
        until = time.monotonic() + _LOG_DELAY_SECONDS
        while self.readable:
            self._read()
            # Most processes that SIGKILL has ended have no record, because no OOM kill was the reason.
            if pid in self._killed or time.monotonic() > until:
                break
            time.sleep(0.001)
        return self._killed.pop(pid, "")

    def _read(self) -> None:
        """Read all new records of the log, and keep those of OOM kills.

        Such a record is ``6,339,5140900,-;Memory cgroup out of memory: Killed process 7 (python) ...``.
        """
        while True:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:
                # The kernel has overwritten records that were not read. The next read continues after them.
                continue
            except OSError:
                # BlockingIOError: all records have been read.
                return
            match = re.search(rb"Killed process (\d+) \(", record)
            if match:
                text = record.partition(b";")[2].split(b"\n")[0].decode("utf-8", "replace")
                self._killed[int(match.group(1))] = f"kernel log: {text}"
