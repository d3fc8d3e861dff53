"""Which nodes a cluster has, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.api.arguments import count_faults
from launcher.errors import Fault, InputError
from launcher.job import RunPaths
from launcher.runs.run import json_of

#: In the order of the numbers of their nodes, as TensorFlowOnSpark hands them out.
_ORDER = ("ps", "master", "chief", "evaluator", "worker")
#: Those that rows are fed to.
_FED = ("master", "chief", "worker")
#: How long an evaluator may go on when the others are done, to finish its last evaluation.
_LAST_EVALUATION = "10m"
#: The role of TensorBoard.
BOARD = "tensorboard"


class Roles(NamedTuple):
    """The roles of a cluster.

    Attributes:
        described: by name, what a job file says of each.
        alien: names of those that run something else than the program's function.
    """

    described: Mapping[str, Mapping[str, Any]]
    alien: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[str]:
        """Those that run the function, by number."""
        names = [name for name in _ORDER if name in self.described]
        return [f"{name}/{index}" for name in names for index in range(self.described[name]["count"])]

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each task that runs the function."""
        return {task: number for number, task in enumerate(self.tasks)}

    @property
    def fed(self) -> list[str]:
        """The tasks that rows are fed to."""
        return [task for task in self.tasks if task.partition("/")[0] in _FED]

    def with_board(self, log_dir: str, here: bool) -> Roles:
        """The same, and TensorBoard.

        Args:
            log_dir: what it shows.
            here: it runs on this machine.
        """
        return Roles({**self.described, BOARD: _board(log_dir, here)}, (BOARD,))

    def info(self, run_dir: str) -> list[dict[str, Any]]:
        """Of each node where it is, once that is known."""
        plan = json_of(RunPaths(run_dir).plan) if run_dir else None
        planned = {task["task"]: task for task in plan["tasks"]} if plan else {}
        return [
            {
                "executor_id": number,
                "host": planned[task]["host"],
                "job_name": task.partition("/")[0],
                "task_index": int(task.partition("/")[2]),
                "port": planned[task]["port"],
                "addr": planned[task]["address"],
            }
            for task, number in self.numbers.items()
            if task in planned
        ]


def count_roles(num_executors: int, num_ps: int, master_node: str | None, eval_node: bool) -> Roles:
    """The roles that so many nodes make.

    Raises:
        InputError: they make none that can work; all faults at once.
    """
    if faults := role_faults("TFCluster.run", num_executors, num_ps, master_node, eval_node):
        raise InputError(faults)
    workers = num_executors - num_ps - int(bool(eval_node)) - int(bool(master_node))
    counts = {"ps": num_ps, master_node or "chief": int(bool(master_node)), "worker": workers}
    described: dict[str, Mapping[str, Any]] = {
        name: {"count": count} for name, count in counts.items() if count
    }
    if eval_node:
        described["evaluator"] = {"count": 1, "drain": _LAST_EVALUATION}
    return Roles(described)


def role_faults(who: str, num_executors: Any, num_ps: Any, master_node: Any, eval_node: Any) -> list[Fault]:
    """What is wrong with these numbers."""
    faults = [*count_faults(who, "num_executors", num_executors, 1), *count_faults(who, "num_ps", num_ps)]
    if not faults:
        faults += _room_faults(who, num_executors, num_ps, bool(master_node), bool(eval_node))
    if master_node not in (None, "", "chief", "master"):
        faults.append(Fault(who, f"master_node={master_node!r}", "expected 'chief'"))
    return faults


def _room_faults(who: str, num_executors: int, num_ps: int, chief: bool, evaluator: bool) -> list[Fault]:
    """Whether others leave room for those that train."""
    others = {"num_ps": num_ps, "the chief": int(chief), "the evaluator": int(evaluator)}
    workers = num_executors - sum(others.values())
    if workers >= 0 and workers + chief:
        return []
    taken = " and ".join(f"{name} ({count})" for name, count in others.items() if count)
    what = f"num_executors={num_executors} has no room for {taken} and a worker"
    return [Fault(who, what, "expected one worker or a chief at least; num_executors counts all of them")]


def _board(log_dir: str, here: bool) -> dict[str, Any]:
    """What a job file says of TensorBoard. On this machine nobody else is to see it."""
    whom = ["--host", "{task_host}"] if here else ["--bind_all"]
    words = ["-m", "tensorboard.main", "--logdir", log_dir, "--reload_multifile=true"]
    return {"count": 1, "sidecar": True, "command": [*words, *whom, "--port", "{task_port}"]}


def tensorboard_url(run_dir: str) -> str | None:
    """Where the TensorBoard of a run is; ``None``: it has none."""
    plan = json_of(RunPaths(run_dir).plan) if run_dir else None
    for task in plan["tasks"] if plan else ():
        if task["task"] == f"{BOARD}/0":
            return f"http://{task['address']}"
    return None
