"""The transports: how ``launch`` starts agents on hosts, and talks to them.

A transport is a module, cheap to import, whose ``TRANSPORT`` is a `launcher.transports.machines.Transport`,
and a line in this table. docs/extending.md shows one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the modules of transports import this package
    from launcher.config.schema import Section
    from launcher.transports.machines import Transport

#: Name -> module. The first one is the default; of others that a command line asks for, the last one counts.
TRANSPORTS = {"ssh": "launcher.transports.ssh", "docker": "launcher.transports.docker"}


def transports() -> dict[str, Transport]:
    """All transports, by name."""
    return {name: importlib.import_module(module).TRANSPORT for name, module in TRANSPORTS.items()}


def sections() -> dict[str, Section]:
    """The keys of job files that transports read."""
    return {name: part for transport in transports().values() for name, part in transport.sections().items()}


def selected(settings: Mapping[str, Any]) -> str:
    """The name of the transport that is asked for.

    Args:
        settings: of each transport, by name; ``None``: it is not asked for.
    """
    return [name for name, found in settings.items() if found is not None][-1]
