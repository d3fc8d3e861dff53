"""The parts of the click-through example that need no TensorFlow."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def ctr() -> Any:
    """The module of the example."""
    path = Path(__file__).resolve().parents[3] / "examples" / "ctr_embedding" / "ctr.py"
    spec = importlib.util.spec_from_file_location("ctr_of_the_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_are_filled_up_to_the_longest(ctr: Any):
    ids, labels = ctr.batch_of(["1\ta=1 b=2 c=3", "0\ta=1", "1\t"], buckets=1000)
    assert labels.tolist() == [1, 0, 1]
    assert ids.shape == (3, 3)
    assert ids[0, 0] == ids[1, 0]
    assert ids[1, 1:].tolist() == [0, 0] and ids[2].tolist() == [0, 0, 0]
    assert ids[0].min() >= 1
    assert ids.max() <= 999


def test_the_area_under_the_curve(ctr: Any):
    assert ctr.auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])) == 0.75
    assert ctr.auc(np.array([0, 1]), np.array([0.5, 0.5])) == 0.5
    assert ctr.auc(np.array([1, 0]), np.array([0.1, 0.9])) == 0.0


def test_zeros_and_unknown_values_are_left_out(ctr: Any):
    person = {
        "gender": "male", "class": "deck crew", "embarked": "Belfast", "age": "", "fare": "0",
        "sibsp": "0", "parch": "2", "survived": "1",
    }  # fmt: skip
    assert ctr.line_of(person) == (
        "1\tgender=male class=deck_crew embarked=Belfast parch=2 gender+class=male+deck_crew"
    )
