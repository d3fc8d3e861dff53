"""A task's name."""

from __future__ import annotations

#: The variable that marks every process of a task, in its environment: ``JOB:ROLE/INDEX``.
TASK_MARK = "TF_LAUNCHER_TASK"
#: Where a task finds the folder for what it makes, if it has one.
OUTPUT_DIR = "OUTPUT_DIR"
#: Where a task on another machine finds what leads to a program on the launcher's: ``host:port`` there.
RELAY = "LAUNCH_RELAY"
#: What each task finds in its environment, and nobody else can set.
RESERVED_VARIABLES = ("TF_CONFIG", "JOB_NAME", "TASK_INDEX", "CLUSTER_SPEC", "TASK_ADDRESS", TASK_MARK)


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
    def index(self) -> int:  # type: ignore[override]  # nobody looks for a letter in a task's name
        """The index within the role, from 0."""
        return int(self.rpartition("/")[2])

    @property
    def file_stem(self) -> str:
        """The name with a dash, ``worker-0``: what its log file is called."""
        return self.replace("/", "-")

    def names(self, host: str) -> bool:
        """Whether a host is called after this task, as a container of its own is (``worker-0``)."""
        return host == self.file_stem.replace("_", "-").lower()
