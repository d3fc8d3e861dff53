"""Wide and deep on the Titanic: CSV, sharded TFRecords, training in step, inference by several processes.

1. The driver writes the list of people as TFRecord shards; the last of them are kept for testing.
2. A chief and workers train under `MultiWorkerMirroredStrategy`; each reads its share of the shards. The
   batch of a step is ``--batch_size`` for each of them. The chief keeps the SavedModel and its events.
3. Instances of their own score the test shards with the SavedModel, and keep what they predict.

All of this is below ``--folder``, on this machine, on HDFS or in any other store: ``--folder hdfs://nn/people``.

Keras 3 can't ``fit`` under this strategy; a loop of one's own works, and is short.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
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
    parser.add_argument(
        "--folder", default="wide_deep_run", help="a folder, or the URL of one, for shards, model and events"
    )
    parser.add_argument(
        "--log_dir",
        type=os.path.abspath,
        help="run TensorBoard on events in this folder of all hosts",
    )
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="exit with 1 below this")
    parser.add_argument("options", nargs="*", help="further options of launch, after --")
    args = parser.parse_args()
    if "://" not in args.folder:
        args.folder = Path(args.folder).absolute().as_uri()
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
    batches = strategy.distribute_datasets_from_function(lambda _: people(args, ctx))
    # What is in ctx.output_dir is copied to the folder at the end.
    log_dir = args.log_dir or os.path.join(ctx.output_dir, "events")
    events = tf.summary.create_file_writer(log_dir) if ctx.is_chief else tf.summary.create_noop_writer()
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
    compat.export_saved_model(net, os.path.join(ctx.output_dir, "model"), ctx.is_chief)


def people(args: argparse.Namespace, ctx: Any) -> Any:
    """The records of one node, again and again, in batches."""
    records = ctx.tf_dataset(f"{args.folder}/shards/train-*").shuffle(4096, seed=1).repeat()
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


def score(args: argparse.Namespace, ctx: Any) -> tuple[int, int]:
    """What an instance of the inference runs: how many people it was right about, and how many there are."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        files, path = fsspec.url_to_fs(f"{args.folder}/chief-0/model")
        files.get(path, f"{folder}/model", recursive=True)
        saved = tf.saved_model.load(f"{folder}/model")
    right = count = 0
    with open(os.path.join(ctx.output_dir, "survives.txt"), "w") as found:
        for inputs, labels in ctx.tf_dataset(f"{args.folder}/shards/test-*").batch(64).map(model.parse):
            survives = tf.squeeze(saved.serve(inputs), 1) > 0
            right += int(tf.reduce_sum(tf.cast(survives == (labels > 0.5), tf.int32)))
            count += int(labels.shape[0])
            found.writelines(f"{int(each)}\n" for each in survives)
    return right, count


# --- on the driver ------------------------------------------------------------------------------


def write_shards(folder: str) -> int:
    """Write the list of people as TFRecord shards, for training and for testing: how many records train."""
    import tensorflow as tf

    everybody = titanic.passengers()
    names = [f"train-{n}" for n in range(TRAIN_SHARDS)] + [f"test-{n}" for n in range(TEST_SHARDS)]
    with tempfile.TemporaryDirectory() as here:
        for n, name in enumerate(names):
            with tf.io.TFRecordWriter(f"{here}/{name}.tfrecord") as writer:
                for person in everybody[n :: len(names)]:
                    writer.write(model.example_of(person))
        files, path = fsspec.url_to_fs(folder)
        files.put(f"{here}/", f"{path}/", recursive=True)
    return sum(len(everybody[n :: len(names)]) for n in range(TRAIN_SHARDS))


def main() -> None:
    """Prepare, train, score."""
    args = parse_flags()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        args.records = write_shards(f"{args.folder}/shards")
    except titanic.DataError as error:
        sys.exit(f"error: {error}")
    print(f"{args.records} records in {TRAIN_SHARDS} shards to train with")

    where = {"hosts": args.hosts, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "preload": "tensorflow"}
    keep = [*args.options, "--output-to", args.folder]
    board = {"tensorboard": bool(args.log_dir), "log_dir": args.log_dir}
    nodes = 1 + args.workers
    with TFCluster.run(main_fun, args, nodes, master_node="chief", options=keep, **board, **where) as cluster:
        if args.log_dir:
            print(f"TensorBoard: {cluster.tensorboard_url()}")

    keep = [*args.options, "--output-to", f"{args.folder}/predictions"]
    results = TFParallel.run(score, [args] * TEST_SHARDS, options=keep, **where)
    for right, count in results:
        print(f"right about {right} of {count}")
    accuracy = sum(right for right, _ in results) / sum(count for _, count in results)
    print(f"test accuracy: {accuracy:.4f}")
    if accuracy < args.min_accuracy:
        sys.exit(f"error: the accuracy is below --min_accuracy={args.min_accuracy}")


if __name__ == "__main__":
    main()
