"""Data files in programs: the samples that a task of ``launch`` trains with, at paths and URLs.

A program imports it where the Python of its task has tf-launcher. In functions, ``ctx.tf_dataset`` is the
same. This module must not import what only the launcher needs, nor TensorFlow before it is used.
"""

from __future__ import annotations

import json
import os
from typing import Any

from launcher.common.arguments import named_arguments
from launcher.feed.remote.readers import Names
from launcher.feed.remote.tf_data import Share, share_of
from launcher.feed.remote.tf_data import tf_dataset as _tf_dataset

__all__ = ["tf_dataset"]


@named_arguments("tf_dataset")
def tf_dataset(names: Names, *, lines: bool = False) -> Any:
    """Return the records of this task's share of data files, as a ``tf.data.Dataset``.

    ::

        from launcher.data import tf_dataset

        records = tf_dataset("hdfs://namenode:8020/samples/*.tfrecord")

    It is like `launcher.TFNodeContext.tf_dataset`, which says how the files are shared. Chief and workers are
    those of the launch that has started the program. A program that no launch has started reads all records.

    Args:
        names: A path or URL of TFRecord files, or a list of them. They may be patterns.
        lines: Whether they are files of text, whose records are lines without their ends.

    Returns:
        The dataset. Its elements are scalars of ``tf.string``. Every iteration reads the files again.

    Raises:
        InputError: No file has such a name, or an argument is wrong.
        StorageError: A URL cannot be read. While iterating, TensorFlow raises an error with its message.
    """
    # launch sets these variables for each task. Without them the program is no task, and reads all records.
    share = Share()
    if cluster := os.environ.get("CLUSTER_SPEC"):
        share = share_of(os.environ["JOB_NAME"], int(os.environ["TASK_INDEX"]), json.loads(cluster))
    return _tf_dataset(names, share, lines=lines)
