"""The name of a task. Hosts with Python 3.8 import this module."""

from __future__ import annotations

#: The environment variable that marks every process of a task; its value is ``JOB:ROLE/INDEX``.
TASK_MARK = "TF_LAUNCHER_TASK"
#: The task types of TensorFlow 2 (``tensorflow/python/distribute/multi_worker_util.py``); any other role is
#: the user's own.
TENSORFLOW_ROLES = ("chief", "worker", "ps", "evaluator")


class TaskId(str):
    """``role/index``, as in ``worker/0``: one process of the job.

    It is a string, so that messages, JSON and file names hold it without conversion. It is the short form of
    TensorFlow's ``/job:worker/task:0``.
    """

    __slots__ = ()

    @classmethod
    def of(cls, role: str, index: int) -> TaskId:
        """The name of a task.

        Args:
            role: ``worker``, or another one.
            index: of the task in its role, from 0.

        Returns:
            ``role/index``.
        """
        return cls(f"{role}/{index}")

    @property
    def role(self) -> str:
        """The name of the role, ``worker`` in ``worker/0``."""
        return self.rpartition("/")[0]

    @property
    def index(self) -> int:  # type: ignore[override]  # str.index is of no use for the name of a task
        """The index within the role, from 0."""
        return int(self.rpartition("/")[2])

    @property
    def file_stem(self) -> str:
        """The name with a dash, ``worker-0``: the name of the log file without its suffix."""
        return self.replace("/", "-")

    def is_own_host(self, host: str) -> bool:
        """Whether a host has the name of this task, as its own container has.

        Args:
            host: the name of a host.

        Returns:
            ``True``: the host is called ``worker-0``, if this is ``worker/0``.
        """
        return host == self.file_stem.replace("_", "-").lower()
