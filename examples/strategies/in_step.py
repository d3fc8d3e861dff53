"""MNIST in step: `MultiWorkerMirroredStrategy`. All tasks run this file; ``TF_CONFIG`` says which.

    launch --restarts 3 --workers 2 examples/strategies/in_step.py

There is no chief to name: worker 0 writes the checkpoints. Started again, all go on from the last one. A task
that gets SIGTERM (a machine that is about to be taken away) has all of them save first.
"""

from __future__ import annotations

import argparse
import os
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
    with strategy.scope():
        model = net.Net(tf.VariableAggregation.MEAN)
        done = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    path = net.write_records(args.folder)

    def own_part(where: tf.distribute.InputContext) -> tf.data.Dataset:
        return net.batches(path, args.batch_size, where.input_pipeline_id, where.num_input_pipelines)

    iterator = iter(strategy.distribute_datasets_from_function(own_part))

    @tf.function
    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        accuracies = strategy.run(lambda images, labels: model.learn(images, labels, args.rate), batch)
        done.assign_add(1)
        return strategy.reduce("MEAN", accuracies, axis=None)

    # All save, as that is a computation of all, and only one's files are kept: all restore those.
    kept = os.path.join(args.folder, "checkpoints")
    checkpoint = tf.train.Checkpoint(model=model, done=done)
    own = kept if saves(strategy) else tempfile.mkdtemp(prefix="in_step-")
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
    if last := tf.train.latest_checkpoint(kept):
        checkpoint.restore(last)
    # SIGTERM to one: all save after the same step, and end with 42.
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)

    number = int(done.numpy())
    everywhere = strategy.reduce("MEAN", strategy.run(lambda: tf.cast(done, tf.float32)), axis=None)
    if float(everywhere) != number:
        sys.exit("error: the workers see different checkpoints: --folder must be one that all of them see")
    if number:
        print(f"restored from step {number}", flush=True)
    while number < args.steps:
        accuracy = step(next(iterator))
        number += 1
        if number % net.PRINT_STEPS == 0:
            print(f"step {number} accuracy {float(accuracy):.2f}", flush=True)
        if number % args.save_steps == 0 or number == args.steps:
            manager.save(number)
        handler.save_checkpoint_if_preempted(number)
    net.judge(model.accuracy(*net.test_images()), args.min_accuracy)


def saves(strategy: tf.distribute.Strategy) -> bool:
    """Whether this task's checkpoints are the ones that are kept."""
    resolver = strategy.cluster_resolver
    first = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (first, 0)


if __name__ == "__main__":
    main()
