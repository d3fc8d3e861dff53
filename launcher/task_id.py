"""The name of a task. Hosts with Python 3.8 import this module."""

from __future__ import annotations

#: The variable that marks every process of a task, in its environment: ``JOB:ROLE/INDEX``.
TASK_MARK = "TF_LAUNCHER_TASK"
#: The task types TensorFlow 2 knows; any other role is the user's own
#: (``tensorflow/python/distribute/multi_worker_util.py``).
TENSORFLOW_ROLES = ("chief", "worker", "ps", "evaluator")


class TaskId(str):
    """``role/index``, as in ``worker/0``: one process of the job.

    A string, so that it travels on the wire, in JSON and in file names as it is.
    The form is TensorFlow's own (``/job:worker/task:0``) in short.
    """

    __slots__ = ()

    @classmethod
    def of(cls, role: str, index: int) -> TaskId:
        """The name of task ``index`` (from 0) of ``role``."""
        return cls(f"{role}/{index}")

    @property
    def role(self) -> str:
        """The role's name, ``worker`` in ``worker/0``."""
        return self.rpartition("/")[0]

    @property
    def index(self) -> int:  # type: ignore[override]  # str.index is of no use for the name of a task
        """The index within the role, from 0."""
        return int(self.rpartition("/")[2])

    @property
    def file_stem(self) -> str:
        """The name with a dash, ``worker-0``: the name of its log file without suffix."""
        return self.replace("/", "-")

    def names(self, host: str) -> bool:
        """Whether a host is called after this task, as a container of its own is (``worker-0``)."""
        return host == self.file_stem.replace("_", "-").lower()
