"""What a function finds in a node: ``ctx``, `TFNode` and `compat`, named as in TensorFlowOnSpark.

Functions of users call it in tasks. TensorFlow is imported only by what needs it, never with this module.
"""

from __future__ import annotations

import enum
import getpass
import os
import re
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from launcher.common import arguments
from launcher.common.arguments import Arguments, named_arguments
from launcher.common.cluster import TRAINING_ROLES
from launcher.common.errors import Fault, InputError
from launcher.feed.remote.data_feed import DataFeed, dataset
from launcher.feed.remote.readers import Names
from launcher.feed.remote.tf_data import Share, share_of, tf_dataset

if TYPE_CHECKING:
    from launcher.feed.remote.connect import DriverRoutes
#: The start of a path on another file system, which stays as it is.
_URL_SCHEMES = re.compile(r"(adl|file|gs|hdfs|oss|s3|s3a|s3n|swift|viewfs|wasb|abfs|abfss|https?)://")


class InputMode(enum.IntEnum):
    """Where the rows of a cluster come from, for ``input_mode`` of `TFCluster.run`."""

    TENSORFLOW = 0  #: The function reads the rows itself.
    SPARK = 1  #: The program feeds the rows by `TFCluster.train` and `TFCluster.inference`.
    FEED = 1  #: Another name of `SPARK`.


