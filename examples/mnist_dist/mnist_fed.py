"""Distributed MNIST, fed: the driver has the images and feeds them to the workers.

The model and the way of training are those of `mnist_dist.py`: variables on the ps tasks, each worker applies
its gradients as soon as it has them. But the tasks read nothing: this program starts them, feeds them, and is
told if one fails. The images go as arrays, with no Python object for a row.

``mnist_inference.py`` uses what is trained here.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import data
import numpy as np
from mnist_dist import positive, session_config, softmax_regression, start_tensorflow

from launcher import InputMode, TFCluster

TENSORFLOW = {"env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "preload": "tensorflow"}
#: Rows are tuples of an image and its label: their columns, in order, and what a batch calls them.
COLUMNS = {"0": "images", "1": "labels"}


def parse_flags() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train MNIST, fed by this program.", allow_abbrev=False)
    parser.add_argument("--ps", type=positive, default=1, help="parameter servers")
    parser.add_argument("--workers", type=positive, default=2, help="workers")
    parser.add_argument("--hosts", help="a hostfile, or host:slots,... (default: this machine)")
    parser.add_argument("--epochs", type=positive, default=2, help="how often all images are fed")
    parser.add_argument("--batch_size", type=positive, default=100, help="images a worker takes for one step")
    parser.add_argument("--learning_rate", type=float, default=0.5, help="of gradient descent")
    parser.add_argument("--data_dir", help="where MNIST is kept (see data.py)")
    parser.add_argument("--model_dir", default="mnist_model", help="where the model goes")
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="exit with 1 below this")
    return parser.parse_args()


def scaled(images: Any) -> Any:
    """Bytes [N, 28, 28] as the model wants them: float32 [N, 784], 0.0 to 1.0."""
    return np.asarray(images, np.float32).reshape(len(images), -1) / np.float32(255)


# --- in the tasks -------------------------------------------------------------------------------


def map_fun(args: argparse.Namespace, ctx: Any) -> None:
    """What every task runs."""
    start_tensorflow()
    cluster, server = ctx.start_cluster_server()
    if ctx.job_name == "ps":
        server.join()  # a ps serves until it is stopped
    else:
        train(args, ctx, cluster, server)


def train(args: argparse.Namespace, ctx: Any, cluster: Any, server: Any) -> None:
    """What a worker does: a step for each batch that comes, and the chief saves the model."""
    import tensorflow.compat.v1 as tf

    here, is_chief = f"/job:worker/task:{ctx.task_index}", ctx.task_index == 0
    with tf.device(tf.train.replica_device_setter(worker_device=here, cluster=cluster)):
        model = softmax_regression(args)
        train_op = model["optimizer"].minimize(model["loss"], global_step=model["global_step"])
        start, saver = tf.global_variables_initializer(), tf.train.Saver()
    supervisor = tf.train.Supervisor(
        is_chief=is_chief, init_op=start, global_step=model["global_step"], saver=None, summary_op=None,
        recovery_wait_secs=1,
    )  # fmt: skip
    with supervisor.managed_session(server.target, config=session_config(ctx.task_index)) as session:
        began, images = time.monotonic(), 0
        for batch in batches(ctx.get_data_feed(input_mapping=COLUMNS), args.batch_size):
            feed = {model["images"]: scaled(batch["images"]), model["labels"]: batch["labels"]}
            loss, _ = session.run([model["loss"], train_op], feed)
            images += len(batch["labels"])
        print(f"done: {images} images in {time.monotonic() - began:.1f} s, loss {loss:.4f}", flush=True)
        if is_chief:
            os.makedirs(args.model_dir, exist_ok=True)
            path = saver.save(session, os.path.join(args.model_dir, "model"))
            print(f"model: {path}", flush=True)


def batches(feed: Any, size: int) -> Any:
    """What comes on a feed, until it ends."""
    while not feed.should_stop():
        batch = feed.next_batch(size)
        if len(batch["labels"]):
            yield batch


# --- on the driver ------------------------------------------------------------------------------


def main() -> None:
    """Feed the training images, then test the model with the others."""
    args = parse_flags()
    args.model_dir = os.path.abspath(args.model_dir)
    try:
        raw, _ = data.fetch(args.data_dir)
    except data.DataError as error:
        sys.exit(f"error: {error}")
    tasks = args.ps + args.workers
    with TFCluster.run(
        map_fun, args, tasks, args.ps, input_mode=InputMode.FEED, hosts=args.hosts, **TENSORFLOW
    ) as cluster:
        cluster.train((raw.train_images, raw.train_labels.astype(np.int32)), num_epochs=args.epochs)


if __name__ == "__main__":
    main()
