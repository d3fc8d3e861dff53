"""What functions do with TensorFlow in their nodes: servers, datasets, models; TensorBoard beside them."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import InputMode, TFCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]


def add_up(args: Any, ctx: Any) -> None:
    """A variable on the ps, to which the worker adds all rows; then a model of it."""
    from launcher import TFNode

    cluster, server = TFNode.start_cluster_server(ctx, 1)
    if ctx.job_name == "ps":
        server.join()
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.device(v1.train.replica_device_setter(cluster=cluster)):
        total = v1.get_variable("total", [], tf.float32, initializer=v1.zeros_initializer())
        row = v1.placeholder(tf.float32, [])
        add = v1.assign_add(total, row)
        with v1.Session(server.target) as session:
            session.run(v1.global_variables_initializer())
            feed = ctx.get_data_feed()
            while not feed.should_stop():
                for value in feed.next_batch(10):
                    session.run(add, {row: value})
            assert "/job:ps" in total.device
            Path(args, "total").write_text(str(session.run(total)))


def test_a_server_in_each_node(tmp_path: Path):
    with TFCluster.run(
        add_up, str(tmp_path), 2, 1, input_mode=InputMode.FEED, preload="tensorflow", quiet=True
    ) as cluster:
        cluster.train(range(101))
    assert float((tmp_path / "total").read_text()) == sum(range(101))


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
        until = time.monotonic() + 150
        while not answers(url):
            assert time.monotonic() < until
            time.sleep(0.1)
        cluster.train([([float(row), 1.0], 0.5) for row in range(100)])
    assert (tmp_path / "rows").read_text() == "100"
    assert Path(cluster.run_dir, "output", "worker-0", "model", "saved_model.pb").exists()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


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
    quiet: Any = {"env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "preload": "tensorflow", "quiet": True}
    with TFCluster.run(train, None, 2, input_mode=InputMode.FEED, **quiet) as cluster:
        cluster.train((images, labels), equal="pad", batch_size=100)
    output = Path(cluster.run_dir) / "output"
    seen = [json.loads((output / f"worker-{index}" / "seen.json").read_text()) for index in (0, 1)]
    assert [[rows for rows, _, _ in batches] for batches in seen] == [[100] * 11] * 2
    padding = 2_200 - len(labels)
    total = sum(sum_of for batches in seen for _, sum_of, _ in batches)
    assert total == int(labels.sum()) + padding * (len(labels) - 1)
    assert all(pixels == 100 * 28 * 28 for batches in seen for _, _, pixels in batches)
