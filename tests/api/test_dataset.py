"""``ctx.get_dataset`` over a real feed, with real TensorFlow in the nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import InputMode, TFCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]


def train(args: Any, ctx: Any) -> None:
    """Take batches of images and labels as a dataset, and write down what came."""
    import tensorflow as tf

    signature = (tf.TensorSpec([28, 28], tf.uint8), tf.TensorSpec([], tf.int64))
    seen = [
        (images.shape[0], int(tf.reduce_sum(labels)), int(tf.reduce_sum(tf.cast(images, tf.int64))))
        for images, labels in ctx.get_dataset(signature, 100).prefetch(2)
    ]
    Path(ctx.output_dir, "seen.json").write_text(json.dumps(seen))


def test_batches_of_a_dataset_equal_on_all_workers():
    labels = np.arange(2_050)
    images = np.ones((len(labels), 28, 28), np.uint8)
    with TFCluster.run(
        train, None, 2, input_mode=InputMode.FEED, env={"TF_CPP_MIN_LOG_LEVEL": "2"}, quiet=True
    ) as cluster:
        cluster.train((images, labels), equal="pad", batch_size=100)
    output = Path(cluster.run_dir) / "output"
    seen = [json.loads((output / f"worker-{index}" / "seen.json").read_text()) for index in (0, 1)]
    assert [[rows for rows, _, _ in batches] for batches in seen] == [[100] * 11] * 2
    padding = 2_200 - len(labels)
    total = sum(sum_of for batches in seen for _, sum_of, _ in batches)
    assert total == int(labels.sum()) + padding * (len(labels) - 1)
    assert all(pixels == 100 * 28 * 28 for batches in seen for _, _, pixels in batches)
