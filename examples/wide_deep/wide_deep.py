"""Wide and deep on the Titanic: CSV, sharded TFRecords, training in step, inference by several processes.

1. The driver writes the list of people as TFRecord shards; the last of them are kept for testing.
2. A chief and workers train under `MultiWorkerMirroredStrategy`; each reads its own shards. The batch of a
   step is ``--batch_size`` for each of them. Only the chief writes events for TensorBoard and the SavedModel.
3. Each test shard is scored by an instance of its own, some at a time, with the SavedModel.

Keras 3 can't ``fit`` under this strategy; a loop of one's own works, and is short.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import model

from launcher import TFCluster, TFParallel, compat

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import titanic  # noqa: E402 - it lies beside the examples

TRAIN_SHARDS, TEST_SHARDS = 6, 2


def parse_flags() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train a wide and deep model.", allow_abbrev=False)
    parser.add_argument("--workers", type=int, default=1, help="workers beside the chief")
    parser.add_argument("--hosts", help="a hostfile, or host:slots,... (default: this machine)")
    parser.add_argument("--epochs", type=int, default=30, help="how often all records are read")
    parser.add_argument("--batch_size", type=int, default=32, help="records of one node in one step")
    parser.add_argument(
        "--learning_rate", type=float, default=0.003, help="of one node; scaled by their number"
    )
    parser.add_argument("--folder", default="wide_deep_run", help="for shards, events and the model")
    parser.add_argument("--tensorboard", action="store_true", help="run TensorBoard while it trains")
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="exit with 1 below this")
    args = parser.parse_args()
    args.folder = os.path.abspath(args.folder)
    return args


# --- in the tasks -------------------------------------------------------------------------------


def main_fun(args: argparse.Namespace, ctx: Any) -> None:
    """What chief and workers run."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    nodes = strategy.num_replicas_in_sync
    with strategy.scope():
        net = model.wide_and_deep()
        optimizer = tf.keras.optimizers.Adam(args.learning_rate * nodes)
        optimizer.build(net.trainable_variables)
    batches = strategy.distribute_datasets_from_function(lambda where: shards(args, where))
    events = tf.summary.create_file_writer(args.log_dir) if ctx.is_chief else tf.summary.create_noop_writer()
    step = tf.function(partial(in_step, strategy, net, optimizer))
    if ctx.is_chief:
        print(f"{nodes} nodes, batches of {nodes} x {args.batch_size}", flush=True)
    steps = args.records // (nodes * args.batch_size)
    iterator = iter(batches)
    with events.as_default():
        for epoch in range(args.epochs):
            loss = sum(float(step(next(iterator))) for _ in range(steps)) / steps
            tf.summary.scalar("loss", loss, step=epoch)
            if ctx.is_chief and (epoch % 10 == 0 or epoch == args.epochs - 1):
                print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)
    compat.export_saved_model(net, args.model_dir, ctx.is_chief)


def shards(args: argparse.Namespace, where: Any) -> Any:
    """The records of one node, again and again, in batches."""
    import tensorflow as tf

    mine = args.train_shards[where.input_pipeline_id :: where.num_input_pipelines]
    records = tf.data.TFRecordDataset(mine).shuffle(4096, seed=where.input_pipeline_id).repeat()
    return records.batch(args.batch_size).map(model.parse).prefetch(2)


def in_step(strategy, net, optimizer, batch):
    """One step of all nodes; gives their mean loss."""
    import tensorflow as tf

    def step(inputs, labels):
        with tf.GradientTape() as tape:
            logits = tf.squeeze(net(inputs, training=True), 1)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
            share = loss / strategy.num_replicas_in_sync
        optimizer.apply(tape.gradient(share, net.trainable_variables), net.trainable_variables)
        return loss

    return strategy.reduce("MEAN", strategy.run(step, batch), axis=None)


def score(args: dict[str, str], ctx: Any) -> dict[str, Any]:
    """What an instance of the inference runs: the people of one shard, and how many it was right about."""
    import tensorflow as tf

    saved = tf.saved_model.load(args["model_dir"])
    right = people = 0
    for inputs, labels in tf.data.TFRecordDataset([args["shard"]]).batch(64).map(model.parse):
        survives = tf.squeeze(saved.serve(inputs), 1) > 0
        right += int(tf.reduce_sum(tf.cast(survives == (labels > 0.5), tf.int32)))
        people += int(labels.shape[0])
    return {"shard": args["shard"], "people": people, "right": right}


# --- on the driver ------------------------------------------------------------------------------


def write_shards(folder: str) -> tuple[list[str], list[str], int]:
    """The list of people as TFRecord shards: for training, for testing, and how many records train."""
    import tensorflow as tf

    os.makedirs(folder, exist_ok=True)
    people = titanic.passengers()
    count = TRAIN_SHARDS + TEST_SHARDS
    paths = [os.path.join(folder, f"people-{n:02}-of-{count:02}.tfrecord") for n in range(count)]
    for n, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for person in people[n::count]:
                writer.write(model.example_of(person))
    records = sum(len(people[n::count]) for n in range(TRAIN_SHARDS))
    return paths[:TRAIN_SHARDS], paths[TRAIN_SHARDS:], records


def main() -> None:
    """Prepare, train, score."""
    args = parse_flags()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    args.model_dir, args.log_dir = (os.path.join(args.folder, name) for name in ("model", "events"))
    try:
        args.train_shards, test_shards, args.records = write_shards(os.path.join(args.folder, "shards"))
    except titanic.DataError as error:
        sys.exit(f"error: {error}")
    print(f"{args.records} records in {len(args.train_shards)} shards to train with")

    where = {"hosts": args.hosts, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "preload": "tensorflow"}
    nodes = 1 + args.workers
    board = {"tensorboard": args.tensorboard, "log_dir": args.log_dir}
    with TFCluster.run(main_fun, args, nodes, master_node="chief", **board, **where) as cluster:
        if args.tensorboard:
            print(f"TensorBoard: {cluster.tensorboard_url()}")

    shards = [{"model_dir": args.model_dir, "shard": path} for path in test_shards]
    results = TFParallel.run(score, shards, **where)
    for found in results:
        print(f"{os.path.basename(found['shard'])}: right about {found['right']} of {found['people']}")
    accuracy = sum(found["right"] for found in results) / sum(found["people"] for found in results)
    print(f"test accuracy: {accuracy:.4f}")
    if accuracy < args.min_accuracy:
        sys.exit(f"error: the accuracy is below --min_accuracy={args.min_accuracy}")


if __name__ == "__main__":
    main()
