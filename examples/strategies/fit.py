"""MNIST in step by `model.fit` of Keras 2: `MultiWorkerMirroredStrategy` and `BackupAndRestore`.

    launch --restarts 3 --workers 2 examples/strategies/fit.py

It needs ``pip install tf_keras`` of TensorFlow's version. Started again, all go on from the last backup.
"""

from __future__ import annotations

import argparse
import os
import signal

import net
import tensorflow as tf
import tf_keras as keras


def parse_flags() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train MNIST by model.fit.", allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=500, help="steps in all, rounded down to whole epochs")
    parser.add_argument("--save_steps", type=int, default=100, help="steps of an epoch: after each a backup")
    parser.add_argument("--batch_size", type=int, default=50, help="images of one worker in one step")
    parser.add_argument("--rate", type=float, default=0.3, help="of learning")
    parser.add_argument("--folder", default="fit_run", help="for the backup and images; all see it")
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="exit with 1 below this")
    return parser.parse_args()


class Steps(keras.callbacks.Callback):
    """Prints where training is."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        """`BackupAndRestore` stands before it in the list, so the step is the restored one."""
        if number := int(self.model.optimizer.iterations.numpy()):
            print(f"restored from step {number}", flush=True)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """After each step."""
        number = int(self.model.optimizer.iterations.numpy())
        if number % net.PRINT_STEPS == 0:
            print(f"step {number} accuracy {logs['accuracy']:.2f}", flush=True)


def main() -> None:
    """Train, judge."""
    args = parse_flags()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow has just taken it for itself, and would go on
    with strategy.scope():
        layers = [keras.Input(784), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.distribute_reduction_method = "first"  # by default what all workers count is added once more
        model.compile(keras.optimizers.SGD(args.rate), loss, metrics=["accuracy"])

    path = net.write_records(args.folder)

    def own_part(where: tf.distribute.InputContext) -> tf.data.Dataset:
        return net.batches(path, args.batch_size, where.input_pipeline_id, where.num_input_pipelines)

    # Kept after the end: a worker that dies there is started again with all, and finds nothing left to do.
    backup = keras.callbacks.BackupAndRestore(os.path.join(args.folder, "backup"), delete_checkpoint=False)
    model.fit(
        strategy.distribute_datasets_from_function(own_part),
        epochs=args.steps // args.save_steps,
        steps_per_epoch=args.save_steps,
        callbacks=[backup, Steps()],
        verbose=0,
    )
    images, labels = net.test_images()
    logits = model(tf.constant(images))
    net.judge(float(net.share_right(logits, tf.constant(labels))), args.min_accuracy)


if __name__ == "__main__":
    main()
