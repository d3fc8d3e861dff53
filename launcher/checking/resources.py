"""What a host has: memory, disk, GPUs, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.checking.records import Finding, Severity, Sight
from launcher.text import counted, listed

if TYPE_CHECKING:
    from typing import Any

_GB = 1_000_000_000
#: Bytes below which a checkpoint or two will not fit.
_LITTLE_DISK = _GB
#: Importing TensorFlow alone takes 540 MB.
_LITTLE_MEMORY = _GB
#: Open files: a server of TensorFlow takes some for each of its peers, and input pipelines for each file.
_FEW_FILES = 1024
_FEW_PROCESSES = 1024
#: NCCL and data loaders of several processes put their buffers there.
_LITTLE_SHM = 256_000_000

_WHAT_FOR = {"home": "its home", "tmp": "its folder for temporary files", "workdir": "its working folder"}


def of_resources(sight: Sight) -> Iterator[Finding]:
    """All that is to be said of one host."""
    for which, folder in sight.facts["folders"].items():
        yield from _of_folder(sight, which, folder)
    yield from _of_memory(sight)
    yield from _of_limits(sight)
    yield from _of_gpus(sight)


def _of_folder(sight: Sight, which: str, folder: dict[str, Any]) -> Iterator[Finding]:
    """Full, not writable, or nearly full."""
    where = f"{_WHAT_FOR.get(which, which)} {folder['path']}"
    free = folder["free"]
    if folder["why"]:
        severity = Severity.WARNING if which == "home" else Severity.PROBLEM
        full = free is not None and free < _LITTLE_DISK / 1000
        severity = Severity.PROBLEM if full else severity
        advice = "make room there" if full else "mend it, or use another: `workdir:` in the hostfile"
        yield Finding(severity, "disk", (sight.name,), f"{where} can't be written: {folder['why']}", advice)
    elif free is not None and free < _LITTLE_DISK:
        seen = f"{where} has {free / 1e6:.0f} MB left"
        yield Finding(Severity.WARNING, "disk", (sight.name,), seen, "make room there: checkpoints need it")


def _of_memory(sight: Sight) -> Iterator[Finding]:
    available, load = sight.facts["available"], sight.facts["load"][0]
    if available is not None and available < _LITTLE_MEMORY:
        seen = f"{available / 1e6:.0f} MB of memory left; importing TensorFlow takes 540 MB a task"
        yield Finding(
            Severity.WARNING, "memory", (sight.name,), seen, "see who uses it: `ps aux --sort=-rss`"
        )
    if load > sight.facts["cpus"] + 1:
        seen = f"busy: a load of {load:.1f} on {counted(sight.facts['cpus'], 'CPU')}"
        yield Finding(
            Severity.NOTE, "load", (sight.name,), seen, "the slowest host sets the pace of training"
        )


def _of_limits(sight: Sight) -> Iterator[Finding]:
    files, processes = (sight.facts["limits"][name] for name in ("files", "processes"))
    advice = "raise it in /etc/security/limits.conf there"
    if files is not None and files < _FEW_FILES:
        seen = f"a program may open {counted(files, 'file')} (ulimit -n)"
        yield Finding(Severity.WARNING, "limits", (sight.name,), seen, advice)
    if processes is not None and processes < _FEW_PROCESSES:
        seen = f"its user may have {counted(processes, 'process', 'processes')} and threads (ulimit -u)"
        yield Finding(Severity.WARNING, "limits", (sight.name,), seen, advice)
    shm = sight.facts["shm"]
    if shm is not None and shm < _LITTLE_SHM and sight.facts["gpus"]["list"]:
        seen = f"/dev/shm holds {shm / 1e6:.0f} MB: too little for NCCL between GPUs"
        yield Finding(Severity.WARNING, "shm", (sight.name,), seen, "`mount -o remount,size=2G /dev/shm`")


def _of_gpus(sight: Sight) -> Iterator[Finding]:
    """What the hostfile promises against what ``nvidia-smi`` finds; and a TensorFlow that can't use it."""
    gpus, wanted = sight.facts["gpus"], sight.host.gpus or ()
    there: list[dict[str, str]] = gpus["list"]
    if gpus["state"] in ("failed", "slow"):
        said = str(gpus["said"]).splitlines() or ["it did not answer in time"]
        severity = Severity.PROBLEM if wanted else Severity.WARNING
        advice = "the driver is broken, or was replaced without a restart of the host"
        yield Finding(severity, "gpus", (sight.name,), f"nvidia-smi fails: {said[0]}", advice)
    elif absent := [gpu for gpu in wanted if not _is_there(gpu, there)]:
        those = f"{listed(absent)} {'is' if len(absent) == 1 else 'are'} not among the {len(there)} there"
        seen = f"the hostfile says {counted(len(wanted), 'GPU')}, and {those}"
        yield Finding(Severity.PROBLEM, "gpus", (sight.name,), seen, "correct `gpus:` in the hostfile")
    distribution = str(sight.facts["task_python"].get("distribution") or "")
    if there and distribution.endswith("-cpu"):
        seen = f"{distribution} can't use its {counted(len(there), 'GPU')}"
        yield Finding(
            Severity.WARNING, "gpus", (sight.name,), seen, "`pip install tensorflow[and-cuda]` there"
        )


def _is_there(gpu: str, there: Sequence[dict[str, str]]) -> bool:
    """An index, or the beginning of a UUID; parts of a GPU (MIG) are not listed, and are believed."""
    if gpu.startswith("MIG"):
        return True
    return any(
        gpu == found["index"] or (gpu.startswith("GPU-") and found["uuid"].startswith(gpu)) for found in there
    )
