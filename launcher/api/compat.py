"""``launcher.compat``: a few things that TensorFlow's versions do differently, by TensorFlowOnSpark's
names."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from launcher.api.tfnode import export_saved_model


class compat:  # noqa: N801 - it stands for a module of that name
    """What the module ``tensorflowonspark.compat`` offers."""

    @staticmethod
    def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
        """Write a model for serving.

        All workers are to call this: in synchronous training they have something to say to each other when a
        model is written. Only what the chief writes is kept.
        """
        if is_chief:
            export_saved_model(model, export_dir)
            return
        with tempfile.TemporaryDirectory(prefix="tf-launcher-") as folder:
            export_saved_model(model, os.path.join(folder, "model"))

    @staticmethod
    def disable_auto_shard(options: Any) -> None:
        """Of a ``tf.data.Options``: every worker gets rows of its own already, none are to be skipped."""
        import tensorflow as tf

        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    @staticmethod
    def is_gpu_available() -> bool:
        """Whether TensorFlow sees a GPU."""
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
