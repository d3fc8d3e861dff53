"""What a run's folder is made of: the one place that knows the names."""

from __future__ import annotations

from launcher.model.records import NamedTuple
from launcher.model.task import TaskId


class RunPaths(NamedTuple):
    """The files of one run, below ``root`` (a path without a slash at its end)."""

    root: str

    @property
    def plan(self) -> str:
        """The plan as it was started: hosts, ports, commands; environment values only where they are ours."""
        return f"{self.root}/plan.json"

    @property
    def events(self) -> str:
        """One JSON object a line: every fact but output, every remark, in the order they came."""
        return f"{self.root}/events.jsonl"

    @property
    def report(self) -> str:
        """How it ended; there only when it has ended."""
        return f"{self.root}/report.json"

    @property
    def owner(self) -> str:
        """Which launcher process runs it: pid, its start time, the boot it belongs to."""
        return f"{self.root}/launcher.json"

    @property
    def logs(self) -> str:
        """The folder of the logs."""
        return f"{self.root}/logs"

    def output(self, task: TaskId) -> str:
        """The folder for what a task makes, if it was given one."""
        return f"{self.root}/output/{task.file_stem}"

    def log(self, task: TaskId) -> str:
        """The raw bytes a task printed."""
        return f"{self.root}/logs/{task.file_stem}.log"
