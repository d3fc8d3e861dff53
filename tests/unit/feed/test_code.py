"""Functions that travel as code: with all that a compiler of their source needs."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest

from launcher.feed.remote import code

MODULE = """
import threading
from fractions import Fraction
from typing import Any, List


class Row:
    lock: "Row"

    def joined(self, other: "Row") -> "List[Row]":
        return [self, other]


class Held:
    lock = threading.Lock()


class Unused:
    pass


def decorate(function):
    return function


@decorate
def outer(first: Row, second: "Fraction | Held", *rest: List[Any]) -> threading.Thread:
    def inner(third: 'Any' = 1) -> Decimal:
        return third

    return inner
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_names_that_only_annotations_use(tmp_path: Path, future: str, monkeypatch: pytest.MonkeyPatch):
    """AutoGraph compiles the source, so they have to exist; what cannot be pickled stays behind."""
    name = f"annotated{len(future)}"
    (tmp_path / f"{name}.py").write_text(
        future + MODULE.replace(" -> Decimal", "" if not future else " -> Decimal")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = importlib.import_module(name)
    with code.by_value():
        loaded = pickle.loads(code.dumps(module.outer))
    assert {"Row", "Fraction", "List", "threading", "Any"} <= loaded.__globals__.keys()
    assert not {"Held", "Unused", "Decimal"} & loaded.__globals__.keys()
    row = loaded.__globals__["Row"]()
    assert row.joined(row) == [row, row] and "List" in row.joined.__globals__
