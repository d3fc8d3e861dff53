"""``ctx``: what a function is given to know where in the cluster it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from launcher.feed.remote.connect import Connector
    from launcher.feed.remote.data_feed import DataFeed

#: Roles whose tasks train, in the sense of ``num_workers``.
TRAINING = ("master", "chief", "worker")


class Feeds:
    """How a task comes to its feeds; what TensorFlowOnSpark calls ``ctx.mgr``.

    Args:
        doors: of the driver.
    """

    def __init__(self, doors: Connector) -> None:
        self._doors = doors

    def connect(self, feed: str) -> socket.socket:
        """A connection for a feed.

        Raises:
            OSError: the driver can't be reached.
        """
        line: socket.socket = self._doors.connect("feed", feed=feed)
        return line


class TFNodeContext:
    """A node of the cluster, with the names of TensorFlowOnSpark.

    Attributes:
        worker_num, executor_id: the number of this node among all, from 0: ps first, then chief, evaluator,
            workers.
        job_name, task_index: its role, and its number there.
        num_workers: how many nodes train: chief and workers.
        cluster_spec: addresses by role, ``{"worker": ["host:port", ...], ...}``.
        working_dir: where it runs.
        output_dir: a folder of its own, which is collected into the run's folder when the job is over.
        defaultFS: ``file://``.
        mgr: for ``TFNode.DataFeed(ctx.mgr)``.
        tmp_socket: ``None``; the port is kept for as long as the task runs, and a server can have it all the
            same.
    """

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: Mapping[str, Sequence[str]] | None = None,
        defaultFS: str = "file://",  # noqa: N803 - its name is known
        working_dir: str = ".",
        mgr: Feeds | None = None,
        num_workers: int | None = None,
        output_dir: str = "",
    ) -> None:
        self.worker_num = self.executor_id = executor_id
        self.job_name = job_name
        self.task_index = task_index
        self.cluster_spec = {role: list(found) for role, found in (cluster_spec or {}).items()}
        training = sum(len(found) for role, found in self.cluster_spec.items() if role in TRAINING)
        self.num_workers = training if num_workers is None else num_workers
        self.defaultFS = defaultFS
        self.working_dir = working_dir
        self.mgr = mgr
        self.tmp_socket = None
        self.output_dir = output_dir

    @classmethod
    def of_task(cls, facts: Mapping[str, Any], doors: Connector) -> TFNodeContext:
        """That of the task that this process is.

        Args:
            facts: what the driver says of it.
            doors: of the driver.
        """
        role, _, index = str(doors.hello["task"]).rpartition("/")
        nodes = {task.rpartition("/")[0] for task in facts["numbers"]}  # there may be others: TensorBoard
        cluster = json.loads(os.environ.get("CLUSTER_SPEC") or "{}")
        cluster = {name: found for name, found in cluster.items() if name in nodes}
        output = os.environ.get("OUTPUT_DIR", "")
        return cls(
            facts["numbers"][doors.hello["task"]], role, int(index), cluster,
            working_dir=os.getcwd(), mgr=Feeds(doors), output_dir=output,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<TFNodeContext {self.job_name}/{self.task_index}, node {self.executor_id}>"

    @property
    def is_chief(self) -> bool:
        """Whether it is the one that writes checkpoints and models: the chief, or the first worker without
        one."""
        if self.job_name == "worker" and not {"chief", "master"} & set(self.cluster_spec):
            return self.task_index == 0
        return self.job_name in ("chief", "master")

    def absolute_path(self, path: str) -> str:
        """A path without a scheme, made absolute: relative ones are below the working folder."""
        from launcher.api.tfnode import hdfs_path

        return hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """Start the TensorFlow server of this node: see `launcher.TFNode.start_cluster_server`."""
        from launcher.api.tfnode import start_cluster_server

        return start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(
        self, model: Any, export_dir: str, tag_set: Any = None, signatures: Any = None
    ) -> None:
        """Write a model for serving: see `launcher.TFNode.export_saved_model`."""
        from launcher.api.tfnode import export_saved_model

        export_saved_model(model, self.absolute_path(export_dir), tag_set, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Any = None,
    ) -> DataFeed:
        """The rows that the driver feeds.

        Args:
            train_mode: ``False``: results are given back for them.
            qname_in, qname_out: names of the feeds.
            input_mapping: columns of the rows to names, for batches that are dicts.

        Raises:
            RuntimeError: nobody feeds this node.
            InputError: ``input_mapping`` is no dict.
        """
        from launcher.api.tfnode import TFNode

        if self.mgr is None:
            raise RuntimeError("nobody feeds this node: there is no driver with TFCluster.train")
        feed: DataFeed = TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)
        return feed

    def get_dataset(self, output_signature: Any, batch_size: int, qname: str = "input") -> Any:
        """The same as a ``tf.data.Dataset`` of batches; see `launcher.feed.remote.dataset`."""
        from launcher.feed.remote.dataset import dataset

        return dataset(self.get_data_feed(qname_in=qname), output_signature, batch_size)

    def release_port(self) -> None:
        """Nothing is to be done: a server can have the node's port while it is kept from everybody else."""
