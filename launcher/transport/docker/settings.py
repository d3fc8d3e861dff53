"""What a container is to be like."""

from __future__ import annotations

from launcher.model.records import NamedTuple

#: Labels of everything we make: whose it is, and whether that is over, is read from them.
JOB, OWNER, MACHINE, KEPT = (f"tf-launcher.{name}" for name in ("job", "owner", "machine", "kept"))


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


def size(count: int) -> str:
    """Bytes as the user writes them: ``64 MiB``, ``1.5 GiB``."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{round(count / (1 << power), 1):g} {unit}"
    return f"{count} bytes"
