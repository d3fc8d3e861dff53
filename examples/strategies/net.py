"""A small network for MNIST, and MNIST as a file that TensorFlow reads by itself; for both strategies."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

_CLASSIC = Path(__file__).resolve().parents[1] / "mnist_dist"
if not (_CLASSIC / "data.py").exists():
    sys.exit(f"error: {_CLASSIC}/data.py is missing: copy examples/mnist_dist beside this folder")
sys.path.insert(0, str(_CLASSIC))

import data  # noqa: E402 - it lies beside the classic program

_PIXELS, _HIDDEN, _DIGITS = 784, 64, 10
#: Steps from line to line.
PRINT_STEPS = 20
#: A record: the label, then the image, a byte a pixel.
_RECORD = 1 + _PIXELS


class Net(tf.Module):
    """One hidden layer, trained by plain gradient descent.

    Args:
        aggregation: how what several replicas subtract from a variable becomes one; see `tf.Variable`.
    """

    def __init__(self, aggregation: tf.VariableAggregation = tf.VariableAggregation.NONE) -> None:
        super().__init__()
        start = tf.random.Generator.from_seed(1)
        how = {"aggregation": aggregation}
        self.inner = tf.Variable(start.normal((_PIXELS, _HIDDEN), stddev=0.05), **how)
        self.inner_bias = tf.Variable(tf.zeros(_HIDDEN), **how)
        self.outer = tf.Variable(start.normal((_HIDDEN, _DIGITS), stddev=0.1), **how)
        self.outer_bias = tf.Variable(tf.zeros(_DIGITS), **how)

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """float32 [n, 10] for float32 [n, 784]."""
        return tf.nn.relu(images @ self.inner + self.inner_bias) @ self.outer + self.outer_bias

    def learn(self, images: tf.Tensor, labels: tf.Tensor, rate: float) -> tf.Tensor:
        """One step down; gives the share of these images that it was right about before."""
        with tf.GradientTape() as tape:
            logits = self.logits(images)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights = [self.inner, self.inner_bias, self.outer, self.outer_bias]
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(rate * slope)
        return share_right(logits, labels)

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of these that it is right about."""
        return float(share_right(self.logits(tf.constant(images)), tf.constant(labels)))


def share_right(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The share of the labels that these logits name."""
    found = tf.argmax(logits, axis=1, output_type=tf.int32)
    return tf.reduce_mean(tf.cast(found == labels, tf.float32))


def write_records(folder: str) -> str:
    """The training images as a file of records, unless it is there; its path."""
    path = os.path.join(folder, "mnist.records")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        raw, _ = data.fetch()
        records = np.column_stack([raw.train_labels, raw.train_images.reshape(-1, _PIXELS)])
        handle, unfinished = tempfile.mkstemp(dir=folder)  # several tasks may be at it, on several machines
        with open(handle, "wb") as file:
            file.write(records.astype(np.uint8).tobytes())
        os.replace(unfinished, path)  # a reader sees all of it, or nothing
    return path


def batches(path: str, size: int, part: int, parts: int) -> tf.data.Dataset:
    """A part of the records, again and again: (float32 [size, 784], int32 [size])."""
    records = tf.data.FixedLengthRecordDataset(path, _RECORD).shard(parts, part)
    shuffled = records.shuffle(10_000, seed=part).repeat().batch(size, drop_remainder=True)
    return shuffled.map(_parsed).prefetch(2)


def _parsed(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    pixels = tf.io.decode_raw(records, tf.uint8, fixed_length=_RECORD)
    return tf.cast(pixels[:, 1:], tf.float32) / 255.0, tf.cast(pixels[:, 0], tf.int32)


def test_images() -> tuple[np.ndarray, np.ndarray]:
    """Images that are not trained with, and their labels."""
    mnist = data.load()
    return mnist.test_images, mnist.test_labels


def judge(accuracy: float, least: float) -> None:
    """Print the result, and fail if it is not good enough."""
    print(f"test accuracy: {accuracy:.4f}", flush=True)
    if accuracy < least:
        sys.exit(f"error: the accuracy is below --min_accuracy={least}")
