"""What an agent reports about its host: facts, GPUs, and processes that the kernel's OOM killer ended.

The kernel gives the facts without a delay. ``nvidia-smi`` may take seconds; ``HostGpus`` has its answer.
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

#: A command that prints a line for each GPU; needs ``--query-gpu=``.
NVIDIA_SMI = ("nvidia-smi", "--format=csv,noheader")
#: Seconds ``nvidia-smi`` may take: it loads the driver if nothing else has.
GPU_TIMEOUT_SECONDS = 15.0
#: Addresses that are reported.
_MAX_ADDRESSES = 1000
# See netdevice(7). A struct ifreq has a name, then a union. We use its socket address and its flags. A struct
# ifmap is its largest member.
_SIOCGIFCONF = 0x8912
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_IFREQ_UNION_BYTES = struct.calcsize("P") * 2 + 8
_IFREQ = struct.Struct(f"16s4x4s{_IFREQ_UNION_BYTES - 8}x")
_IFFLAGS = struct.Struct(f"16sH{_IFREQ_UNION_BYTES - 2}x")


def host_facts() -> HostFacts:
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
    """Return the IPv4 addresses of the interfaces that are up; none if the kernel does not say.

    The kernel is asked as by ``ifconfig``: ``/proc/net/fib_trie`` has all routes, and takes seconds to read
    on a router.
    """
    found: List[str] = []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = array("B", bytes(_MAX_ADDRESSES * _IFREQ.size))
        where, size = answer.buffer_info()
        size, _ = struct.unpack("iP", fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iP", size, where)))
        for name, address in _IFREQ.iter_unpack(answer.tobytes()[:size]):
            flags = _IFFLAGS.unpack(fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFFLAGS.pack(name, 0)))[1]
            if flags & _IFF_UP:
                found.append(socket.inet_ntoa(address))
    return found


def own_addresses() -> List[str]:
    """Return the addresses of this host, without loopback and link-local addresses."""
    found = dict.fromkeys(_ipv4_addresses())
    addresses = [address for address in found if not address.startswith("127.")]
    for line in lines_of("/proc/net/if_inet6"):  # 32 hex digits, index, prefix, scope, flags, name
        digits, _, _, scope = line.split()[:4]
        if scope == "00":  # global
            addresses.append(":".join(digits[start : start + 4] for start in range(0, 32, 4)))
    return addresses


def become_nvidia_smi() -> None:
    """Become ``nvidia-smi``, in a child of the agent."""
    os.execvp(NVIDIA_SMI[0], (*NVIDIA_SMI, "--query-gpu=index,name,memory.total"))


def read_gpus(answer: bytes) -> Tuple[str, ...]:
    """Return the output of ``nvidia-smi``, a line for each GPU."""
    lines = answer.decode("utf-8", "replace").splitlines()
    return tuple(line.strip() for line in lines if line[:1].isdigit())


# ---------------------------------------------------------------------- processes killed by the OOM killer

# The kernel counts such a kill before it sends the signal, and logs the pid right after. So a machine
# whose count has not moved needs no further look.
_MACHINE_COUNTERS = "/proc/vmstat"
#: Bytes from which a limit of cgroup version 1 means "no limit".
_NO_LIMIT_BYTES = 1 << 60
#: Seconds in which the kernel's log follows its count.
_LOG_DELAY_SECONDS = 0.02


def _count(path: str) -> Optional[int]:
    """Return the number of kills in a file with a line ``oom_kill N``, or None without such a line."""
    counts = (line.split()[1] for line in lines_of(path) if line.startswith("oom_kill "))
    return next(map(int, counts), None)


def _cgroup_files() -> List[str]:
    """Return files that count the kills in the control group of the agent and its tasks."""
    files = []
    for _, controllers, path in (line.split(":", 2) for line in lines_of("/proc/self/cgroup")):
        if not controllers:  # version 2
            files.append(_seen_here("/sys/fs/cgroup", path, "memory.events"))
        elif "memory" in controllers.split(","):
            files.append(_seen_here("/sys/fs/cgroup/memory", path, "memory.oom_control"))
    return files


def _seen_here(mounted: str, path: str, name: str) -> str:
    """Return the path of a file of a group.

    It is at the root if ``/proc`` shows the path outside of this container.
    """
    file = f"{mounted}{path}/{name}"
    return file if os.path.exists(file) else f"{mounted}/{name}"


def _limit(path: str) -> str:
    """Return a text about the memory limit of the group whose kills ``path`` counts, if it has a limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = "".join(lines_of(os.path.join(os.path.dirname(path), name)))
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES:
            return f", its limit is {int(limit) >> 20} MiB"
    return ""


class OomWatch:
    """Compares the kernel's count and log of OOM kills with those at the start."""

    def __init__(self) -> None:
        self._log = KernelLog()
        self._groups = {path: _count(path) for path in _cgroup_files()}
        self._machine = _count(_MACHINE_COUNTERS)

    def evidence(self, pid: int) -> str:
        """Return the evidence that the OOM killer has ended a process, or an empty text without evidence."""
        machine = _count(_MACHINE_COUNTERS)
        if machine is not None and machine == self._machine:
            return ""
        return self._log.record_of(pid) or self._counted_here() or self._counted_anywhere(machine)

    def _counted_here(self) -> str:
        """Return a text about kills in our control group that are not of another process."""
        for path, before in self._groups.items():
            now = _count(path)
            if before is not None and now is not None and now > before:
                self._groups[path] = before + 1
                kills = f"the control group's out-of-memory kills went from {before} to {now}"
                return f"{kills}{_limit(path)} ({path})"
        return ""

    def _counted_anywhere(self, now: Optional[int]) -> str:
        """Return a text about kills on the whole machine, if neither log nor group can be read."""
        before = self._machine
        known = self._log.readable or any(count is not None for count in self._groups.values())
        if known or before is None or now is None or now <= before:
            return ""
        self._machine = before + 1
        return f"the machine's out-of-memory kills went from {before} to {now} during the job"


class KernelLog:
    """The kernel's log from now on, where it can be read and its pids are valid here (not in a container)."""

    def __init__(self) -> None:
        self._killed: Dict[int, str] = {}
        self._fd = -1
        with suppress(OSError):
            if os.readlink("/proc/self/ns/pid") == FIRST_PID_NAMESPACE:
                self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
                os.lseek(self._fd, 0, os.SEEK_END)
        self.readable = self._fd >= 0

    def record_of(self, pid: int) -> str:
        """Return the record of the kill of a process. This waits for it, but not for long."""
        until = time.monotonic() + _LOG_DELAY_SECONDS
        while self.readable:
            self._read()
            if pid in self._killed or time.monotonic() > until:
                break
            time.sleep(0.001)
        return self._killed.pop(pid, "")

    def _read(self) -> None:
        """Keep new records. A record is ``6,339,5140900,-;Memory cgroup ...: Killed process 7 (x) ...``."""
        while True:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # the kernel overwrote unread records: reading goes on with the next
                continue
            except OSError:  # BlockingIOError: no more records
                return
            found = re.search(rb"Killed process (\d+) \(", record)
            if found:
                text = record.partition(b";")[2].split(b"\n")[0].decode("utf-8", "replace")
                self._killed[int(found.group(1))] = f"kernel log: {text}"
