"""The settings of containers of Docker: options, and the section ``docker:`` of files."""

from __future__ import annotations

import os
from typing import Any

from launcher.backends.containers import CONTAINER_ROWS, CPUS, MEMORY, PULL, USER, keep_image
from launcher.config import values
from launcher.config.documents import ConfigNode, FaultList, quoted
from launcher.config.schema import several
from launcher.config.settings import EVERYWHERE, FILES, FileSection, Group, Need, Setting, switch

#: The options of ``docker run`` that launch sets itself.
_RESERVED = (
    "detach", "entrypoint", "interactive", "label", "log_driver", "name", "network", "rm", "sig_proxy",
)  # fmt: skip
DOCKER_CONTAINERS = Need("the option is about containers", "expected --docker IMAGE, too")


def _mount(text: str, folder: str) -> str:
    """Return a mount ``SRC[:DST][:ro]`` with the full path of its source.

    A source below ``~`` stays, and so does a mount without a source.

    Args:
        text: The mount.
        folder: The folder to which a relative source refers: that of the job file, or the current one.
    """
    return text if text[:1] in ("~", ":") else os.path.join(folder, text)


def _read_engine_options(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """Return the options of ``docker run`` in a mapping of a job file: each name with its values.

    Args:
        node: The node of the mapping.
        label: The words that name it in messages.
        faults: This function adds a fault for each option that launch sets itself, and for each wrong value.
    """
    if not isinstance(node.value, dict):
        # This adds the fault, and returns None as for every wrong value.
        faults.add_kind(node, label, "expected a mapping, as in shm_size: 1g")
        return None
    for name, value in node.value.items():
        if name.replace("-", "_") in _RESERVED:
            faults.add(value.key_line, f"option {quoted(name)}", "expected another: launch sets this one")
    read_values = several(values.one_line)  # It returns None for a wrong value, and adds a fault.
    return tuple((name, read_values(value, name, faults) or ()) for name, value in node.value.items())


#: The image of all roles without their own. It is empty if every role has one, and None without containers.
DOCKER: Setting[str | None] = Setting(
    "docker", values.image, "run each task in a container of this image", metavar="IMAGE", key="image",
    default=None, value_optional=True, given_in=EVERYWHERE, join=keep_image,
)  # fmt: skip
MOUNTS: Setting[tuple[str, ...]] = Setting(
    "mounts", str, "a further folder or file of containers; repeatable", metavar="SRC[:DST][:ro]",
    flags=("--mount",), default=(), repeatable=True, given_in=EVERYWHERE, path=_mount,
    join=lambda weaker, stronger: weaker + stronger, needs=DOCKER_CONTAINERS,
)  # fmt: skip
NO_MOUNT = Setting(
    "no_mount", switch, "do not mount the working folder", default=False, given_in=EVERYWHERE,
    needs=DOCKER_CONTAINERS,
)  # fmt: skip
READ_ONLY = Setting(
    "read_only", switch, "mount the working folder read-only", default=False, given_in=EVERYWHERE,
    needs=DOCKER_CONTAINERS,
)  # fmt: skip
KEEP = Setting(
    "keep", switch, "keep the containers; `launch clean` removes them", default=False, given_in=EVERYWHERE,
    needs=DOCKER_CONTAINERS,
)  # fmt: skip
ENGINE_OPTIONS: Setting[tuple[tuple[str, tuple[str, ...]], ...]] = Setting(
    "engine_options", str, "Other options of docker run, without dashes: shm_size: 1g.", key="options",
    default=(), given_in=FILES, read=_read_engine_options,
)  # fmt: skip

GROUP = Group("containers", (DOCKER, MOUNTS, NO_MOUNT, READ_ONLY, MEMORY, CPUS, USER, PULL, KEEP))
SECTION = FileSection(
    "docker", "An image, or a mapping: each task runs in a container.",
    head=DOCKER, rows=(DOCKER, *CONTAINER_ROWS, MOUNTS, NO_MOUNT, READ_ONLY, KEEP, ENGINE_OPTIONS),
    expected="expected an image, or a mapping with image:", short="image",
)  # fmt: skip
