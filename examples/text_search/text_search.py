"""A hyperparameter search in one line, and then the winner as a cluster: one training function, unchanged.

The function learns to guess the next character of a text from the ones before it. It is run

- once for each set of parameters, independently, some at a time: ``TFParallel.run(train, sets)``, and what it
  returns comes back in the order of the sets;
- then with the best set as a cluster of workers that train in step: ``TFCluster.run(train, best, ...)``.

The text is the reference manual of Python, which every Python brings along (`pydoc_data`).
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from typing import Any

from launcher import TFCluster, TFParallel

#: Characters that are told apart; all others are one.
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789.,:;'\"()[]{}=-_*/\\`<>+"


def train(args: dict[str, Any], ctx: Any = None) -> dict[str, Any]:
    """Train with one set of parameters; on all workers of a cluster, if it is one.

    Args:
        args: ``context`` (characters that are looked at), ``rate``, ``steps``, ``batch_size`` (of a worker),
            ``model_dir`` (where the model is saved; ``None``: nowhere).
        ctx: where this runs; ``None``: alone, as a plain function.

    Returns:
        The parameters, and ``bits``: how many a character of another part of the text takes.
    """
    import tensorflow as tf

    from launcher import compat

    tf.keras.utils.set_random_seed(1)
    together = ctx is not None and len(ctx.cluster_spec.get("worker", ())) > 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if together else tf.distribute.get_strategy()
    seen, unseen = examples(args["context"])
    with strategy.scope():
        model = network(args["context"])
        optimizer = tf.keras.optimizers.Adam(args["rate"])
        model.build((None, args["context"]))
        optimizer.build(model.trainable_variables)
    rows = strategy.distribute_datasets_from_function(lambda where: shuffled(seen, args["batch_size"], where))

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(model, batch)) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    run = tf.function(lambda batch: strategy.run(step, (batch,)))
    for batch in itertools.islice(rows, args["steps"]):
        run(batch)
    bits = float(tf.reduce_mean(losses(model, unseen))) / math.log(2)
    if args.get("model_dir"):
        compat.export_saved_model(model, args["model_dir"], ctx is None or ctx.is_chief)
    print(f"context {args['context']}, rate {args['rate']}: {bits:.3f} bits a character", flush=True)
    return {**args, "bits": bits}


def network(context: int) -> Any:
    """A vector for each character, and two layers."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Embedding(len(ALPHABET) + 1, 8),
            layers.Reshape((context * 8,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(len(ALPHABET) + 1),
        ]
    )


def losses(model: Any, batch: Any) -> Any:
    """How surprised the model is by each next character, in nats."""
    import tensorflow as tf

    contexts, following = batch
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=following, logits=model(contexts))


def examples(context: int, most: int = 200_000) -> tuple[Any, Any]:
    """Characters before, and the next one: of the text, and of a part of it that is not trained with."""
    from pydoc_data.topics import topics

    import numpy as np

    text = "\n".join(topics[name] for name in sorted(topics)).lower()[: most + 20_000]
    known = {character: number for number, character in enumerate(ALPHABET, 1)}
    numbers = np.array([known.get(character, 0) for character in text], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(numbers, context + 1)
    pairs = windows[:, :-1], windows[:, -1]
    cut = len(windows) - 20_000
    return tuple(part[:cut] for part in pairs), tuple(np.ascontiguousarray(part[cut:]) for part in pairs)


def shuffled(seen: Any, size: int, where: Any) -> Any:
    """Batches without end; each worker has its own part of the text."""
    import tensorflow as tf

    mine = tuple(part[where.input_pipeline_id :: where.num_input_pipelines] for part in seen)
    rows = tf.data.Dataset.from_tensor_slices(mine).shuffle(20_000, seed=1, reshuffle_each_iteration=True)
    options = tf.data.Options()
    options.deterministic = True
    return rows.repeat().batch(size).with_options(options)


def main() -> None:
    """Search, then train the winner for longer on a cluster."""
    parser = argparse.ArgumentParser(description="Search parameters in parallel.", allow_abbrev=False)
    parser.add_argument(
        "--context", type=int, nargs="+", default=[2, 6], help="characters to look at, to try"
    )
    parser.add_argument("--rate", type=float, nargs="+", default=[0.001, 0.01], help="learning rates to try")
    parser.add_argument("--steps", type=int, default=300, help="of each instance, and of the cluster")
    parser.add_argument("--batch_size", type=int, default=128, help="of each worker")
    parser.add_argument(
        "--at_once", type=int, help="instances at a time (default: one for each core or slot)"
    )
    parser.add_argument("--workers", type=int, default=2, help="of the cluster")
    parser.add_argument("--hosts", help="a hostfile, or host:slots,... (default: this machine)")
    parser.add_argument("--model_dir", default="text_model", help="where the cluster saves its model")
    args = parser.parse_args()
    fixed = {"steps": args.steps, "batch_size": args.batch_size, "model_dir": None}
    sets = [{"context": c, "rate": r, **fixed} for c, r in itertools.product(args.context, args.rate)]
    where = {"hosts": args.hosts, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "preload": "tensorflow"}

    results = TFParallel.run(train, sets, at_once=args.at_once, **where)

    for found in results:
        print(f"context {found['context']}  rate {found['rate']:<6}  {found['bits']:.3f} bits a character")
    best = dict(min(results, key=lambda found: found["bits"]), model_dir=os.path.abspath(args.model_dir))
    print(f"best: context {best['context']}, rate {best['rate']}; now with {args.workers} workers in step")
    with TFCluster.run(train, best, args.workers, **where):
        pass
    print(f"model: {best['model_dir']}")


if __name__ == "__main__":
    main()
