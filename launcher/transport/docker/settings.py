"""What a container is to be like."""

from __future__ import annotations

from typing import NamedTuple

#: Labels of everything we make: whose it is, and whether that is over, is read from them.
JOB, OWNER, MACHINE, KEPT = (f"tf-launcher.{name}" for name in ("job", "owner", "machine", "kept"))

#: A variable of the launcher's environment: a container that was disconnected from the job's network can be
#: connected with the address it had (which engines grant only in networks whose range somebody has chosen).
FIXED_ADDRESSES = "TF_LAUNCHER_FIXED_ADDRESSES"


class Mount(NamedTuple):
    """A folder or file of the engine's machine, seen in the container."""

    source: str
    target: str
    read_only: bool = False


class Container(NamedTuple):
    """One host of the job, before it exists."""

    #: What its tasks' addresses begin with.
    host: str
    image: str
    #: The Python of the image that runs the agent: a path, or a name to look up along the image's PATH.
    python: str
    mounts: tuple[Mount, ...] = ()
    #: ``UID:GID`` or as the image knows them; empty: the image's own user.
    user: str = ""
    #: Limits: bytes, CPUs; ``None``: there is none.
    memory: int | None = None
    cpus: float | None = None
    #: Ids of the GPUs it sees, as ``nvidia-smi`` has them.
    gpus: tuple[str, ...] = ()
    #: Further settings, see `launcher.transport.docker.options`: name -> values.
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: A remark on the image's kind of machine, for when it does not start; empty: it fits.
    architecture: str = ""


class End(NamedTuple):
    """How a container ended: its exit code (128+n: killed by signal n; ``None``: nobody knows)."""

    code: int | None
    #: The kernel killed something in it for want of memory.
    out_of_memory: bool = False


def network_name(job: str) -> str:
    """What the network of a job is called at the engine."""
    return f"tf-launcher-{job}"


def container_name(job: str, host: str) -> str:
    """What the container of a host is called at the engine."""
    return f"{network_name(job)}-{host}"


def size(count: int) -> str:
    """Bytes as the user writes them: ``64 MiB``, ``1.5 GiB``."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{round(count / (1 << power), 1):g} {unit}"
    return f"{count} bytes"
