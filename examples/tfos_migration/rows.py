"""MNIST as rows, as a text file of it would give them: a list of 784 numbers, and the label."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mnist_dist"))

import data  # noqa: E402 - it lies beside this example


def mnist_rows(count: int) -> list[tuple[list[int], int]]:
    """Return the first ``count`` training images."""
    raw, _ = data.fetch()
    images = raw.train_images[:count].reshape(-1, 784).tolist()
    return list(zip(images, raw.train_labels[:count].tolist(), strict=True))
