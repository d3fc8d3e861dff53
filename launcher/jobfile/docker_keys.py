"""What ``docker:`` of a job file says."""

from __future__ import annotations

from typing import NamedTuple


class DockerKeys(NamedTuple):
    """What ``docker:`` says. ``None``, an empty text or an empty tuple means "not said"."""

    image: str = ""
    #: As ``--mount`` takes them, unread.
    mounts: tuple[str, ...] = ()
    no_mount: bool = False
    read_only: bool = False
    memory: tuple[tuple[str, int], ...] = ()
    cpus: tuple[tuple[str, float], ...] = ()
    user: str | None = None
    pull: str | None = None
    #: For each task that is no ps and has no number of its own.
    gpus: int | None = None
    keep: bool = False
    #: Further settings: name -> values.
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: ``file:line`` of ``docker:``.
    source: str = ""
