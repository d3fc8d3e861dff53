"""MNIST with a coordinator: `ParameterServerStrategy`. All tasks run this file; ``TF_CONFIG`` says which.

    launch --restarts 3 --chief --ps 1 --workers 2 --evaluator --drain evaluator=2m \\
        examples/strategies/coordinated.py

The chief hands steps to whichever worker is free, and the variables are on the ps. Workers and ps serve until
`launch` stops them, when the chief is done. The evaluator judges each checkpoint, and ends with the last.
"""

from __future__ import annotations

import argparse
import os
import sys

import net
import tensorflow as tf


def parse_flags() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train MNIST, coordinated by a chief.", allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=600, help="steps of all workers together")
    parser.add_argument("--save_steps", type=int, default=200, help="steps from checkpoint to checkpoint")
    parser.add_argument("--batch_size", type=int, default=50, help="images of one step")
    parser.add_argument("--rate", type=float, default=0.3, help="of learning")
    parser.add_argument("--folder", default="coordinated_run", help="for checkpoints and images; all see it")
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="the evaluator fails below this")
    return parser.parse_args()


def main() -> None:
    """Be what ``TF_CONFIG`` says."""
    args = parse_flags()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    elif resolver.task_type == "evaluator":
        evaluate(args)
    else:
        coordinate(args, resolver)


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Do what the chief asks for, and never exit."""
    where = {"job_name": resolver.task_type, "task_index": resolver.task_id}
    server = tf.distribute.Server(resolver.cluster_spec(), protocol="grpc", **where)
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def coordinate(args: argparse.Namespace, resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """What the chief does: hand out steps, wait for them, save."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, done = net.Net(), tf.Variable(0, dtype=tf.int64)
    path = net.write_records(args.folder)

    @tf.function
    def dataset() -> tf.data.Dataset:
        return strategy.distribute_datasets_from_function(lambda _: net.batches(path, args.batch_size, 0, 1))

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        done.assign_add(1)
        return strategy.run(
            lambda images, labels: model.learn(images, labels, args.rate), args=next(iterator)
        )

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    checkpoint = tf.train.Checkpoint(model=model, done=done)
    manager = tf.train.CheckpointManager(checkpoint, checkpoints(args), max_to_keep=2)
    if manager.restore_or_initialize():
        print(f"restored from step {int(done.numpy())}", flush=True)
    number, saved = int(done.numpy()), int(done.numpy())
    while number < args.steps:
        for _ in range(min(net.PRINT_STEPS, args.steps - number)):
            accuracy = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        number = int(done.numpy())
        print(f"step {number} accuracy {accuracy.fetch():.2f}", flush=True)
        if number >= saved + args.save_steps or number >= args.steps:
            manager.save(number)
            saved = number
    print(f"test accuracy: {model.accuracy(*net.test_images()):.4f}", flush=True)
    os._exit(0)  # threads of the coordinator may be at work: Python's own shutdown would abort them


def evaluate(args: argparse.Namespace) -> None:
    """What the evaluator does: judge each checkpoint that it sees, until it has seen the last."""
    images, labels = net.test_images()
    model, done, accuracy = net.Net(), tf.Variable(0, dtype=tf.int64), 0.0
    checkpoint = tf.train.Checkpoint(model=model, done=done)
    for path in tf.train.checkpoints_iterator(checkpoints(args), min_interval_secs=0.2, timeout=120):
        checkpoint.read(path).assert_existing_objects_matched().expect_partial()
        accuracy = model.accuracy(images, labels)
        print(f"test accuracy after step {int(done.numpy())}: {accuracy:.4f}", flush=True)
        if int(done.numpy()) >= args.steps:
            break
    if int(done.numpy()) < args.steps:
        sys.exit("error: no further checkpoint has come for two minutes")
    if accuracy < args.min_accuracy:
        sys.exit(f"error: the accuracy is below --min_accuracy={args.min_accuracy}")


def checkpoints(args: argparse.Namespace) -> str:
    """Their folder."""
    return os.path.join(args.folder, "checkpoints")


if __name__ == "__main__":
    main()
