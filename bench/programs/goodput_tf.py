"""A training whose workers keep in step by TensorFlow's `MultiWorkerMirroredStrategy`.

    goodput_tf.py FOLDER STEPS

`bench.goodput` starts it. Its steps, their length and the checkpoints must be those of ``goodput_torch.py``.
"""

import os
import signal
import sys
import tempfile
import time

import tensorflow as tf

#: The length of a step in seconds.
STEP_S = 0.05
#: The number of steps between two checkpoints.
SAVE_STEPS = 20


def main(folder: str, steps: int) -> None:
    """Train until this number of steps, from the last checkpoint on, and note each step in the folder."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow has taken it for itself
    number = strategy.cluster_resolver.task_id
    with strategy.scope():
        weights = tf.Variable(tf.zeros((256, 256)), aggregation=tf.VariableAggregation.MEAN)
        done = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    kept = os.path.join(folder, "checkpoints")
    checkpoint = tf.train.Checkpoint(weights=weights, done=done)
    own = tempfile.mkdtemp(dir=folder) if number else kept
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
    if last := tf.train.latest_checkpoint(kept):
        checkpoint.restore(last)
    images = tf.ones((64, 256))

    @tf.function
    def step() -> tf.Tensor:
        def learn() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((images @ weights - 1.0) ** 2)
            weights.assign_sub(0.01 * tape.gradient(loss, weights))
            return loss

        losses = strategy.run(learn)
        done.assign_add(1)
        return strategy.reduce("MEAN", losses, axis=None)

    while (at := int(done.numpy())) < steps:
        end = time.monotonic() + STEP_S
        step()
        note(folder, number, at + 1)
        if (at + 1) % SAVE_STEPS == 0:
            manager.save(at + 1)
        time.sleep(max(0.0, end - time.monotonic()))


def note(folder: str, number: int, step: int) -> None:
    """Note the pid of this task and its last step, for the bench."""
    path = os.path.join(folder, f"task.{number}")
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {step}")
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
