"""Settings of containers wherever they run, in Docker or in Kubernetes."""

from __future__ import annotations

from typing import TypeVar

from launcher.config import values
from launcher.config.settings import COMMAND_LINE, FILES, Need, Setting

T = TypeVar("T")
RoleValues = tuple[tuple[str, T], ...]

#: When an image is pulled.
PULL_CHOICES = ("missing", "always", "never")
#: A launch whose tasks run in containers.
ANY_CONTAINERS = Need("the option is about containers", "expected --docker IMAGE or --kubernetes IMAGE, too")
#: The option, and a key below ``docker:`` and ``kubernetes:``.
_ENGINES = COMMAND_LINE | FILES


def _join_limits(weaker: RoleValues[T], stronger: RoleValues[T]) -> RoleValues[T]:
    """Add limits of roles; one for every role replaces all of the weaker level."""
    return stronger if any(not role for role, _ in stronger) else weaker + stronger


def keep_image(weaker: str | None, stronger: str | None) -> str | None:
    """Keep the image of the weaker level if the stronger one asks for containers without an image."""
    return stronger or weaker


MEMORY: Setting[RoleValues[int]] = Setting(
    "memory", values.memory, "limit of each container: 512m, 2g; repeatable", metavar="[ROLE=]SIZE",
    default=(), by_role=True, given_in=_ENGINES, join=_join_limits, needs=ANY_CONTAINERS,
)  # fmt: skip
CPUS: Setting[RoleValues[float]] = Setting(
    "cpus", values.cpus, "limit of each container: 1.5; repeatable", metavar="[ROLE=]N", default=(),
    by_role=True, given_in=_ENGINES, join=_join_limits, needs=ANY_CONTAINERS,
)  # fmt: skip
USER: Setting[str | None] = Setting(
    "user", values.one_line, "user of the tasks (default: you)", metavar="UID[:GID]", default=None,
    given_in=_ENGINES, needs=ANY_CONTAINERS,
)  # fmt: skip
PULL = Setting(
    "pull", values.choice(*PULL_CHOICES), "when to pull the image (default: missing)", choices=PULL_CHOICES,
    default="missing", given_in=_ENGINES, needs=ANY_CONTAINERS,
)  # fmt: skip
CONTAINER_GPUS: Setting[int | None] = Setting(
    "container_gpus", values.whole(0, values.MAX_GPUS),
    "GPUs for each task of a role without its own number (ps tasks get none)", key="gpus", default=None,
    given_in=FILES,
)  # fmt: skip
CONTAINER_ROWS = (MEMORY, CPUS, USER, PULL, CONTAINER_GPUS)
