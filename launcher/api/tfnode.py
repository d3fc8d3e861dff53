"""What a function does in its node with TensorFlow; imported there only when it is used."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from launcher.api.arguments import mapping_faults
from launcher.errors import InputError

if TYPE_CHECKING:
    from launcher.api.context import TFNodeContext

#: Paths with these before them are another file system's, and left as they are.
_SCHEMES = re.compile(r"(adl|file|gs|hdfs|oss|s3|s3a|s3n|swift|viewfs|wasb|abfs|abfss|https?)://")


def hdfs_path(ctx: Any, path: str) -> str:
    """A path that means the same wherever the node looks from.

    One with a scheme stays as it is; an absolute one too; others are below the working folder.
    """
    if _SCHEMES.match(path):
        return path
    if path.startswith("~"):
        return os.path.expanduser(path)
    return os.path.normpath(os.path.join(ctx.working_dir, path))


def start_cluster_server(ctx: TFNodeContext, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Start the TensorFlow server of this node, on its own port of the cluster.

    Args:
        num_gpus: kept for programs that have it: which GPUs a task sees is settled before it starts.
        rdma: only ``False``: TensorFlow 2 has no other protocol than gRPC.

    Returns:
        The cluster (``tf.train.ClusterSpec``) and the server, whose ``target`` sessions connect to.

    Raises:
        ValueError: RDMA is asked for, or the node is in no cluster.
    """
    if rdma:
        raise ValueError("rdma=True: TensorFlow 2 has no protocol for it; expected False")
    if not ctx.cluster_spec:
        raise ValueError("this node is in no cluster, so it has no server")
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(ctx.cluster_spec)
    server = tf.distribute.Server(cluster, job_name=ctx.job_name, task_index=ctx.task_index, protocol="grpc")
    return cluster, server


def export_saved_model(model: Any, export_dir: str, tag_set: Any = None, signatures: Any = None) -> None:
    """Write a model for serving, in TensorFlow's SavedModel format.

    Args:
        model: of Keras (2 or 3), or a ``tf.Module``; or a session of TensorFlow 1.
        export_dir: must not be there for a session.
        tag_set: for a session: ``"serve"`` or several, separated by commas.
        signatures: for a session: ``{name: {"inputs": {name: tensor}, "outputs": ..., "method_name": ...}}``;
            else what ``tf.saved_model.save`` takes.
    """
    import tensorflow as tf

    if isinstance(model, tf.compat.v1.Session) or hasattr(model, "sess_str"):
        _export_session(tf, model, export_dir, tag_set, signatures or {})
    elif hasattr(model, "export") and signatures is None:  # Keras 3: its save() writes no SavedModel any more
        model.export(export_dir)
    else:
        tf.saved_model.save(model, export_dir, signatures=signatures)


def _export_session(tf: Any, session: Any, export_dir: str, tag_set: Any, signatures: Any) -> None:
    saved_model = tf.compat.v1.saved_model
    tags = tag_set.split(",") if isinstance(tag_set, str) else list(tag_set or ["serve"])
    definitions = {
        name: saved_model.signature_def_utils.build_signature_def(
            inputs=_infos(saved_model, signature["inputs"]),
            outputs=_infos(saved_model, signature["outputs"]),
            method_name=signature.get("method_name", name),
        )
        for name, signature in signatures.items()
    }
    builder = saved_model.builder.SavedModelBuilder(export_dir)
    builder.add_meta_graph_and_variables(session, tags, signature_def_map=definitions, clear_devices=True)
    builder.save()


def _infos(saved_model: Any, tensors: Any) -> Any:
    return {name: saved_model.utils.build_tensor_info(tensor) for name, tensor in tensors.items()}


class TFNode:
    """The module of TensorFlowOnSpark that functions in nodes use, by its names."""

    hdfs_path = staticmethod(hdfs_path)
    start_cluster_server = staticmethod(start_cluster_server)
    export_saved_model = staticmethod(export_saved_model)

    @staticmethod
    def release_port(ctx: TFNodeContext) -> None:
        """Nothing is to be done: see `TFNodeContext.release_port`."""
        ctx.release_port()

    @staticmethod
    def DataFeed(  # noqa: N802 - its name is known
        mgr: Any,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Any = None,
    ) -> Any:
        """The rows that the driver feeds; ``mgr`` is ``ctx.mgr``.

        Raises:
            InputError: ``input_mapping`` is no dict.
        """
        from launcher.feed.remote.data_feed import DataFeed

        if faults := mapping_faults("DataFeed", input_mapping):
            raise InputError(faults)
        return DataFeed(mgr.connect, train_mode, qname_in, qname_out, input_mapping)
