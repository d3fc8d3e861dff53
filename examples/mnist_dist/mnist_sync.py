"""Distributed MNIST, in step: synchronous training with `SyncReplicasOptimizer`.

Like `mnist_dist.py`, but all workers make each step together: a step's gradients are averaged over all
workers before they are applied. Every task runs this same file. It reads its role and the
addresses of all tasks from `TF_CONFIG`, which `launch` always sets, or from the four classic flags.

Synchronous training is known for not ending. A worker makes its next step only with a token from a queue, and
the chief puts tokens there when all gradients of a step have come. So a worker never stops waiting for its
token if the others left before it was earned, nor does a late worker if everybody left. What prevents that
here:

- Training begins with an empty queue, so the first step needs a gradient of every worker: no worker trains
  alone, and none is done before the last one has come.
- The chief, when it is done, puts a token for each worker into the queue. A worker that still waits gets one,
  sees that training is over, and is done too.
- The queue stays open when the chief leaves, and when its session begins anew because a ps was lost.
- A chief that comes back, and one that restores what a ps had lost, puts a token for each worker into the
  queue, for those that the last session had taken. One token too many does no harm.
- Every wait for another worker has an end (`--step_timeout`), and then an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any, NamedTuple

import data
from mnist_dist import (
    PRINT_STEPS,
    add_training_flags,
    host_list,
    judge,
    load_data,
    softmax_regression,
    start_tensorflow,
    training_session,
)


class Task(NamedTuple):
    """The role and index of this task, and the addresses of all."""

    cluster: dict[str, list[str]]
    job_name: str
    task_index: int


def parse_flags() -> tuple[argparse.Namespace, Task]:
    """What the command line and `TF_CONFIG` say, checked before the slow import of TensorFlow."""
    parser = argparse.ArgumentParser(
        description="Train MNIST with parameter servers, all workers in step. Without the first four flags "
        "the cluster is read from TF_CONFIG.",
        allow_abbrev=False,
    )
    parser.add_argument("--ps_hosts", type=host_list, help="host:port,... of the ps tasks")
    parser.add_argument("--worker_hosts", type=host_list, help="host:port,... of the workers")
    parser.add_argument("--job_name", help="what this task is: ps or worker")
    parser.add_argument("--task_index", type=int, help="which one of them")
    parser.add_argument("--step_timeout", type=float, default=300, help="seconds to wait in one step")
    add_training_flags(parser, train_steps=300, learning_rate=0.5)
    flags = parser.parse_args()
    classic = (flags.ps_hosts, flags.worker_hosts, flags.job_name, flags.task_index)
    try:
        if all(value is None for value in classic):
            task = task_from_tf_config(os.environ.get("TF_CONFIG", ""))
        elif any(value is None for value in classic):
            raise ValueError("--ps_hosts, --worker_hosts, --job_name and --task_index go together")
        else:
            task = Task(
                {"ps": flags.ps_hosts, "worker": flags.worker_hosts}, flags.job_name, flags.task_index
            )
        check(task)
    except ValueError as error:
        parser.error(str(error))
    return flags, task


def task_from_tf_config(text: str) -> Task:
    """A task as `TF_CONFIG` tells it: ``{"cluster": {"ps": [...]}, "task": {"type": "ps", "index": 0}}``.

    Raises:
        ValueError: it is not like that.
    """
    if not text:
        raise ValueError("no cluster: neither TF_CONFIG nor --ps_hosts, --worker_hosts, ... are set")
    try:
        config = json.loads(text)
        return Task(dict(config["cluster"]), config["task"]["type"], int(config["task"]["index"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"TF_CONFIG is not as expected ({type(error).__name__}: {error}): {text}") from None


def check(task: Task) -> None:
    """Raise ValueError if this program can't be that task in that cluster."""
    if task.job_name not in ("ps", "worker"):
        raise ValueError(f"unknown job name {task.job_name!r}: a task of this program is a ps or a worker")
    for role in ("ps", "worker"):
        if not task.cluster.get(role):
            raise ValueError(f"at least one {role} is needed")
    known = task.cluster[task.job_name]
    if not 0 <= task.task_index < len(known):
        raise ValueError(f"task index {task.task_index}, but the {task.job_name} tasks are {','.join(known)}")


