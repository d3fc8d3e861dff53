"""For functions in the nodes of a cluster: ``ctx``, `TFNode`, `compat`; the names are TensorFlowOnSpark's.

TensorFlow is imported only by what needs it.
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
from launcher.common.errors import Fault, InputError
from launcher.feed.remote.data_feed import DataFeed, dataset

if TYPE_CHECKING:
    from launcher.feed.remote.connect import DriverRoutes
#: Roles whose tasks train: they count in ``num_workers``, and rows are fed to them.
TRAINING_ROLES = ("master", "chief", "worker")
#: Paths of another file system, which stay as they are.
_URL_SCHEMES = re.compile(r"(adl|file|gs|hdfs|oss|s3|s3a|s3n|swift|viewfs|wasb|abfs|abfss|https?)://")


class InputMode(enum.IntEnum):
    """Where the rows come from."""

    TENSORFLOW = 0  #: the function reads them itself
    SPARK = 1  #: the program feeds them: `TFCluster.train` and `TFCluster.inference`
    FEED = 1  #: another name of `SPARK`


@dataclass(eq=False, repr=False)
class TFNodeContext:
    """``ctx``, the second argument of a function: its place in the cluster. (TensorFlowOnSpark's class.)

    Attributes:
        worker_num: the number of this node among all, from 0: ps first, then chief, evaluator, workers.
        executor_id: the same.
        job_name: its role.
        task_index: its number in the role, from 0.
        num_workers: how many nodes train: chief and workers.
        cluster_spec: addresses by role, ``{"worker": ["host:port", ...], ...}``.
        working_dir: the folder in which the process of the function runs.
        output_dir: a folder of its own, which is collected into the run's folder when the job is over.
        defaultFS: ``file://``, for `TFNode.hdfs_path`.
        mgr: for ``TFNode.DataFeed(ctx.mgr)``; ``None``: the cluster is not fed.
        attempt: 1; one more each time that this node is started again (``restarts=``).
        tmp_socket: ``None``; the port is held for as long as the task runs, and a server can use it anyway.
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
        self.worker_num = self.executor_id
        training = [addresses for role, addresses in self.cluster_spec.items() if role in TRAINING_ROLES]
        self.num_workers = self.num_workers or sum(map(len, training))

    def __repr__(self) -> str:
        return f"<TFNodeContext {self.job_name}/{self.task_index}, node {self.executor_id}>"

    @property
    def is_chief(self) -> bool:
        """Whether it writes checkpoints and models: the chief; the first worker, if there is no chief."""
        if self.job_name == "worker" and not {"chief", "master"} & set(self.cluster_spec):
            return self.task_index == 0
        return self.job_name in ("chief", "master")

    def absolute_path(self, path: str | os.PathLike[str]) -> str:
        """A path for `open`.

        Args:
            path: a relative one is below the working folder, ``~`` is the home; one with a scheme
                (``hdfs://``) is unchanged.

        Returns:
            An absolute path, or the unchanged path if it has a scheme.
        """
        path = os.fspath(path)
        if _URL_SCHEMES.match(path):
            return path
        return os.path.normpath(os.path.join(self.working_dir, os.path.expanduser(path)))

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """Start the TensorFlow server of this node, on its own port of the cluster.

        Args:
            num_gpus: ignored: the GPUs of a task are assigned before it starts (``gpus=``).
            rdma: only ``False``: TensorFlow 2 has no other protocol than gRPC.

        Returns:
            The ``tf.train.ClusterSpec``, and the server, to whose ``target`` sessions connect.

        Raises:
            ValueError: RDMA is asked for, or the node is not in a cluster.
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
        """Write a model for serving.

        Args:
            model: of Keras (2 or 3), or a ``tf.Module``.
            export_dir: the folder; a relative one is below the working folder.
            tag_set: ignored: the format has one tag, ``serve``.
            signatures: see ``tf.saved_model.save``.

        Raises:
            ValueError: the model is a session of TensorFlow 1.
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
        """The rows that the driver feeds.

        Args:
            train_mode: ``False``: a result is given back for each row.
            qname_in: the name of the feed, one of ``queues`` of `TFCluster.run`.
            qname_out: ignored: results go back on the feed that their rows came from.
            input_mapping: ``{column: name}``: batches are dicts of columns then, ``{name: values}``. Rows
                with names (dicts, named tuples, structured arrays) are read by these names; those of other
                rows are in the order of the mapping, which must be sorted.

        Returns:
            The feed. All feeds of one name in a node share their rows.

        Raises:
            InputError: the cluster was not started with ``input_mode=InputMode.FEED``, or ``input_mapping``
                is not a dict of names, each once.
        """
        if self.mgr is None:
            expected = "start the cluster with input_mode=InputMode.FEED"
            raise InputError([Fault("DataFeed", "nothing feeds this node", expected)])
        found = Arguments("DataFeed")
        train_mode = found.optional("train_mode", train_mode, arguments.flag, True)
        qname_in = found.read("qname_in", qname_in, arguments.text)
        input_mapping = found.optional("input_mapping", input_mapping, _input_mapping)
        found.check()
        return DataFeed(self.mgr.connect_feed, train_mode, qname_in, qname_out, input_mapping)

    @named_arguments("get_dataset")
    def get_dataset(self, output_signature: Any, batch_size: int, qname: str = "input") -> Any:
        """The rows that the driver feeds, as a ``tf.data.Dataset`` of batches.

        Args:
            output_signature: the `tf.TensorSpec` of one row; a tuple or dict of them for such rows.
            batch_size: rows in a batch; the last one may be shorter.
            qname: the feed.

        Returns:
            The dataset; each of its tensors has the shape of a row after the dimension of the batch.

        Raises:
            InputError: the cluster was not started with ``input_mode=InputMode.FEED``, or the signature is
                something else.
        """
        found = Arguments("get_dataset")
        batch_size = found.read("batch_size", batch_size, arguments.whole(1))
        found.check()
        return dataset(self.get_data_feed(qname_in=qname), output_signature, batch_size)

    def release_port(self) -> None:
        """Does nothing: a server can use the node's port while it is held."""


def _input_mapping(value: Any) -> Mapping[Any, str]:
    expected = "expected a dict: the columns of the rows, and their names in a batch, each once"
    found: Mapping[Any, str] = arguments.mapping(_column, arguments.text, expected)(value)
    if not found or len(set(found.values())) < len(found) or len(set(map(type, found))) > 1:
        raise ValueError(expected)
    return found


def _column(value: Any) -> Any:
    """Read the name of a column, or its number."""
    return arguments.text(value) if isinstance(value, str) else arguments.whole()(value)


class TFNode:
    """The functions of TensorFlowOnSpark's module of this name."""

    #: ``TFNode.start_cluster_server(ctx, ...)`` and ``TFNode.release_port(ctx)`` are those of the context.
    start_cluster_server = staticmethod(TFNodeContext.start_cluster_server)
    release_port = staticmethod(TFNodeContext.release_port)

    @staticmethod
    def hdfs_path(ctx: Any, path: str | os.PathLike[str]) -> str:
        """A path with a scheme: ``file:///...``, or one of ``ctx.defaultFS``.

        Args:
            ctx: that of the node.
            path: one with a scheme is unchanged; a relative one is below the working folder (on HDFS below
                the user's home).

        Returns:
            The path with its scheme.
        """
        path = os.path.expanduser(os.fspath(path))
        if _URL_SCHEMES.match(path):
            return path
        if not path.startswith("/"):
            hdfs = ctx.defaultFS.startswith(("hdfs://", "viewfs://"))
            path = os.path.join(f"/user/{getpass.getuser()}" if hdfs else ctx.working_dir, path)
        return f"{ctx.defaultFS}{os.path.normpath(path)}"

    @staticmethod
    def export_saved_model(model: Any, export_dir: str, tag_set: Any = None, signatures: Any = None) -> None:
        """Write a model for serving, in TensorFlow's SavedModel format.

        Args:
            model: of Keras (2 or 3), or a ``tf.Module``.
            export_dir: the folder.
            tag_set: ignored: the format has one tag, ``serve``.
            signatures: see ``tf.saved_model.save``.

        Raises:
            ValueError: the model is a session of TensorFlow 1.
        """
        tf = _tensorflow()
        if isinstance(model, tf.compat.v1.Session) or hasattr(model, "sess_str"):
            raise ValueError(
                "a session can't be exported; expected a model (or use tf.compat.v1.saved_model)"
            )
        if hasattr(model, "export") and signatures is None:  # Keras 3: its save() writes no SavedModel
            model.export(export_dir)
        else:
            tf.saved_model.save(model, export_dir, signatures=signatures)

    @staticmethod
    def DataFeed(mgr: Any, *args: Any, **kwargs: Any) -> DataFeed:  # noqa: N802 - TensorFlowOnSpark's name
        """The rows that the driver feeds.

        Args:
            mgr: ``ctx.mgr``.
            args: those of `TFNodeContext.get_data_feed`.
            kwargs: the same, by name.

        Returns:
            The feed.

        Raises:
            InputError: see there.
        """
        return TFNodeContext(mgr=mgr).get_data_feed(*args, **kwargs)


class compat:  # noqa: N801 - stands for a module of this name
    """The functions of TensorFlowOnSpark's module of this name."""

    @staticmethod
    def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
        """Write a model for serving. All workers must call it; only the chief's model is kept.

        Args:
            model: of Keras (2 or 3), or a ``tf.Module``.
            export_dir: the folder.
            is_chief: ``ctx.is_chief``. (In synchronous training all workers take part when a model is
                written.)

        Raises:
            ValueError: the model is a session of TensorFlow 1.
        """
        if is_chief:
            TFNode.export_saved_model(model, export_dir)
            return
        with tempfile.TemporaryDirectory(prefix="tf-launcher-") as folder:
            TFNode.export_saved_model(model, os.path.join(folder, "model"))

    @staticmethod
    def disable_auto_shard(options: Any) -> None:
        """Set options of a dataset to skip no rows: each worker is fed rows of its own already.

        Args:
            options: a ``tf.data.Options``.
        """
        tf = _tensorflow()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    @staticmethod
    def is_gpu_available() -> bool:
        """Whether TensorFlow finds a GPU.

        Returns:
            ``True``: there is one that the task may use.
        """
        return bool(_tensorflow().config.list_physical_devices("GPU"))


def _tensorflow() -> Any:
    """Return the TensorFlow of the task. Tasks without it can use a node, too."""
    import tensorflow as tf  # noqa: PLC0415 - the user's, in the task

    return tf
