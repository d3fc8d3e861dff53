"""The transports: how ``launch`` starts agents on hosts, and talks to them.

A transport is a module, cheap to import, whose ``TRANSPORT`` is a `launcher.backends.backend.Backend`,
and a line in this table. docs/extending.md shows one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher.common.errors import LaunchError
from launcher.config import table
from launcher.config.settings import FileSection, Group, Setting

if TYPE_CHECKING:  # the modules of transports import this package
    from launcher.backends.backend import Backend

#: Name -> module. The first one is the default.
BACKENDS = {
    "ssh": "launcher.backends.ssh",
    "docker": "launcher.backends.docker",
    "slurm": "launcher.backends.slurm",
    "kubernetes": "launcher.backends.kubernetes",
}
#: Entry points of installed packages: the name of a transport, and its module.
_ENTRY_POINT_GROUP = "launch.transports"


def backends() -> dict[str, Backend]:
    """All transports, by name."""
    return {name: importlib.import_module(module).TRANSPORT for name, module in BACKENDS.items()}


def find_installed() -> dict[str, Backend]:
    """Add the transports of installed packages, which takes time: for an option or key that is not known.

    Returns:
        The transports that are new.

    Raises:
        LaunchError: the module of one can't be imported.
    """
    from importlib import metadata  # noqa: PLC0415 - 18 ms, for installed backends only

    found = {}
    for entry in metadata.entry_points(group=_ENTRY_POINT_GROUP):
        if entry.name in BACKENDS:
            continue
        try:
            found[entry.name] = entry.load().TRANSPORT
        except (ImportError, AttributeError) as error:
            raise LaunchError(
                f"the transport {entry.name!r} ({entry.value}) can't be loaded: {error}"
            ) from error
        BACKENDS[entry.name] = entry.value
    return found


def sections() -> tuple[FileSection, ...]:
    """The keys of files that transports read."""
    return tuple(each.section for each in backends().values() if each.section is not None)


def groups() -> tuple[Group, ...]:
    """The options of a launch, as the help shows them."""
    own = (each.group for each in backends().values() if each.group is not None)
    return (*table.FIRST_GROUPS, *own, *table.LAST_GROUPS)


def rows() -> tuple[Setting[Any], ...]:
    """All settings of a launch: its options, and those that only sections of files have."""
    options = [row for group in groups() for row in group.rows]
    return (*dict.fromkeys([*options, *(row for section in sections() for row in section.rows)]),)


def default() -> str:
    """The name of the transport that is used if the user asks for none."""
    return next(iter(BACKENDS))


def asked_for(settings: Mapping[str, Any], implied: str = "") -> list[str]:
    """The names of the transports that the user asks for; if there is none, of the default one.

    Args:
        settings: of each transport, by name; ``None``: the user does not ask for it. Settings that are
            ``implied`` are used if the user asks for no other one: of several, the first.
        implied: the transport that the command itself asks for, which is used before others that are implied.
    """
    names = [name for name, found in settings.items() if found is not None and name != default()]
    asked = [name for name in names if not getattr(settings[name], "implied", False)]
    return asked or [name for name in names if name == implied] or names[:1] or [default()]
