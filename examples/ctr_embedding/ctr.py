"""Click-through rate, the classic: hashed text features, an embedding spread over the ps, rows fed as text.

Each row is a line of a log, ``LABEL<TAB>name=value name=value ...``, with as many features as are known. A
worker hashes the features, fills the rows of a batch up to the longest, looks up a vector for each feature
and learns whether there was a click. The table of vectors is the large part of such a model:
`min_max_variable_partitioner` cuts it into slices, one for each ps.

Then other workers load the model and score lines that were kept apart. Lines, model and scores may be on this
machine, on HDFS, or in any other store: ``--data 'hdfs://nn/logs/*.txt' --output hdfs://nn/ctr``.

A log of clicks is not to be had everywhere, so by default the list of the Titanic's people is the log, and a
click is a person that survived.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec

from launcher import InputMode, TextFiles, TFCluster

TENSORFLOW = {"env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "preload": "tensorflow"}
#: Of one slice of the table, in bytes: a table that is smaller is not worth a second ps.
SMALLEST_SLICE = 64 << 10


def parse_flags() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train a click-through model.", allow_abbrev=False)
    parser.add_argument(
        "--data", nargs="+", help="paths, URLs or patterns of lines to train with (default: Titanic)"
    )
    parser.add_argument("--test", nargs="+", help="the same of lines to test with")
    parser.add_argument(
        "--output", default="ctr_run", help="a new folder, or the URL of one, for the model and the scores"
    )
    parser.add_argument("--ps", type=int, default=2, help="parameter servers")
    parser.add_argument("--workers", type=int, default=2, help="workers")
    parser.add_argument("--hosts", help="a hostfile, or host:slots,... (default: this machine)")
    parser.add_argument("--epochs", type=int, default=20, help="how often the lines are fed")
    parser.add_argument("--batch_size", type=int, default=64, help="lines of one step of a worker")
    parser.add_argument("--buckets", type=int, default=20_000, help="rows of the table")
    parser.add_argument("--dims", type=int, default=16, help="numbers of a vector")
    parser.add_argument("--learning_rate", type=float, default=0.05, help="of Adagrad")
    parser.add_argument("--min_auc", type=float, default=0.0, help="fail below this")
    parser.add_argument("options", nargs="*", help="further options of launch, after --")
    flags = parser.parse_args()
    if "://" not in flags.output:
        flags.output = Path(flags.output).absolute().as_uri()
    if bool(flags.data) != bool(flags.test):
        parser.error("--data and --test go together")
    if find_spec("mmh3") is None and not flags.hosts:
        parser.error("the features are hashed by mmh3, which is not installed: pip install mmh3")
    return flags


# --- in the tasks -------------------------------------------------------------------------------


def hashed(features: str, buckets: int) -> list[int]:
    """The rows of the table for the features of a line; row 0 is for what is not there."""
    import mmh3

    return [mmh3.hash(feature, signed=False) % (buckets - 1) + 1 for feature in features.split()]


def batch_of(lines: list[str], buckets: int) -> tuple[Any, Any]:
    """Lines as two arrays: numbers of features, filled up with 0 to the longest line, and labels."""
    import numpy as np

    parts = [line.split("\t", 1) for line in lines]
    rows = [hashed(features, buckets) for _, features in parts]
    ids = np.zeros((len(rows), max([1, *map(len, rows)])), np.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return ids, np.array([float(label) for label, _ in parts], np.float32)


def click_model(args: argparse.Namespace) -> dict[str, Any]:
    """The static graph. Where its variables go is up to the `tf.device` around the call."""
    import tensorflow.compat.v1 as tf

    ids = tf.placeholder(tf.int32, [None, None], name="ids")
    labels = tf.placeholder(tf.float32, [None], name="labels")
    slices = tf.min_max_variable_partitioner(max_partitions=args.ps, min_slice_size=SMALLEST_SLICE)
    random = tf.random_normal_initializer(stddev=0.05, seed=1)
    table = tf.get_variable("table", [args.buckets, args.dims], initializer=random, partitioner=slices)
    there = tf.expand_dims(tf.cast(ids > 0, tf.float32), 2)
    vectors = tf.nn.embedding_lookup(table, ids, partition_strategy="div") * there
    mean = tf.reduce_sum(vectors, 1) / tf.maximum(tf.reduce_sum(there, 1), 1.0)
    hidden = tf.nn.relu(layer(mean, args.dims, 32, "hidden"))
    logits = tf.squeeze(layer(hidden, 32, 1, "click"), 1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdagradOptimizer(args.learning_rate).minimize(loss, global_step=step)
    return {
        "ids": ids, "labels": labels, "score": tf.sigmoid(logits), "loss": loss, "train": train, "step": step,
        "slices": [f"{part.shape.as_list()} on {part.device}" for part in table],
    }  # fmt: skip


def layer(values: Any, inputs: int, outputs: int, name: str) -> Any:
    """One layer, without what comes after it."""
    import tensorflow.compat.v1 as tf

    random = tf.glorot_uniform_initializer(seed=2)
    weights = tf.get_variable(f"{name}/weights", [inputs, outputs], initializer=random)
    return tf.matmul(values, weights) + tf.get_variable(
        f"{name}/bias", [outputs], initializer=tf.zeros_initializer()
    )


def auc(labels: Any, scores: Any) -> float:
    """How often a click scores higher than no click: the area under the ROC curve."""
    import numpy as np

    labels, scores = np.array(labels), np.array(scores)
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    for score in np.unique(scores):  # those that score the same share their ranks
        ranks[scores == score] = ranks[scores == score].mean()
    clicks = labels > 0.5
    positive, negative = clicks.sum(), (~clicks).sum()
    return float((ranks[clicks].sum() - positive * (positive + 1) / 2) / (positive * negative))


def map_fun(args: argparse.Namespace, ctx: Any) -> None:
    """What every task runs."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster, server = ctx.start_cluster_server()
    if ctx.job_name == "ps":
        server.join()  # a ps serves until it is stopped
        return
    here = f"/job:worker/task:{ctx.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=here, cluster=cluster)):
        model = click_model(args)
        start = tf.global_variables_initializer()
    with tf.device(here):  # this task writes the files, and not a ps
        saver = tf.train.Saver()
    if ctx.task_index == 0:
        print("the table:", "; ".join(model["slices"]), flush=True)
    supervisor = tf.train.Supervisor(
        is_chief=ctx.task_index == 0, init_op=start, global_step=model["step"], saver=None, summary_op=None,
        recovery_wait_secs=1,
    )  # fmt: skip
    config = tf.ConfigProto(device_filters=["/job:ps", here], device_count={"GPU": 0})
    with supervisor.managed_session(server.target, config=config) as session:
        train(args, ctx, session, model)
        if ctx.task_index == 0:
            # --output-to copies it to its place, because TensorFlow itself does not write to HDFS.
            saver.save(session, os.path.join(ctx.output_dir, "model", "ctr"), write_meta_graph=False)


