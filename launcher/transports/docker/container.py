"""What a container is to be like, whose it is, and the ``docker run`` command line that starts it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from launcher.runs.owner import Owner, is_alive, is_elsewhere, this_process

#: Labels of everything a launch creates: its job, its launcher process, the machine of that, ``--keep``.
JOB, OWNER, MACHINE, KEPT = (f"tf-launcher.{name}" for name in ("job", "owner", "machine", "kept"))
#: Network of containers on the hosts of a hostfile: the host's own.
HOST_NETWORK = "host"
#: Characters that container names do not have.
_INVALID = re.compile(r"[^A-Za-z0-9_.-]")


class Mount(NamedTuple):
    """A folder or file of the engine's machine that a container sees."""

    source: str
    target: str
    read_only: bool = False


class Container(NamedTuple):
    """One host of the job, before its container exists."""

    #: The host's name in the plan.
    host: str
    image: str
    #: The image's Python that runs the agent: a path, or a name to look up along the image's PATH.
    python: str
    mounts: tuple[Mount, ...] = ()
    #: ``UID:GID`` or names the image knows; empty: the image's own user.
    user: str = ""
    #: Limits in bytes and CPUs; ``None``: no limit.
    memory: int | None = None
    cpus: float | None = None
    #: Ids of the GPUs it sees, as ``nvidia-smi`` lists them.
    gpus: tuple[str, ...] = ()
    #: Further options of ``docker run``: name without dashes -> values; passed on as they are.
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: Why the image does not fit the engine's machine; empty: it does.
    architecture: str = ""


def network_name(job: str) -> str:
    """The name of a job's network at the engine."""
    return f"tf-launcher-{job}"


def container_name(job: str, host: str) -> str:
    """The name of a host's container at the engine."""
    return f"tf-launcher-{job}-{_INVALID.sub('-', host)}"


def labels(job: str, keep: bool) -> dict[str, str]:
    """The labels of what this process creates; the owner is ``pid:start:boot:uid``."""
    me = this_process()
    return {
        OWNER: f"{me.pid}:{me.start_ticks}:{me.boot_id}:{os.getuid()}",
        MACHINE: f"{me.machine} {me.pid_namespace}",
        JOB: job,
        **({KEPT: "1"} if keep else {}),
    }


def is_dead(found: Mapping[str, str]) -> bool:
    """Whether these labels name a process of this user on this machine that has ended beyond doubt."""
    machine, _, namespace = found.get(MACHINE, "").rpartition(" ")
    try:
        pid, start, boot, uid = found.get(OWNER, "").split(":")
        owner = Owner(int(pid), int(start), boot, machine, namespace)
        mine = int(uid) == os.getuid()
    except ValueError:
        return False
    return mine and bool(machine) and not is_elsewhere(owner) and not is_alive(owner)


def label_words(marks: Mapping[str, str]) -> list[str]:
    """Labels as options of a ``docker`` command."""
    return [word for label, value in marks.items() for word in ("--label", f"{label}={value}")]


def run_words(
    container: Container, name: str, network: str, marks: Mapping[str, str], command: list[str]
) -> list[str]:
    """The arguments of ``docker`` that start a container, its stdin held open.

    No variable of the user's environment is among them: those travel to the agent.

    Args:
        container: what it is to be like.
        name: its name at the engine.
        network: that it joins; in a network of the job its host's name resolves to it.
        marks: labels; with `KEPT` the container stays when it has ended.
        command: what runs in it: the image's own entry point does not count.
    """
    words = ["run", "--interactive", "--name", name, "--network", network, "--log-driver", "none"]
    words += ["--sig-proxy=false"]
    if network != HOST_NETWORK:
        words += ["--hostname", container.host, "--network-alias", container.host]
    if KEPT not in marks:
        words += ["--rm"]
    words += [*label_words(marks), *_limits(container)]
    for mount in container.mounts:
        words += ["--mount", _mount(mount)]
    for option, values in container.options:
        words += [f"--{option}={value}" for value in values]
    return [*words, "--entrypoint", command[0], container.image, *command[1:]]


def _limits(container: Container) -> Iterator[str]:
    if container.user:
        yield from ("--user", container.user)
    if container.memory is not None:
        yield from ("--memory", str(container.memory), "--memory-swap", str(container.memory))
    if container.cpus is not None:
        yield from ("--cpus", f"{container.cpus:g}")
    if container.gpus:
        yield from ("--gpus", _csv(f"device={','.join(container.gpus)}"))


def _mount(mount: Mount) -> str:
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return ",".join(_csv(field) for field in [*fields, *(["readonly"] if mount.read_only else [])])


def _csv(field: str) -> str:
    """A field of a line of CSV, which is the syntax of these options."""
    return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n') else field
