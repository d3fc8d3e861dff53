"""What functions do with TensorFlow in their nodes: servers, datasets, models; TensorBoard beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import InputMode, TFCluster
from tests.local.board import page_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]


def learn(args: Any, ctx: Any) -> None:
    """Rows as a dataset; a model of Keras, exported."""
    import tensorflow as tf

    from launcher import compat

    signature = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.float32))
    rows = 0
    for features, labels in ctx.get_dataset(signature, 16):
        assert features.shape[1:] == (2,)
        rows += int(labels.shape[0])
    Path(args, "rows").write_text(str(rows))
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    compat.export_saved_model(model, str(Path(ctx.output_dir, "model")), ctx.is_chief)


def test_a_dataset_a_model_and_tensorboard(tmp_path: Path):
    logs = tmp_path / "logs"
    logs.mkdir()
    with TFCluster.run(
        learn, str(tmp_path), 1, tensorboard=True, log_dir=str(logs), input_mode=InputMode.FEED, quiet=True
    ) as cluster:  # fmt: skip
        url = cluster.tensorboard_url()
        assert url is not None and f"TensorBoard: {url}" in repr(cluster)
        assert page_of(url, 150)
        cluster.train([([float(row), 1.0], 0.5) for row in range(100)])
    assert (tmp_path / "rows").read_text() == "100"
    assert Path(cluster.run_dir, "output", "worker-0", "model", "saved_model.pb").exists()


@pytest.mark.long
def test_functions_for_autograph(tmp_path: Path):
    """A ``tf.function`` that was called here; names that only annotations have."""
    (tmp_path / "program.py").write_text(
        """
from __future__ import annotations
from collections.abc import Sequence
import tensorflow as tf
from launcher import TFParallel

@tf.function
def halve(number: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    while number > 1.0:
        number = number / 2.0
    return number

def work(args, ctx):
    return float(halve(tf.constant(args)))

print("found", float(halve(tf.constant(3.0))), TFParallel.run(work, [5.0]))
"""
    )
    argv = [sys.executable, str(tmp_path / "program.py")]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    assert "found 0.75 [0.625]" in ended.stdout, ended.stderr
    assert "AutoGraph could not" not in ended.stdout + ended.stderr
