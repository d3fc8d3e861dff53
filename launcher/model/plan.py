"""A plan: who runs where (before ports are known), and with what (after)."""

from __future__ import annotations

from launcher.model.host import Host
from launcher.model.job import Role
from launcher.model.records import TYPE_CHECKING, NamedTuple
from launcher.model.task import TaskId

if TYPE_CHECKING:
    from typing import Mapping, Optional, Tuple


class Placed(NamedTuple):
    """One task and the host it was given."""

    task: TaskId
    role: Role
    host: Host
    #: Ids of the GPUs that are this task's alone; ``()``: it must see none;
    #: ``None``: ``CUDA_VISIBLE_DEVICES`` is not touched.
    gpus: Optional[Tuple[str, ...]] = None
    #: Variables of ours that are this task's, or its host's: not for the user to overrule.
    env: Tuple[Tuple[str, str], ...] = ()


class Placement(NamedTuple):
    """All tasks in the order of the table (chief, worker, ps, evaluator, others), and remarks."""

    tasks: Tuple[Placed, ...]
    notes: Tuple[str, ...] = ()

    def told(self, variables: Mapping[TaskId, Mapping[str, str]]) -> Placement:
        """The same, with more of our variables for some tasks."""
        more = ((placed, tuple(variables.get(placed.task, {}).items())) for placed in self.tasks)
        return self._replace(tasks=tuple(placed._replace(env=placed.env + new) for placed, new in more))

    def hosts(self) -> Tuple[Host, ...]:
        """The hosts in use, in the order their first task is listed."""
        return tuple({placed.host.name: placed.host for placed in self.tasks}.values())


class TaskPlan(NamedTuple):
    """Everything an agent needs to start one task."""

    task: TaskId
    host: str
    #: ``host:port`` that other tasks connect to, brackets around an IPv6 address.
    address: str
    port: int
    #: The command; ``argv[0]`` may be a bare name, looked up along the task's ``PATH``.
    argv: Tuple[str, ...]
    #: What is added to the agent's own environment.
    env: Mapping[str, str]
    #: Where it runs; ``None``: where the agent runs.
    workdir: Optional[str] = None
    gpus: Optional[Tuple[str, ...]] = None
    #: The virtual or conda environment it runs in: a folder, or the name of one of conda's.
    venv: Optional[str] = None
    #: The file that its Python runs, if that is what it does.
    script: Optional[str] = None


class Plan(NamedTuple):
    """What will be started: one entry a task, and the whole ClusterSpec as ``role -> addresses``."""

    tasks: Tuple[TaskPlan, ...]
    cluster: Mapping[str, Tuple[str, ...]]
