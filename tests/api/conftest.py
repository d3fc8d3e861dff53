"""A home for the clusters of a test: their runs go there."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: str) -> Path:
    """Where the test's own home is."""
    path = tmp_path / "at-home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(path / "state"))
    return path
