"""``tf_dataset``: the records of data files as a ``tf.data.Dataset`` of the share of one task.

``ctx.tf_dataset`` and `launcher.data` call it in tasks, to which this module travels. TensorFlow reads the
files itself where it can. `launcher.storage` reads all others. Nothing here reads rows that a program feeds.
"""

from __future__ import annotations

import glob
import os
from functools import partial
from itertools import chain
from typing import Any, Iterator, Mapping, Sequence

from launcher.common import arguments
from launcher.common.arguments import Arguments
from launcher.common.cluster import TRAINING_ROLES
from launcher.common.errors import Fault, InputError
from launcher.common.record import Record
from launcher.feed.remote.readers import RecordReader, opened
from launcher.storage import urls
from launcher.storage.store import find_files

#: How many bytes of lines are read at a time.
_BLOCK_BYTES = 1 << 18
#: How many batches of records are read ahead. Each contains some hundred kB, or one long record.
_BATCHES_AHEAD = 4


class Share(Record):
    """The share of one task in the records: its number, and how many tasks share the records."""

    number: int = 0
    tasks: int = 1


def share_of(role: str, index: int, cluster: Mapping[str, Sequence[str]]) -> Share:
    """Return the share of a task in a cluster: its place among master, chief and workers.

    Args:
        role: The role of the task.
        index: Its index in the role.
        cluster: The addresses of all tasks, by their roles.

    Returns:
        The share. It is everything for a task of another role, and for a task that is in no cluster.
    """
    if role not in TRAINING_ROLES or role not in cluster:
        return Share()
    before = TRAINING_ROLES[: TRAINING_ROLES.index(role)]
    counts = {name: len(cluster.get(name, ())) for name in TRAINING_ROLES}
    return Share(sum(counts[name] for name in before) + index, sum(counts.values()))


def tf_dataset(names: Any, share: Share, *, lines: Any) -> Any:
    """Return the records of a share of files, see `launcher.TFNodeContext.tf_dataset`.

    Args:
        names: The names and patterns of the files, as the user has passed them.
        share: The share.
        lines: Whether the records are lines of text, as the user has passed it.

    Raises:
        InputError: No file has such a name, or an argument is wrong.
        StorageError: A file cannot be reached.
    """
    call = Arguments("tf_dataset")
    names = call.read("names", names, arguments.one_or_several(arguments.path, "paths"))
    lines = call.optional("lines", lines, arguments.flag, default=False)
    if names == []:
        call.add("names=[]", "expected names or patterns")
    call.check()
    import tensorflow as tf  # noqa: PLC0415 - the user's, in the task

    if tf.inside_function():
        # All workers of a coordinator that traces this would read the share of the chief.
        expected = "a coordinator's workers have no share: use tf.data, and shard by their input_pipeline_id"
        raise InputError([Fault("tf_dataset", "it was called within a tf.function", expected)])
    native = ("", "file", *tf.io.gfile.get_registered_schemes())
    found = chain.from_iterable(_files(tf, name, is_native=urls.scheme_of(name) in native) for name in names)
    files = sorted(set(found))
    # Every task takes whole files if there are enough of them, and otherwise each n-th record of all files.
    if len(files) >= share.tasks:
        files, share = files[share.number :: share.tasks], Share()
    if all(urls.scheme_of(file) in native for file in files):
        open_files = tf.data.TextLineDataset if lines else tf.data.TFRecordDataset
        kinds = ["GZIP" if file.endswith(".gz") else "" for file in files]
        dataset = tf.data.Dataset.from_tensor_slices((files, kinds)).flat_map(open_files)
        dataset = dataset.shard(share.tasks, share.number)
    else:
        batches = partial(_batches, files, share, lines=lines)
        spec = tf.TensorSpec([None], tf.string)
        dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
        dataset = dataset.prefetch(_BATCHES_AHEAD).unbatch()
    options = tf.data.Options()
    # The records are shared out already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _files(tf: Any, name: str, *, is_native: bool) -> list[str]:
    """Return the files with this name, or that this pattern names.

    Args:
        tf: The module ``tensorflow``.
        name: The name or pattern.
        is_native: Whether TensorFlow can read them.

    Raises:
        InputError: There are none.
        StorageError: The same, or the store cannot be reached.
    """
    if not is_native:
        return [file.url for file in find_files(name)]
    if urls.scheme_of(name) in ("", "file"):
        name = os.path.expanduser(urls.local_path(name) or name)
        found = [name] if os.path.exists(name) else glob.glob(name, recursive=True)
        files = [file for file in found if not os.path.isdir(file)]
    else:
        files = tf.io.gfile.glob(name)
    if not files:
        problem = f"{name!r} is a folder" if os.path.isdir(name) else f"no file {urls.shown(name)!r}"
        expected = f"expected files, or a pattern as 'data/*'; looked from {os.getcwd()}"
        raise InputError([Fault("tf_dataset", problem, expected)])
    return files


def _batches(files: Sequence[str], share: Share, *, lines: bool) -> Iterator[list[bytes]]:
    """Yield the records of a share of these files, many at a time.

    Raises:
        StorageError: A file cannot be read.
        BrokenFileError: A file is damaged.
    """
    skipped = share.number
    for file in files:
        for block in _lines(file) if lines else RecordReader(path=file)().blocks:
            yield block[skipped :: share.tasks]
            # The share goes on in the next block after as many records.
            skipped = (skipped - len(block)) % share.tasks


def _lines(path: str) -> Iterator[list[bytes]]:
    """Yield some lines of a file at a time, without their ends."""
    with opened(path) as file:
        while lines := file.readlines(_BLOCK_BYTES):
            yield [line.rstrip(b"\r\n") for line in lines]