@dataclass(eq=False, repr=False)
class TFNodeContext:
    """The place of a node in its cluster: ``ctx``, the second argument of a function.

    ::

        def train(args, ctx):
            feed = ctx.get_data_feed()
            while not feed.should_stop():
                batch = feed.next_batch(100)

    Attributes:
        worker_num: The number of this node among all nodes, from 0. Parameter servers come first, then chief,
            evaluator and workers.
        executor_id: The same number.
        job_name: The role of the node, such as ``worker``.
        task_index: The number of the node in its role, from 0.
        num_workers: The number of nodes that train: chief and workers.
        cluster_spec: The addresses of all nodes by role, ``{"worker": ["host:port", ...], ...}``.
        working_dir: The folder in which the process of the function runs.
        output_dir: A folder of the node's own, which is collected into the run's folder when the job has
            ended.
        defaultFS: The file system of paths without a scheme for `TFNode.hdfs_path`, ``file://``.
        mgr: The argument of ``TFNode.DataFeed(ctx.mgr)``. None if the cluster is not fed.
        attempt: The number of the start of this node: 1, and one more after each restart (``restarts=``).
        tmp_socket: None, because the port is held for as long as the task runs, and a server can use it
            anyway.
    """

    executor_id: int = 0
    job_name: str = ""
    task_index: int = 0
    cluster_spec: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defaultFS: str = "file://"  # noqa: N815 - TensorFlowOnSpark's name
    working_dir: str = "."
    mgr: DriverRoutes | None = None
    num_workers: int = 0
    output_dir: str = ""
    attempt: int = field(default_factory=lambda: int(os.environ.get("LAUNCH_ATTEMPT", "1")))
    tmp_socket: None = None

    def __post_init__(self) -> None:
        """Set ``worker_num``, and count the nodes that train unless their number was passed."""
        self.worker_num = self.executor_id
        training = [addresses for role, addresses in self.cluster_spec.items() if role in TRAINING_ROLES]
        self.num_workers = self.num_workers or sum(map(len, training))

    def __repr__(self) -> str:
        return f"<TFNodeContext {self.job_name}/{self.task_index}, node {self.executor_id}>"

    @property
    def is_chief(self) -> bool:
        """Whether this node writes checkpoints and models.

        It is the chief, or the first worker if there is no chief.
        """
        if self.job_name == "worker" and not {"chief", "master"} & set(self.cluster_spec):
            return self.task_index == 0
        return self.job_name in ("chief", "master")

    def absolute_path(self, path: str | os.PathLike[str]) -> str:
        """Return an absolute path for `open` and the like.

        Args:
            path: The path. A relative path is below the working folder, and ``~`` is the home folder.

        Returns:
            The absolute path. A path with a scheme (``hdfs://``) is returned unchanged.
        """
        path = os.fspath(path)
        if _URL_SCHEMES.match(path):
            return path
        return os.path.normpath(os.path.join(self.working_dir, os.path.expanduser(path)))

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """Start the TensorFlow server of this node, on its own port of the cluster.

        Args:
            num_gpus: Ignored, because the GPUs of a task are assigned before it starts (``gpus=``).
            rdma: Must be ``False``, because TensorFlow 2 has no other protocol than gRPC.

        Returns:
            The ``tf.train.ClusterSpec`` of the cluster, and the server. Sessions connect to the ``target`` of
            the server.

        Raises:
            ValueError: ``rdma`` is true, or the node is not in a cluster.
        """
        if rdma:
            raise ValueError("rdma=True: TensorFlow 2 has no protocol for it; expected False")
        if not self.cluster_spec:
            raise ValueError("this node is not in a cluster, so no server can start")
        tf = _tensorflow()
        cluster = tf.train.ClusterSpec(self.cluster_spec)
        job, index = self.job_name, self.task_index
        return cluster, tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc")

    def export_saved_model(
        self, model: Any, export_dir: str, tag_set: Any = None, signatures: Any = None
    ) -> None:
        """Write a model for serving, in TensorFlow's SavedModel format.

        Args:
            model: A model of Keras (2 or 3), or a ``tf.Module``.
            export_dir: The folder for the model. A relative path is below the working folder.
            tag_set: Ignored, because the format has only one tag, ``serve``.
            signatures: The signatures of the model, see ``tf.saved_model.save``.

        Raises:
            ValueError: The model is a session of TensorFlow 1.
        """
        TFNode.export_saved_model(model, self.absolute_path(export_dir), tag_set, signatures)

    @named_arguments("get_data_feed")
    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Any = None,
    ) -> DataFeed:
        """Return the feed from which the function reads the rows that the program feeds.

        Args:
            train_mode: ``False`` if the function returns a result for each row.
            qname_in: The name of the feed, one of ``queues`` in `TFCluster.run`.
            qname_out: Ignored, because results travel back on the feed of their rows.
            input_mapping: A dict ``{column: name}``. Each batch is then a dict of columns, ``{name:
                values}``. Rows with names (dicts, named tuples, structured arrays) are read by these names.
                Columns of other rows are in the order of the mapping, which must be sorted.

        Returns:
            The feed. All feeds of one name in a node share their rows.

        Raises:
            InputError: The cluster was not started with ``input_mode=InputMode.FEED``, or ``input_mapping``
                is not a dict with each name once.
        """
        if self.mgr is None:
            expected = "start the cluster with input_mode=InputMode.FEED"
            raise InputError([Fault("DataFeed", "nothing feeds this node", expected)])
        call = Arguments("DataFeed")
        train_mode = call.optional("train_mode", train_mode, arguments.flag, default=True)
        qname_in = call.read("qname_in", qname_in, arguments.text)
        input_mapping = call.optional("input_mapping", input_mapping, _input_mapping)
        call.check()
        return DataFeed(self.mgr.connect_feed, train_mode, qname_in, qname_out, input_mapping)

    @named_arguments("get_dataset")
    def get_dataset(self, output_signature: Any, batch_size: int, qname: str = "input") -> Any:
        """Return the rows that the program feeds, as a ``tf.data.Dataset`` of batches.

        ::

            row = (tf.TensorSpec([784], tf.float32), tf.TensorSpec([], tf.int64))
            model.fit(ctx.get_dataset(row, batch_size=64))

        Args:
            output_signature: The ``tf.TensorSpec`` of one row, or a tuple or dict of them.
            batch_size: The number of rows in a batch. The last batch may be shorter.
            qname: The name of the feed, one of ``queues`` in `TFCluster.run`.

        Returns:
            The dataset. Each of its tensors has the shape ``[batch, *shape of a row]``.

        Raises:
            InputError: The cluster was not started with ``input_mode=InputMode.FEED``, or the signature is
                something else.
        """
        call = Arguments("get_dataset")
        batch_size = call.read("batch_size", batch_size, arguments.whole(1))
        call.check()
        return dataset(self.get_data_feed(qname_in=qname), output_signature, batch_size)

    @named_arguments("tf_dataset")
    def tf_dataset(self, names: Names, *, lines: bool = False) -> Any:
        """Return the records of this node's share of data files, as a ``tf.data.Dataset``.

        ::

            records = ctx.tf_dataset("hdfs://namenode:8020/samples/*.tfrecord")
            model.fit(records.shuffle(10_000).batch(64).map(parse))

        Chief and workers share the files, and so do the instances of `TFParallel`. An evaluator and a
        parameter server read all of them. If there are at least as many files as nodes that share them, each
        node reads whole files. Otherwise each node reads all files, and takes every n-th record. Shares may
        differ in size: where all nodes must take the same number of steps, repeat the dataset and count the
        steps. TensorFlow's own sharding is switched off for this dataset. It is not for a
        ``ClusterCoordinator``, whose workers read the datasets that the chief describes.

        Args:
            names: A path or URL of TFRecord files, or a list of them. They may be patterns (``*.tfrecord``).
                TensorFlow reads paths and the URLs that it knows, such as ``gs://``. Others, such as
                ``hdfs://`` and ``s3://``, are read by fsspec. Files named ``*.gz`` are unpacked.
            lines: Whether they are files of text, whose records are lines without their ends.

        Returns:
            The dataset. Its elements are scalars of ``tf.string``. Every iteration reads the files again.

        Raises:
            InputError: No file has such a name, or an argument is wrong.
            StorageError: A URL cannot be read. While iterating, TensorFlow raises an error with its message.
        """
        # An instance of TFParallel is in no cluster.
        share = Share(self.worker_num, max(1, self.num_workers))
        if self.cluster_spec:
            share = share_of(self.job_name, self.task_index, self.cluster_spec)
        return tf_dataset(names, share, lines=lines)

    def release_port(self) -> None:
        """Do nothing, because a server can use the node's port while the launcher holds it."""


