"""The plan: every task's command and environment, once its port is known."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.job import JobSpec, Placed, Placement, Plan, ProgramKind, TaskId, TaskPlan
from launcher.planning.cluster import Cluster, cluster_of, compact, tf_cluster, tf_config
from launcher.planning.commands import classic_flags, command, role_values

#: What runs ``.py`` files where nobody says otherwise, looked up along the task's ``PATH``.
DEFAULT_PYTHON = "python3"
#: The same where the host has a virtual or conda environment: both have it by this name.
VENV_PYTHON = "python"


def assemble(job: JobSpec, placement: Placement, ports: Mapping[TaskId, int]) -> Plan:
    """Make the plan.

    Args:
        job: whose misspelt placeholders were found before (`check_program_args`).
        placement: what `place` made of the same job.
        ports: the port that is held for each task, on its host.

    Raises:
        KeyError: a task has no port.
    """
    cluster = cluster_of(placement, ports)
    assembler = _Assembler(job, placement, cluster)
    tasks = [assembler.task(placed, rank, ports[placed.task]) for rank, placed in enumerate(placement.tasks)]
    return Plan(tuple(tasks), cluster)


class _Assembler:
    """What all tasks of a plan share, made once: with hundreds of tasks the cluster's text is long."""

    def __init__(self, job: JobSpec, placement: Placement, cluster: Cluster) -> None:
        self.job = job
        self.cluster = cluster
        self.cluster_json = compact(cluster)
        self.tf_cluster_json = compact(tf_cluster(cluster))
        self.shared_values = {
            **role_values((role.name for role in job.roles), cluster),
            "world_size": str(sum(not placed.role.sidecar for placed in placement.tasks)),
            "cluster_spec": self.cluster_json,
        }

    def task(self, placed: Placed, rank: int, port: int) -> TaskPlan:
        """The plan of one task."""
        config = tf_config(self.tf_cluster_json, placed.task)
        in_venv = VENV_PYTHON if placed.host.venv else None
        python = placed.host.python or in_venv or self.job.python or DEFAULT_PYTHON
        program = placed.role.program
        argv = command(program, python, self._values(placed, rank, port, config))
        return TaskPlan(
            task=placed.task,
            host=placed.host.name,
            address=placed.host.at(port),
            port=port,
            argv=argv + classic_flags(placed, self.cluster) if self.job.flags else argv,
            env=self._env(placed, port, config),
            workdir=placed.role.workdir or placed.host.workdir or self.job.workdir,
            gpus=placed.gpus,
            venv=placed.host.venv,
            script=program.name if program.kind is ProgramKind.SCRIPT else None,
        )

    def _values(self, placed: Placed, rank: int, port: int, config: str) -> dict[str, str]:
        """What the placeholders stand for in this task."""
        return {
            **self.shared_values,
            "job_name": placed.task.role,
            "task_index": str(placed.task.index),
            "rank": str(rank),
            "task_address": placed.host.at(port),
            "task_host": placed.host.shown_address,
            "task_port": str(port),
            "tf_config": config,
        }

    def _env(self, placed: Placed, port: int, config: str) -> dict[str, str]:
        """The environment a task gets on top of its agent's: what the user set, then ours.

        The nearer to the task, the later and so the stronger: job, host, role; and what the command
        line says. Ours can't be overruled, but for the GPUs, of which the user may know better. ``JOB_NAME``,
        ``TASK_INDEX`` and ``CLUSTER_SPEC`` are named as TonY names them.
        """
        given = dict(self.job.env + placed.host.env + placed.role.env + self.job.said_env)
        gpus = {} if placed.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(placed.gpus)}
        return {
            **gpus,
            **given,
            "TF_CONFIG": config,
            "JOB_NAME": placed.task.role,
            "TASK_INDEX": str(placed.task.index),
            "CLUSTER_SPEC": self.cluster_json,
            "TASK_ADDRESS": placed.host.at(port),
            **dict(placed.env),
        }
