"""fabric and paramiko are whole, and what they import for nothing is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SEEN = """
import sys
{before}
from launcher.transport.ssh import lean
{more}
lean.fetch()
wanted = "unittest", "unittest.mock", "asyncio", "email", "importlib.metadata"
here = [name for name in wanted if name in sys.modules]
import fabric, importlib, importlib.metadata, paramiko, unittest.mock
from invoke.vendor import yaml
print(here)
print(paramiko.__version__ == importlib.metadata.version("paramiko"))
print(yaml.safe_load("a: 1"), unittest.mock.Mock().anything is not None, fabric.Connection("nowhere").host)
print([finder for finder in sys.meta_path if "launcher" in getattr(finder, "__module__", "")])
"""


def seen(before: str = "", more: str = "") -> list[str]:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SEEN.format(before=before, more=more)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nothing_that_is_not_used_is_imported():
    assert seen() == ["[]", "True", "{'a': 1} True nowhere", "[]"]


def test_what_is_there_already_stays():
    there = seen("import unittest.mock, importlib.metadata")
    assert there[0] == "['unittest', 'unittest.mock', 'asyncio', 'email', 'importlib.metadata']"
    assert there[1:] == ["True", "{'a': 1} True nowhere", "[]"]


def test_paramiko_that_is_there_already():
    assert seen("import paramiko")[1:] == ["True", "{'a': 1} True nowhere", "[]"]


@pytest.mark.parametrize("kind", ["AttributeError", "ImportError"])
def test_libraries_that_want_more_are_imported_whole(kind: str):
    """As when a distribution is not installed as wheels are, or asks for more than a version."""
    refuse = f"def refuse(name): raise {kind}(name)\nlean._version = refuse"
    assert seen(more=refuse)[1:] == ["True", "{'a': 1} True nowhere", "[]"]