def _input_mapping(value: Any) -> Mapping[Any, str]:
    """Read the argument ``input_mapping``: the columns of the rows, and the name of each in a batch.

    Raises:
        ValueError: This is not a dict with each name once and columns of one kind.
    """
    expected = "expected a dict: the columns of the rows, and their names in a batch, each once"
    names: Mapping[Any, str] = arguments.mapping(_column, arguments.text, expected)(value)
    has_twins = len(set(names.values())) < len(names)
    if not names or has_twins or len(set(map(type, names))) > 1:
        raise ValueError(expected)
    return names


def _column(value: Any) -> Any:
    """Return the name of a column, or its number."""
    return arguments.text(value) if isinstance(value, str) else arguments.whole()(value)


class TFNode:
    """Stands in for the module ``TFNode`` of TensorFlowOnSpark."""

    #: Starts the TensorFlow server of a node, as `TFNodeContext.start_cluster_server` does.
    start_cluster_server = staticmethod(TFNodeContext.start_cluster_server)
    #: Does nothing, see `TFNodeContext.release_port`.
    release_port = staticmethod(TFNodeContext.release_port)

    @staticmethod
    def hdfs_path(ctx: Any, path: str | os.PathLike[str]) -> str:
        """Return a path with a scheme, such as ``file:///data/x``.

        Args:
            ctx: The context of the node. Its ``defaultFS`` is the scheme of paths that have none.
            path: The path. A path with a scheme is returned unchanged. A relative path is below the working
                folder, or on HDFS below the user's home folder.

        Returns:
            The path with its scheme.
        """
        path = os.path.expanduser(os.fspath(path))
        if _URL_SCHEMES.match(path):
            return path
        if not path.startswith("/"):
            is_on_hdfs = ctx.defaultFS.startswith(("hdfs://", "viewfs://"))
            path = os.path.join(f"/user/{getpass.getuser()}" if is_on_hdfs else ctx.working_dir, path)
        return f"{ctx.defaultFS}{os.path.normpath(path)}"

    @staticmethod
    def export_saved_model(model: Any, export_dir: str, tag_set: Any = None, signatures: Any = None) -> None:
        """Write a model for serving, in TensorFlow's SavedModel format.

        Args:
            model: A model of Keras (2 or 3), or a ``tf.Module``.
            export_dir: The folder for the model.
            tag_set: Ignored, because the format has only one tag, ``serve``.
            signatures: The signatures of the model, see ``tf.saved_model.save``.

        Raises:
            ValueError: The model is a session of TensorFlow 1.
        """
        tf = _tensorflow()
        # Other classes of sessions have this attribute.
        if isinstance(model, tf.compat.v1.Session) or hasattr(model, "sess_str"):
            raise ValueError(
                "a session cannot be exported; expected a model (or use tf.compat.v1.saved_model)"
            )
        if hasattr(model, "export") and signatures is None:  # Keras 3: its save() writes no SavedModel
            model.export(export_dir)
        else:
            tf.saved_model.save(model, export_dir, signatures=signatures)

    @staticmethod
    def DataFeed(mgr: Any, *args: Any, **kwargs: Any) -> DataFeed:  # noqa: N802 - TensorFlowOnSpark's name
        """Return the feed from which the function reads the rows that the program feeds.

        Args:
            mgr: The attribute ``mgr`` of the node's context.
            args: The arguments of `TFNodeContext.get_data_feed`.
            kwargs: The same arguments by name.

        Returns:
            The feed.

        Raises:
            InputError: The cluster was not started with ``input_mode=InputMode.FEED``, or ``input_mapping``
                is not a dict with each name once.
        """
        # Programs for TensorFlowOnSpark pass only ``ctx.mgr``, which is all that a feed needs of a context.
        return TFNodeContext(mgr=mgr).get_data_feed(*args, **kwargs)


