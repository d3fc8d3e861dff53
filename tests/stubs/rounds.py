"""Rounds of steps under `ParameterServerStrategy`: ``rounds.py ROUNDS``. The chief prints each round."""

from __future__ import annotations

import faulthandler
import os
import sys

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    where = {"job_name": resolver.task_type, "task_index": resolver.task_id}
    tf.distribute.Server(resolver.cluster_spec(), protocol="grpc", **where).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros([100, 10]))
rounds = int(sys.argv[1])


@tf.function
def rows() -> tf.data.Dataset:
    """The data of a worker."""
    data = tf.data.Dataset.from_tensors(tf.ones([32, 100])).repeat().prefetch(2)
    return strategy.distribute_datasets_from_function(lambda _: data)


@tf.function
def step(iterator: tf.data.Iterator) -> tf.Tensor:
    """One step of a worker."""

    def learn(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ weights - 1.0) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    return strategy.run(learn, args=(next(iterator),))


iterator = iter(coordinator.create_per_worker_dataset(rows))
for number in range(1, rounds + 1):
    losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
    coordinator.join()
    print(f"round {number} of {rounds}: loss {losses[-1].fetch():.4f}", flush=True)
faulthandler.dump_traceback_later(15)
print("all rounds are over", flush=True)
os._exit(0)
