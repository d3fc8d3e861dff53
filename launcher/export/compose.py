"""A job as a file of Docker Compose: a service for each task, in the network of the project."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.export.exported import Exported, documents, heading
from launcher.job import TaskPlan
from launcher.record import Record
from launcher.text import listed
from launcher.transports.docker.container import Mount

#: The port of each task: each has an address of its own.
PORT = 2222
#: What it says, by `launcher.export.exported.settings_of`.
SAID = ("grace",)


class Service(Record):
    """What a service has besides its task."""

    image: str
    mounts: tuple[Mount, ...]
    #: Limits: bytes, CPUs.
    memory: int | None = None
    cpus: float | None = None
    gpus: int = 0
    #: When its image is pulled: ``missing``, ``always`` or ``never``.
    pull: str = "missing"


def compose_file(job: Exported, services: Mapping[str, Service], user: str) -> str:
    """The file, as YAML.

    Args:
        job: each task is on a host of its own, whose name is that of its service.
        services: by the name of the host.
        user: ``UID:GID`` of the tasks.
    """
    made = {task.host: _service(job, task, services[task.host], user) for task in job.plan.tasks}
    return heading(job, "compose", _lines(job)) + documents({"services": made})


def _lines(job: Exported) -> Iterator[str]:
    """How the file is used, and what it can't say."""
    deciding = job.deciding()
    names = [task.host for task in job.plan.tasks if task.task in deciding]
    services = {role.name for role in job.job.roles if role.service or role.sidecar}
    others = [task for task in job.plan.tasks if task.task not in deciding]
    if len(names) == 1 and all(task.task.role in services for task in others):
        yield f"    docker compose -f FILE up --abort-on-container-exit --exit-code-from {names[0]}"
        yield "    docker compose -f FILE down"
    else:
        yield "    docker compose -f FILE up --detach"
        yield f"    docker wait $(docker compose -f FILE ps --all --quiet {' '.join(names)})"
        yield "    docker compose -f FILE logs"
        yield "    docker compose -f FILE down"
        yield (
            "The second line waits for the tasks that decide when the job is done, and prints their exit "
            "codes. With up --abort-on-container-exit the first of them to be done would end the others. A "
            "failed task ends no other one."
        )
        if others:
            yield f"Nothing ends {listed([task.host for task in others])} but the last line."
    if job.copied:
        copied = listed(job.copied)
        yield f"The values of {copied} are not here: they must be set where docker compose runs."
    yield "No task starts again. All run on one machine, which has the images and the folders below."


def _service(job: Exported, task: TaskPlan, service: Service, user: str) -> dict[str, Any]:
    made = job.completed(task)

    def text(value: str) -> str:
        return value.replace("$", "$$")

    environment: dict[str, str | None] = {name: text(value) for name, value in made.env.items()}
    environment.update(dict.fromkeys(job.copied))
    found: dict[str, Any] = {
        "image": text(service.image),
        "entrypoint": [text(made.argv[0])],
        "command": list(map(text, made.argv[1:])),
        "environment": environment,
        "user": user,
        "init": True,  # as process 1 a program ignores SIGTERM
        "restart": "no",
        "stop_grace_period": f"{math.ceil(job.job.policy.grace)}s",
    }
    if made.workdir is not None:
        found["working_dir"] = text(made.workdir)
    found["volumes"] = [
        {"type": "bind", "source": text(source), "target": text(target), "read_only": read_only}
        for source, target, read_only in service.mounts
    ]
    if service.pull != "missing":
        found["pull_policy"] = service.pull
    if service.memory is not None:
        found["mem_limit"] = service.memory
    if service.cpus is not None:
        found["cpus"] = service.cpus
    if service.gpus:
        devices = [{"driver": "nvidia", "count": service.gpus, "capabilities": ["gpu"]}]
        found["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return found