def train(args: argparse.Namespace, ctx: Any, session: Any, model: dict[str, Any]) -> None:
    """Learn from the rows that come, until there are no more."""
    feed, losses = ctx.get_data_feed(), []
    while not feed.should_stop():
        lines = feed.next_batch(args.batch_size)
        if not lines:
            continue
        ids, labels = batch_of(lines, args.buckets)
        loss, _ = session.run([model["loss"], model["train"]], {model["ids"]: ids, model["labels"]: labels})
        losses.append(float(loss))
        if len(losses) % 100 == 0:
            print(f"{len(losses)} steps here, loss {sum(losses[-50:]) / 50:.4f}", flush=True)
    some = max(1, len(losses) // 10)
    first, last = sum(losses[:some]) / some, sum(losses[-some:]) / some
    print(f"done: {len(losses)} steps here, loss {first:.4f} -> {last:.4f}", flush=True)


def score_fun(args: argparse.Namespace, ctx: Any) -> None:
    """What every task of the inference runs: for each line its label and the score of the model."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    model = click_model(args)
    with tempfile.TemporaryDirectory() as folder, tf.Session() as session:
        files, path = fsspec.url_to_fs(f"{args.output}/worker-0/model")
        files.get(path, f"{folder}/model", recursive=True)
        tf.train.Saver().restore(session, f"{folder}/model/ctr")
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            ids, labels = batch_of(feed.next_batch(1024), args.buckets)
            scores = session.run(model["score"], {model["ids"]: ids})
            feed.batch_results([f"{label:g}\t{score:.6f}" for label, score in zip(labels, scores)])  # noqa: B905


# --- on the driver ------------------------------------------------------------------------------


def titanic_lines() -> list[str]:
    """The people of the Titanic as lines of a log: what is zero or unknown is left out."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import titanic

    try:
        return [line_of(person) for person in titanic.passengers()]
    except titanic.DataError as error:
        sys.exit(f"error: {error}")


def line_of(person: dict[str, str]) -> str:
    """One of them."""
    features = {
        **{name: person[name].replace(" ", "_") for name in ("gender", "class", "embarked")},
        "age": f"{int(float(person['age'])) // 10 * 10}" if person["age"] else "",
        "fare": f"{int(float(person['fare']) ** 0.5)}" if float(person["fare"] or 0) else "",
        **{name: person[name] for name in ("sibsp", "parch") if person[name] not in ("", "0")},
        "gender+class": f"{person['gender']}+{person['class'].replace(' ', '_')}",
    }
    words = " ".join(f"{name}={value}" for name, value in features.items() if value)
    return f"{person['survived']}\t{words}"


def main() -> None:
    """Feed the lines to a cluster; then score others with the model."""
    args = parse_flags()
    if args.data:
        lines, test_lines = TextFiles(args.data), TextFiles(args.test)
    else:
        found = titanic_lines()
        lines, test_lines = found[:-441], found[-441:]
    where = {"input_mode": InputMode.FEED, "hosts": args.hosts, **TENSORFLOW}
    keep = ["--output-to", args.output]
    tasks = args.ps + args.workers
    with TFCluster.run(map_fun, args, tasks, args.ps, options=[*args.options, *keep], **where) as cluster:
        cluster.train(lines, num_epochs=args.epochs)
    with TFCluster.run(score_fun, args, args.workers, options=args.options, **where) as cluster:
        names = cluster.inference(test_lines, output=f"{args.output}/scores")
    scored = [line.split() for file in fsspec.open_files(names, "rt") for line in file.open()]
    found = auc([float(label) for label, _ in scored], [float(score) for _, score in scored])
    print(f"AUC {found:.4f} on {len(scored)} lines")
    if found < args.min_auc:
        sys.exit(f"error: the AUC is below --min_auc={args.min_auc}")


if __name__ == "__main__":
    main()
