"""Writes a job as a file of Docker Compose: a service for each task, in the network of the project.

``launch export compose`` calls `compose_file` with an `ExportedJob`. The module turns it into text: it reads
no file and asks no Docker engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.backends.docker.container import Container, containers
from launcher.backends.docker.options import DockerOptions
from launcher.common.text import join_names
from launcher.export.exported import ExportedJob, heading, to_yaml
from launcher.job import PlacedTask, TaskPlan

#: What a file of Docker Compose cannot do, though other forms can.
_LEFT_OUT_NOTE = "--timeout, --restarts, --on-failure, docker: options, "


def compose_file(job: ExportedJob, options: DockerOptions, user: str) -> str:
    """Return the Compose file of a job, as YAML.

    Args:
        job: The job. Each task is on a host of its own, whose name becomes the name of its service.
        options: The options of the containers.
        user: The user that runs the tasks, as ``UID:GID``.
    """
    # The GPUs are those of the machine that uses the file, so only their number is known.
    no_gpu_ids: dict[str, Sequence[str]] = {host.name: () for host in job.placement.hosts()}
    # The engine counts as one of this machine (`here`), so the folders of tasks are mounted from it.
    described = containers(options, job.spec, job.placement, no_gpu_ids, here=True)
    services = {
        container.host: _service(job, placed, task, container, user, options.pull)
        for container, placed, task in zip(described, job.placement.tasks, job.plan.tasks, strict=True)
    }
    return heading(job, "compose", _LEFT_OUT_NOTE, _usage(job)) + to_yaml({"services": services})


def _usage(job: ExportedJob) -> Iterator[str]:
    """Yield lines for the comment of the file: the commands that use it, and what it cannot do."""
    deciding = job.deciding_tasks()
    # The name of a task's host is that of its service.
    names = [task.host for task in job.plan.tasks if task.task in deciding]
    others = [task for task in job.plan.tasks if task.task not in deciding]
    yield "    docker compose -f FILE up --detach"
    yield f"    docker wait $(docker compose -f FILE ps --all --quiet {' '.join(names)})"
    yield "    docker compose -f FILE logs"
    yield "    docker compose -f FILE down"
    yield (
        "The second line waits for the tasks that decide when the job is done, and prints their exit "
        "codes. With up --abort-on-container-exit, the first task that exits would stop all others. When a "
        "task fails, the others run on."
    )
    if others:
        yield f"Only the last line stops {join_names([task.host for task in others])}."
    if job.copied_env:  # Variables whose values launch takes from its environment.
        copied = join_names(job.copied_env)
        yield f"The values of {copied} are not here: they must be set where docker compose runs."
    yield "All tasks run on one machine, which must contain the images and the folders below."


def _service(
    job: ExportedJob, placed: PlacedTask, task: TaskPlan, container: Container, user: str, pull: str
) -> dict[str, Any]:
    """Return the service of a task: its container with the command, variables, mounts and limits.

    Args:
        job: The job.
        placed: The task with its GPUs.
        task: The plan of the same task.
        container: The container of the task.
        user: The user that runs the task, as ``UID:GID``.
        pull: When the image is pulled, in the words of Docker's option.
    """
    completed = job.completed(task)

    def text(value: str) -> str:
        """Return a text as the file must write it: Compose replaces $NAME by a variable, and $$ by a $."""
        return value.replace("$", "$$")

    gpus = [{"driver": "nvidia", "count": len(placed.gpus or ()), "capabilities": ["gpu"]}]
    service: dict[str, Any] = {
        "image": text(container.image),
        # To pull an image that is missing is the default. A value of None is left out below.
        "pull_policy": None if pull == "missing" else pull,
        "entrypoint": [text(completed.argv[0])],
        "command": list(map(text, completed.argv[1:])),
        "environment": {
            **{name: text(value) for name, value in completed.env.items()},
            # Compose takes the value of a variable without one from its own environment.
            **dict.fromkeys(job.copied_env),
        },
        "user": user,
        # Without an init process the program would be process 1, which ignores SIGTERM by default.
        "init": True,
        "restart": "no",
        "stop_grace_period": f"{math.ceil(job.spec.policy.grace)}s",
        "working_dir": completed.workdir and text(completed.workdir),
        "volumes": [
            {
                "type": "bind",
                "source": text(mount.source),
                "target": text(mount.target),
                "read_only": mount.read_only,
            }
            for mount in container.mounts
        ],
        "mem_limit": container.memory,
        "cpus": placed.role.cpus,
        "deploy": {"resources": {"reservations": {"devices": gpus}}} if placed.gpus else None,
    }
    return {name: value for name, value in service.items() if value is not None}
