"""Distributed MNIST, the classic: asynchronous training with parameter servers and workers.

The model's variables live on the ps tasks. Each worker computes gradients from its own batches and applies
them as soon as it has them, without waiting for anybody. Every task runs this same file and is told by four
flags its own role and index, and the addresses of all::

    mnist_dist.py --ps_hosts=HOST:PORT,... --worker_hosts=HOST:PORT,... --job_name=ps|worker --task_index=N

`launch --flags` gives those to each task.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import data

#: Own steps of a worker from line to line.
PRINT_STEPS = 50


def parse_flags() -> argparse.Namespace:
    """What the command line says, checked as far as possible before the slow import of TensorFlow."""
    parser = argparse.ArgumentParser(description="Train MNIST with parameter servers.", allow_abbrev=False)
    parser.add_argument("--ps_hosts", required=True, type=host_list, help="host:port,... of the ps tasks")
    parser.add_argument("--worker_hosts", required=True, type=host_list, help="host:port,... of the workers")
    parser.add_argument("--job_name", required=True, choices=("ps", "worker"), help="what this task is")
    parser.add_argument("--task_index", required=True, type=int, help="which one of them")
    # Workers that do not wait for each other step from old weights: with 0.5 some end below 0.9.
    add_training_flags(parser, train_steps=1000, learning_rate=0.2)
    flags = parser.parse_args()
    hosts = flags.ps_hosts if flags.job_name == "ps" else flags.worker_hosts
    if not 0 <= flags.task_index < len(hosts):
        parser.error(f"--task_index={flags.task_index}, but the {flags.job_name} hosts are {','.join(hosts)}")
    return flags


def host_list(text: str) -> list[str]:
    """``a:1,b:2`` as a list of at least one."""
    hosts = [host.strip() for host in text.split(",") if host.strip()]
    if not hosts:
        raise argparse.ArgumentTypeError("expected at least one host:port")
    return hosts


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, not {text!r}")
    return int(text)


def add_training_flags(parser: argparse.ArgumentParser, train_steps: int, learning_rate: float) -> None:
    """The flags that are not about the cluster, the same for both variants."""
    parser.add_argument("--train_steps", type=positive, default=train_steps, help="steps in all")
    parser.add_argument("--batch_size", type=positive, default=100, help="images a worker takes for one step")
    parser.add_argument("--learning_rate", type=float, default=learning_rate, help="of gradient descent")
    parser.add_argument("--data_dir", help="where MNIST is kept (default: your cache folder)")
    parser.add_argument("--log_dir", help="a folder for checkpoints that worker 0 sees (default: none)")
    parser.add_argument(
        "--save_steps", type=positive, default=100, help="steps from checkpoint to checkpoint"
    )
    parser.add_argument("--min_accuracy", type=float, default=0.0, help="exit with 1 below this")


def softmax_regression(flags: argparse.Namespace) -> dict[str, Any]:
    """One layer: 784 pixels to 10 digits. Where its variables go is up to the `tf.device` around the call."""
    import tensorflow.compat.v1 as tf

    images = tf.placeholder(tf.float32, [None, 784], name="images")
    labels = tf.placeholder(tf.int32, [None], name="labels")
    weights = tf.get_variable("weights", [784, 10], initializer=tf.zeros_initializer())
    biases = tf.get_variable("biases", [10], initializer=tf.zeros_initializer())
    logits = tf.matmul(images, weights) + biases
    right = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return {
        "images": images,
        "labels": labels,
        "logits": logits,
        "loss": tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)),
        "accuracy": tf.reduce_mean(tf.cast(right, tf.float32)),
        "optimizer": tf.train.GradientDescentOptimizer(flags.learning_rate),
        "global_step": tf.train.get_or_create_global_step(),
    }


def session_config(task_index: int) -> Any:
    """How a worker talks to the cluster.

    With `device_filters` a worker needs the ps tasks and itself, and no other task. Without them a worker
    that starts late never stops waiting for one that has already left.
    """
    import tensorflow.compat.v1 as tf

    filters = ["/job:ps", f"/job:worker/task:{task_index}"]
    return tf.ConfigProto(device_filters=filters, device_count={"GPU": 0})


def training_session(
    flags: argparse.Namespace, task_index: int, target: str, scaffold: Any, hooks: Sequence[Any] = ()
) -> Any:
    """A session that goes on when a ps or a worker was lost and is back on its port.

    The chief, worker 0, restores the last checkpoint of `--log_dir`, or initialises the variables, and saves
    every `--save_steps` steps. The other workers wait until the variables have values.
    """
    import tensorflow.compat.v1 as tf

    config = session_config(task_index)
    if task_index:
        return tf.train.MonitoredSession(Joining(target, config, scaffold), hooks, stop_grace_period_secs=1)

    class Restored(tf.train.SessionRunHook):
        """Says where training goes on."""

        def after_create_session(self, session: Any, coord: Any) -> None:
            if path := flags.log_dir and tf.train.latest_checkpoint(flags.log_dir):
                print(f"restored from step {path.rpartition('-')[2]}", flush=True)

    return tf.train.MonitoredTrainingSession(
        target,
        is_chief=True,
        scaffold=scaffold,
        checkpoint_dir=flags.log_dir,
        save_checkpoint_steps=flags.save_steps,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=config,
        hooks=hooks,
        chief_only_hooks=[Restored()],
        stop_grace_period_secs=1,
    )


class Joining:
    """What `MonitoredTrainingSession` does in a worker that is not the chief.

    That one looks every 30 s whether the variables have values, and has no option for it. This one looks
    every second: at the start, and when a ps is back.
    """

    def __init__(self, target: str, config: Any, scaffold: Any) -> None:
        self._target, self._config, self._scaffold = target, config, scaffold

    def create_session(self) -> Any:
        """See `tf.train.SessionCreator`."""
        import tensorflow.compat.v1 as tf

        scaffold = self._scaffold.finalize()
        manager = tf.train.SessionManager(
            local_init_op=scaffold.local_init_op,
            ready_op=scaffold.ready_op,
            ready_for_local_init_op=scaffold.ready_for_local_init_op,
            recovery_wait_secs=1,
        )
        return manager.wait_for_session(self._target, self._config, max_wait_secs=600)


def start_tensorflow() -> None:
    """Import TensorFlow with its chatter turned down, unless the user wants it, and make it build graphs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_v2_behavior()


