"""Reads the tables of data beside our modules: what other programs print and accept, which changes with them.

Nothing that travels to hosts may use it: they have Python 3.8, which has no reader of TOML.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def read_table(name: str) -> dict[str, Any]:
    """Read a TOML file of this package. The first call takes ten milliseconds: read only what is needed now.

    Args:
        name: Its path in the package, as ``output/hints.toml``.
    """
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return load_toml(file.read())


def load_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Raises:
        ValueError: It is not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - 3 ms, where no table is read
    else:
        import tomli as tomllib  # noqa: PLC0415 - the same

    return tomllib.loads(text)
