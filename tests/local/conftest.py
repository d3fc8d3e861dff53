"""What tests of the command on real processes get beside ``launch``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch
from tests.local.terminal import Terminal
from tests.seeing import Family


@pytest.fixture
def family(launch: Launch, nothing_left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    """The processes of this test's launches; ``stubs/family.py`` finds its folder in ``PIDS``."""
    folder = tmp_path / "pids"
    monkeypatch.setenv("PIDS", str(folder))
    return Family(nothing_left, folder)


@pytest.fixture
def terminal(launch: Launch) -> Iterator[Callable[..., Terminal]]:
    """``terminal("--workers", "2", "true")`` runs the command in a pseudo-terminal."""
    opened: list[Terminal] = []

    def open_terminal(*args: str, **settings: Any) -> Terminal:
        opened.append(Terminal(launch, *args, **settings))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()
