"""Reads TOML, in particular the tables of data that lie beside the modules of this package.

Such a table lists what other programs print or accept, so it changes when they do. Modules that travel to
hosts must not use this one: Python 3.8 has no reader of TOML.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def read_table(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this package.

    The first call takes ten milliseconds, so call this only when the table is needed.

    Args:
        name: The path of the file in the package, such as ``output/hints.toml``.
    """
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return load_toml(file.read())


def load_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Raises:
        ValueError: The text is not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - takes 3 ms, and most commands read no table
    else:
        import tomli as tomllib  # noqa: PLC0415 - most commands read no table

    return tomllib.loads(text)