def main() -> None:
    flags, task = parse_flags()
    mnist = load_data(flags) if task.job_name == "worker" else None
    start_tensorflow()
    import tensorflow.compat.v1 as tf

    server = tf.train.Server(
        tf.train.ClusterSpec(task.cluster),
        task.job_name,
        task.task_index,
        config=tf.ConfigProto(device_count={"GPU": 0}),
    )
    print(f"{task.job_name} {task.task_index} is up", flush=True)
    if mnist is None:
        server.join()  # A ps serves and never returns: the launcher ends it.
        return
    try:
        accuracy = train(flags, task, server, mnist)
    except tf.errors.DeadlineExceededError as error:
        reason = " ".join(error.message.split())
        sys.exit(f"error: waited in vain for the other workers: {reason}")
    judge(accuracy, flags)


def train(flags: argparse.Namespace, task: Task, server: Any, mnist: data.Mnist) -> float:
    """What a worker does: train in step with the others, then test; gives the test accuracy."""
    import tensorflow.compat.v1 as tf

    workers = len(task.cluster["worker"])
    is_chief = task.task_index == 0
    here = f"/job:worker/task:{task.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=here, cluster=task.cluster)):
        model = softmax_regression(flags)
        optimizer = tf.train.SyncReplicasOptimizer(
            model["optimizer"], replicas_to_aggregate=workers, total_num_replicas=workers
        )
        train_op = optimizer.minimize(model["loss"], global_step=model["global_step"])
        with tf.control_dependencies([train_op]):
            step_after = model["global_step"].read_value()
        tokens = optimizer.get_init_tokens_op(num_tokens=workers)
        # Worker 0 writes all of a checkpoint, see mnist_dist.py.
        saver = tf.train.Saver(sharded=False)

    # At its end the chief's thread that averages gradients waits for those of a next step. The session
    # gives it a second and then cancels it; that it says so is no error.
    threading.excepthook = unless_cancelled

    scaffold = tf.train.Scaffold(
        local_init_op=optimizer.chief_init_op if is_chief else optimizer.local_step_init_op,
        ready_for_local_init_op=optimizer.ready_for_local_init_op,
        saver=saver,
    )
    hooks = [averaging(optimizer, tokens)] if is_chief else []
    with training_session(flags, task.task_index, server.target, scaffold, hooks) as session:
        batches = data.batches(mnist.train_images, mnist.train_labels, flags.batch_size, seed=task.task_index)
        started, mine = time.monotonic(), 0
        step = session.run(model["global_step"])
        while not session.should_stop() and step < flags.train_steps:
            images, labels = next(batches)
            feed = {model["images"]: images, model["labels"]: labels}
            limit = within(flags.step_timeout)
            accuracy, step = session.run([model["accuracy"], step_after], feed, options=limit)
            mine += 1
            if mine == 1 or mine % PRINT_STEPS == 0:
                print(f"step {step} accuracy {accuracy:.2f}", flush=True)
        print(f"done: {mine} steps here in {time.monotonic() - started:.1f} s", flush=True)
        if is_chief:
            session.run(tokens)
        test = {model["images"]: mnist.test_images, model["labels"]: mnist.test_labels}
        return float(session.run(model["accuracy"], test))


def averaging(optimizer: Any, tokens: Any) -> Any:
    """The chief's thread that averages gradients and puts tokens into the queue.

    The hook of `optimizer.make_session_run_hook` closes the queue when a session ends, even if one ps of
    several is lost: the others would keep a closed queue. This one leaves it open.
    """
    import tensorflow.compat.v1 as tf

    class Averaging(tf.train.SessionRunHook):
        def begin(self) -> None:
            runner, nothing = optimizer.get_chief_queue_runner(), tf.no_op()
            self.runner = tf.train.QueueRunner(
                runner.queue, runner.enqueue_ops, close_op=nothing, cancel_op=nothing
            )

        def after_create_session(self, session: Any, coord: Any) -> None:
            if session.run(tf.train.get_global_step()):
                session.run(tokens)  # for those that the last session had taken
            self.runner.create_threads(session, coord=coord, daemon=True, start=True)

    return Averaging()


def within(seconds: float) -> Any:
    """The option that ends a `session.run` with an error when it takes longer."""
    import tensorflow.compat.v1 as tf

    return tf.RunOptions(timeout_in_ms=int(seconds * 1000))


def unless_cancelled(problem: Any) -> None:
    """Print the exception that ended a thread, as usual, unless it was that TensorFlow cancelled it."""
    import tensorflow.compat.v1 as tf

    if not issubclass(problem.exc_type, tf.errors.CancelledError):
        threading.__excepthook__(problem)


if __name__ == "__main__":
    main()
