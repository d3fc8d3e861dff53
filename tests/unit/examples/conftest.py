"""The modules of the MNIST example, fresh for each test, and a few images that they take for the real thing.

No network, no TensorFlow.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.unit.examples.mnist_samples import FOLDER, packed


def fresh(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the module without patches; the other modules of the example find it by its name."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def idx(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`idx.py`."""
    return fresh("idx", monkeypatch)


@pytest.fixture
def sources(idx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`sources.py`."""
    return fresh("sources", monkeypatch)


@pytest.fixture
def data(sources: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`data.py`, which can reach no source."""
    monkeypatch.setattr(sources, "in_order", list)
    return fresh("data", monkeypatch)


@pytest.fixture
def small(idx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seven and three images with labels, known to the modules as the real thing."""
    random = np.random.RandomState(1)
    raw = idx.Raw(
        random.randint(0, 256, (7, 28, 28)).astype(np.uint8),
        random.randint(0, 10, 7).astype(np.uint8),
        random.randint(0, 256, (3, 28, 28)).astype(np.uint8),
        random.randint(0, 10, 3).astype(np.uint8),
    )
    for field, array in raw._asdict().items():
        content = idx.idx_header(array) + array.tobytes()
        original = idx.Published(
            field, hashlib.sha256(packed(content)).hexdigest(), hashlib.sha256(content).hexdigest()
        )
        monkeypatch.setitem(idx.ORIGINALS, field, original)
    return raw
