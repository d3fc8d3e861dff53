"""Imports the Docker SDK in half the time: without paramiko, which it would use for engines over ssh; those are
reached by the `docker` command here."""

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
