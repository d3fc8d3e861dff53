"""The transports: how ``launch`` starts agents on hosts, and talks to them.

A transport is a module, cheap to import, in this table. docs/extending.md says what it exports.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from launcher.config.schema import Section

#: Name -> module. Of several that a command line selects the last one counts; the first one is the default.
TRANSPORTS = {"ssh": "launcher.transports.ssh", "docker": "launcher.transports.docker"}


def modules() -> list[ModuleType]:
    """The modules of all transports."""
    return [importlib.import_module(name) for name in TRANSPORTS.values()]


def sections() -> dict[str, Section]:
    """The keys of job files that transports read."""
    return {name: section for module in modules() for name, section in module.KEYS.items()}