class compat:  # noqa: N801 - stands for a module of this name
    """Stands in for the module ``compat`` of TensorFlowOnSpark."""

    @staticmethod
    def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
        """Write a model for serving. All workers must call this, and only the chief's model is kept.

        In synchronous training all workers take part when a model is written.

        Args:
            model: A model of Keras (2 or 3), or a ``tf.Module``.
            export_dir: The folder for the model.
            is_chief: Whether this node keeps the model: ``ctx.is_chief``.

        Raises:
            ValueError: The model is a session of TensorFlow 1.
        """
        if is_chief:
            TFNode.export_saved_model(model, export_dir)
            return
        with tempfile.TemporaryDirectory(prefix="tf-launcher-") as folder:
            TFNode.export_saved_model(model, os.path.join(folder, "model"))

    @staticmethod
    def disable_auto_shard(options: Any) -> None:
        """Set the options of a dataset to skip no rows, because each worker is fed rows of its own already.

        Args:
            options: A ``tf.data.Options``, which is changed.
        """
        tf = _tensorflow()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    @staticmethod
    def is_gpu_available() -> bool:
        """Return whether TensorFlow finds a GPU that the task may use.

        Returns:
            True if there is at least one.
        """
        return bool(_tensorflow().config.list_physical_devices("GPU"))


def _tensorflow() -> Any:
    """Import the TensorFlow of the task. A function without TensorFlow can use a context, too."""
    import tensorflow as tf  # noqa: PLC0415 - the user's, in the task

    return tf
