"""MNIST with the API of TensorFlowOnSpark, without Spark; `before.py` is where it came from."""

import argparse

from rows import mnist_rows

from launcher import TFCluster


def main_fun(args, ctx):
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    cluster, server = ctx.start_cluster_server(1)
    if ctx.job_name == "ps":
        server.join()
        return

    here = f"/job:worker/task:{ctx.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=here, cluster=cluster)):
        x = tf.placeholder(tf.float32, [None, 784])
        y = tf.placeholder(tf.int32, [None])
        logits = tf.matmul(x / 255, tf.get_variable("w", [784, 10])) + tf.get_variable("b", [10])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))
        step = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(0.3).minimize(loss, global_step=step)
        start = tf.global_variables_initializer()

    supervisor = tf.train.Supervisor(
        is_chief=ctx.task_index == 0, init_op=start, global_step=step, summary_op=None, recovery_wait_secs=1
    )
    config = tf.ConfigProto(device_filters=["/job:ps", here])
    tf_feed, n, accuracy = ctx.get_data_feed(), 0, 0.0
    with supervisor.managed_session(server.target, config=config) as session:
        while not tf_feed.should_stop():
            batch = tf_feed.next_batch(args.batch_size)
            if len(batch) > 0:
                images, labels = [row[0] for row in batch], [row[1] for row in batch]
                feed = {x: np.array(images), y: np.array(labels)}
                _, accuracy, n = session.run([train, right, step], feed)
                if n % 50 == 0:
                    print(f"step {n}: accuracy {accuracy:.2f}", flush=True)
    print(f"done at step {n}: accuracy of the last batch {accuracy:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--cluster_size", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=20000)
    args = parser.parse_args()

    data = mnist_rows(args.images)
    cluster = TFCluster.run(main_fun, args, args.cluster_size, 1, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(data, args.epochs)
    cluster.shutdown()
