"""What an agent reports about its host: when it is ready, and its GPUs later.

==============  =================================================================
``hostname``    as the kernel has it
``addresses``   IP addresses of its interfaces, loopback left out
``cpus``        how many CPUs the agent may use
``memory``      bytes of main memory
``python``      version of the Python that runs the agent, ``3.11.7``
``executable``  that Python's path
``user``        numeric user id
==============  =================================================================

All of it is read from the kernel at once. ``nvidia-smi`` may take seconds: its answer comes as ``HostGpus``.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Tuple

_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader")
#: Seconds ``nvidia-smi`` may take: it loads the driver if nothing else has.
GPU_SECONDS = 15.0


def host_facts() -> Dict[str, Any]:
    """The table above, as a dict."""
    return {
        "hostname": os.uname().nodename,
        "addresses": _ipv4_addresses() + _ipv6_addresses(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "user": os.getuid(),
    }


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _ipv4_addresses() -> List[str]:
    """Local addresses in the kernel's routing table: ``|-- 10.0.0.7`` above ``/32 host LOCAL``."""
    found: List[str] = []
    candidate = ""
    for line in _lines("/proc/net/fib_trie"):
        word = line.strip()
        if word.startswith("|--"):
            candidate = word[4:]
        elif word == "/32 host LOCAL" and not candidate.startswith("127.") and candidate not in found:
            found.append(candidate)
    return found


def _ipv6_addresses() -> List[str]:
    """From ``/proc/net/if_inet6``: 32 hex digits, index, prefix, scope, flags, name; link-local left out."""
    found: List[str] = []
    for line in _lines("/proc/net/if_inet6"):
        digits, _, _, scope = line.split()[:4]
        if scope == "00":  # global
            found.append(":".join(digits[start : start + 4] for start in range(0, 32, 4)))
    return found


def ask_for_gpus() -> None:
    """In a child: become ``nvidia-smi``, if this host has it."""
    try:
        os.execvp(_NVIDIA_SMI[0], _NVIDIA_SMI)
    except OSError:
        return


def read_gpus(answer: bytes) -> Tuple[str, ...]:
    """What ``nvidia-smi`` printed, a line a GPU."""
    lines = answer.decode("utf-8", "replace").splitlines()
    return tuple(line.strip() for line in lines if line[:1].isdigit())
