"""MNIST inference: the driver feeds images, and workers say which digits they show.

Each worker loads the model that `mnist_fed.py` has saved, and works alone; there is no ps. A result comes for
each image, in the order of the images, whichever worker had it; even if a worker dies on the way.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import data
import numpy as np
from mnist_dist import positive, softmax_regression, start_tensorflow
from mnist_fed import TENSORFLOW, scaled

from launcher import InputMode, TFCluster


def parse_flags() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Say which digits images show.", allow_abbrev=False)
    parser.add_argument("--workers", type=positive, default=2, help="workers")
    parser.add_argument("--hosts", help="a hostfile, or host:slots,... (default: this machine)")
    parser.add_argument("--batch_size", type=positive, default=500, help="images at once")
    parser.add_argument("--data_dir", help="where MNIST is kept (see data.py)")
    parser.add_argument("--model_dir", default="mnist_model", help="where mnist_fed.py has put the model")
    parser.add_argument("--output", help="a file for the digits, one a line")
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="exit with 1 below this")
    flags = parser.parse_args()
    flags.model_dir = os.path.abspath(flags.model_dir)
    flags.learning_rate = 0.0  # nothing is learnt here
    if not os.path.isdir(flags.model_dir):
        parser.error(f"--model_dir: there is no {flags.model_dir}; mnist_fed.py makes it")
    return flags


def map_fun(args: argparse.Namespace, ctx: Any) -> None:
    """What every worker runs: a digit for each image that comes."""
    start_tensorflow()
    import tensorflow.compat.v1 as tf

    model = softmax_regression(args)
    digits = tf.argmax(model["logits"], 1)
    feed = ctx.get_data_feed(train_mode=False)
    with tf.Session() as session:
        tf.train.Saver().restore(session, tf.train.latest_checkpoint(args.model_dir))
        while not feed.should_stop():
            images = feed.next_batch(args.batch_size)
            if images:
                found = session.run(digits, {model["images"]: scaled(np.stack(images))})
                feed.batch_results(found.tolist())


def main() -> None:
    """Feed the test images, and compare what comes back with their labels."""
    args = parse_flags()
    try:
        raw, _ = data.fetch(args.data_dir)
    except data.DataError as error:
        sys.exit(f"error: {error}")
    with TFCluster.run(
        map_fun, args, args.workers, input_mode=InputMode.FEED, hosts=args.hosts, **TENSORFLOW
    ) as cluster:
        digits = list(cluster.inference(raw.test_images))
    accuracy = float(np.mean(np.array(digits) == raw.test_labels))
    print(f"{len(digits)} digits, accuracy {accuracy:.4f}")
    if args.output:
        with open(args.output, "w", encoding="ascii") as file:
            file.writelines(f"{digit}\n" for digit in digits)
    if accuracy < args.min_accuracy:
        sys.exit(f"error: the accuracy is below --min_accuracy={args.min_accuracy}")


if __name__ == "__main__":
    main()