def load_data(flags: argparse.Namespace) -> data.Mnist:
    """MNIST, or the end of this task with a clear message."""
    try:
        return data.load(flags.data_dir)
    except data.DataError as error:
        sys.exit(f"error: {error}")


def judge(accuracy: float, flags: argparse.Namespace) -> None:
    """Print the result, and fail if it is not good enough."""
    print(f"test accuracy: {accuracy:.4f}", flush=True)
    if accuracy < flags.min_accuracy:
        sys.exit(f"error: test accuracy {accuracy:.4f} is below --min_accuracy={flags.min_accuracy}")


def main() -> None:
    flags = parse_flags()
    mnist = load_data(flags) if flags.job_name == "worker" else None
    start_tensorflow()
    import tensorflow.compat.v1 as tf

    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts, "worker": flags.worker_hosts})
    server = tf.train.Server(
        cluster, flags.job_name, flags.task_index, config=tf.ConfigProto(device_count={"GPU": 0})
    )
    print(f"{flags.job_name} {flags.task_index} is up", flush=True)
    if mnist is None:
        server.join()  # A ps serves and never returns: the launcher ends it.
    else:
        train(flags, cluster, server, mnist)


def train(flags: argparse.Namespace, cluster: Any, server: Any, mnist: data.Mnist) -> None:
    """What a worker does: train until all workers together have made `--train_steps` steps, then test."""
    import tensorflow.compat.v1 as tf

    # Variables go to the ps tasks in turn, everything else stays with this worker.
    here = f"/job:worker/task:{flags.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=here, cluster=cluster)):
        model = softmax_regression(flags)
        train_op = model["optimizer"].minimize(model["loss"], global_step=model["global_step"])
        with tf.control_dependencies([train_op]):
            step_after = model["global_step"].read_value()
        # Worker 0 writes all of a checkpoint. By default each ps writes its part, into a folder that all see.
        scaffold = tf.train.Scaffold(saver=tf.train.Saver(sharded=False))

    with training_session(flags, flags.task_index, server.target, scaffold) as session:
        batches = data.batches(
            mnist.train_images, mnist.train_labels, flags.batch_size, seed=flags.task_index
        )
        started, mine = time.monotonic(), 0
        step = session.run(model["global_step"])
        while not session.should_stop() and step < flags.train_steps:
            images, labels = next(batches)
            feed = {model["images"]: images, model["labels"]: labels}
            accuracy, step = session.run([model["accuracy"], step_after], feed)
            mine += 1
            if mine == 1 or mine % PRINT_STEPS == 0:
                print(f"step {step} accuracy {accuracy:.2f}", flush=True)
        print(f"done: {mine} steps here in {time.monotonic() - started:.1f} s", flush=True)
        test = {model["images"]: mnist.test_images, model["labels"]: mnist.test_labels}
        accuracy = session.run(model["accuracy"], test)
    judge(accuracy, flags)


if __name__ == "__main__":
    main()
