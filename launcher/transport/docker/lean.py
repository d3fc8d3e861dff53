"""Imports the Docker SDK in half the time: without paramiko.

The SDK would use that for engines over ssh, which the `docker` command reaches here.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def fetch() -> None:
    """Import the SDK, unless it, or paramiko, is here already."""
    modules: dict[str, Any] = sys.modules
    if "docker" in modules or "paramiko" in modules:
        return
    modules["paramiko"] = None  # Python's way to say that there is none
    try:
        importlib.import_module("docker")
    finally:
        del modules["paramiko"]
