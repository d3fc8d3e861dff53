"""MNIST in step: `MultiWorkerMirroredStrategy`. All tasks run this file; ``TF_CONFIG`` says which.

    launch --workers 2 examples/strategies/in_step.py

There is no chief to name: worker 0 writes the checkpoints. Started again, it goes on from the last one.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import tempfile

import net
import tensorflow as tf


def parse_flags() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train MNIST, all workers in step.", allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=400, help="steps in all")
    parser.add_argument("--save_steps", type=int, default=100, help="steps from checkpoint to checkpoint")
    parser.add_argument("--batch_size", type=int, default=50, help="images of one worker in one step")
    parser.add_argument("--rate", type=float, default=0.3, help="of learning")
    parser.add_argument("--folder", default="in_step_run", help="for checkpoints and images; all see it")
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="exit with 1 below this")
    return parser.parse_args()


def main() -> None:
    """Train, save, judge."""
    args = parse_flags()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow has just taken it for itself, and would go on
    faulthandler.register(signal.SIGTERM, chain=True)  # of a task that hung, its log shows where
    with strategy.scope():
        model = net.Net(tf.VariableAggregation.MEAN)
        done = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    path = net.write_records(args.folder)

    def own_part(where: tf.distribute.InputContext) -> tf.data.Dataset:
        return net.batches(path, args.batch_size, where.input_pipeline_id, where.num_input_pipelines)

    iterator = iter(strategy.distribute_datasets_from_function(own_part))

    @tf.function
    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        losses = strategy.run(lambda images, labels: model.learn(images, labels, args.rate), batch)
        done.assign_add(1)
        return strategy.reduce("MEAN", losses, axis=None)

    saver = Saver(tf.train.Checkpoint(model=model, done=done), args.folder, writes(strategy))
    before = int(done.numpy())
    everywhere = strategy.reduce("MEAN", strategy.run(lambda: tf.cast(done, tf.float32)), axis=None)
    if float(everywhere) != before:
        sys.exit("error: the workers see different checkpoints: --folder must be one that all of them see")
    if before:
        print(f"going on after step {before}", flush=True)
    for number in range(before + 1, args.steps + 1):
        loss = step(next(iterator))
        if number % args.save_steps == 0 or number == args.steps:
            saver.save()
            print(f"step {number}: loss {float(loss):.4f}", flush=True)

    accuracy = model.accuracy(*net.test_images())
    print(f"test accuracy: {accuracy:.4f}", flush=True)
    if accuracy < args.min_accuracy:
        sys.exit(f"error: the accuracy is below --min_accuracy={args.min_accuracy}")


def writes(strategy: tf.distribute.Strategy) -> bool:
    """Whether this task's checkpoints are the ones that are kept."""
    resolver = strategy.cluster_resolver
    first = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (first, 0)


class Saver:
    """All must save, as that is a computation of all; only one's files are kept.

    Args:
        checkpoint: what to save; it is what the last one was, if there is any.
        folder: of those that are kept.
        keeps: whether this task writes there.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint, folder: str, keeps: bool) -> None:
        kept = os.path.join(folder, "checkpoints")
        self._elsewhere = tempfile.TemporaryDirectory()
        own = kept if keeps else self._elsewhere.name
        self._manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
        if last := tf.train.latest_checkpoint(kept):
            checkpoint.restore(last)

    def save(self) -> None:
        """Save now."""
        self._manager.save()


if __name__ == "__main__":
    main()
