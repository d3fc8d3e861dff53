"""The containers of a job: one for each host, their labels, and their ``docker run`` command lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from launcher.agent.identity import owner_text, this_process
from launcher.backends.docker.options import DockerOptions
from launcher.common.errors import Fault, PlacementError
from launcher.common.record import Record, replace
from launcher.common.text import join_names
from launcher.job import OUTPUT_DIR_VARIABLE, Host, JobSpec, PlacedTask, Placement

_N = TypeVar("_N")

#: Labels of everything a launch creates: its job, its launcher process, ``--keep``.
JOB_LABEL, OWNER_LABEL, KEPT_LABEL = (f"tf-launcher.{name}" for name in ("job", "owner", "kept"))
#: Network of containers on the hosts of a hostfile: the host's own.
HOST_NETWORK = "host"
#: Characters that container names do not have.
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
#: Names in ``options:`` of a job file that are not those of ``docker run`` with underscores.
_OPTION_ALIASES = {"devices": "device", "extra_hosts": "add-host", "ulimits": "ulimit"}


class Mount(Record):
    """A folder or file of the engine's machine that a container sees."""

    source: str
    target: str
    read_only: bool = False


class Container(Record):
    """One host of the job, before its container exists."""

    #: The host's name in the plan.
    host: str
    image: str
    #: The image's Python that runs the agent: a path, or a name to look up along the image's PATH.
    python: str
    mounts: tuple[Mount, ...] = ()
    #: ``UID:GID`` or names the image knows; empty: the image's own user.
    user: str = ""
    #: The limit of its memory in bytes. None if it has no limit.
    memory: int | None = None
    #: Further options of ``docker run``.
    options: tuple[str, ...] = ()


# ---------------------------------------------------------------------- hosts


def seen_inside(host: Host) -> Host:
    """A machine as its container sees it: its GPUs are numbered from 0, and the Python is the image's."""
    gpus = host.gpus and tuple(map(str, range(len(host.gpus))))
    return replace(host, gpus=gpus, python=None, venv=None)


# ---------------------------------------------------------------------- containers


def containers(
    docker: DockerOptions, spec: JobSpec, placement: Placement, gpus: Mapping[str, Sequence[str]], here: bool
) -> list[Container]:
    """A container for each host in use.

    Args:
        docker: the options, without faults.
        spec: the job; its Python is the image's.
        placement: the tasks of each.
        gpus: host -> ids of its GPUs; its container sees them if a task asks for one.
        here: mounts are of this machine, and the folders of tasks are mounted; else mounts are of the hosts.

    Raises:
        PlacementError: tasks of one host have different images.
    """
    mounts, folders = asked_mounts(docker, here)[0], task_folders(docker, spec) if here else []
    same = Container(host="", image=docker.image, python=spec.python or "python3", mounts=tuple(mounts))
    same = with_folders(same, folders, docker.read_only)
    made = []
    for host, tasks in placement.by_host().items():
        image, *more = dict.fromkeys(placed.role.image or docker.image for placed in tasks)
        if more:
            problem = (
                f"{host}: its tasks are of the images {join_names([image, *more])}, but it has one container"
            )
            raise PlacementError([Fault(tasks[0].host.source, problem, "expected hosts: in the roles")])
        options = []
        if cpus := _limits(placed.role.cpus for placed in tasks):
            options.append(f"--cpus={sum(cpus):g}")
        if any(placed.gpus for placed in tasks):
            options.append("--gpus=" + _csv(f"device={','.join(gpus[host])}"))
        for name, values in docker.engine_options:
            options += [f"--{_OPTION_ALIASES.get(name, name.replace('_', '-'))}={value}" for value in values]
        memory = sum(_limits(placed.role.memory for placed in tasks)) or None
        made.append(replace(same, host=host, image=image, options=tuple(options), memory=memory))
    return made


def with_folders(container: Container, folders: Iterable[str], read_only: bool) -> Container:
    """The container with folders of its tasks mounted at the same path; its own mounts come first."""
    usual = [Mount(folder, folder, read_only) for folder in folders if folder != "/"]
    by_target = {mount.target: mount for mount in (*usual, *container.mounts)}
    return replace(container, mounts=tuple(by_target.values()))


def with_output_mounts(container: Container, tasks: Iterable[PlacedTask]) -> Container:
    """The container with the output folders of its tasks mounted."""
    mine = (dict(placed.env) for placed in tasks)
    return with_folders(
        container, (env[OUTPUT_DIR_VARIABLE] for env in mine if OUTPUT_DIR_VARIABLE in env), read_only=False
    )


def task_folders(docker: DockerOptions, spec: JobSpec) -> list[str]:
    """The folders of this machine that tasks run in, and that their containers see."""
    workdirs = [] if docker.no_mount else [spec.workdir, *(role.workdir for role in spec.roles)]
    # A folder that is not here may be the image's own.
    return [os.path.abspath(path) for path in workdirs if path and os.path.isdir(path)]


def mount_faults(docker: DockerOptions, spec: JobSpec, here: bool) -> Iterator[Fault]:
    """The faults of mounts and folders; see `containers`."""
    yield from asked_mounts(docker, here)[1]
    if here and "/" in task_folders(docker, spec):
        expected = "expected another folder, or --no-mount"
        yield Fault("--workdir", "the root folder cannot be mounted", expected)


def asked_mounts(docker: DockerOptions, here: bool = True) -> tuple[list[Mount], list[Fault]]:
    """The mounts of job file and command line, and their faults."""
    found = [(text, _mount(text, here)) for text in docker.mounts]
    expected = "expected SRC, SRC:/DST or SRC:/DST:ro"
    faults = [Fault(f"--mount {text}", "this is not a mount", expected) for text, mount in found if not mount]
    by_target = {mount.target: mount for _, mount in found if mount}
    return list(by_target.values()), faults


def _mount(text: str, here: bool) -> Mount | None:
    """``SRC[:DST][:ro]``; ``~`` is the home here, or of each host; ``None``: it is not a mount."""
    source, *rest = text.split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
    if source and (here or not (source == "~" or source.startswith("~/"))):
        source = os.path.abspath(os.path.expanduser(source))
    target = rest[0] if rest else source
    at_home = target.startswith("~/") and not rest
    if not source or len(rest) > 1 or not (target.startswith("/") or at_home) or target == "/":
        return None
    return Mount(source, os.path.normpath(target), mode == "ro")


def _limits(limits: Iterable[_N | None]) -> list[_N]:
    """The limits of the tasks of a container; empty if a task has none."""
    given = [*limits]
    found = [one for one in given if one is not None]
    return found if len(found) == len(given) else []


# ---------------------------------------------------------------------- names and labels


def network_name(run_name: str) -> str:
    """The name of a job's network at the engine."""
    return f"tf-launcher-{run_name}"


def container_name(run_name: str, host: str) -> str:
    """The name of a host's container at the engine."""
    return f"tf-launcher-{run_name}-{_INVALID_CHARACTERS.sub('-', host)}"


def labels(run_name: str, keep: bool) -> dict[str, str]:
    """Return the labels of what this process creates."""
    return {
        OWNER_LABEL: owner_text(this_process()),
        JOB_LABEL: run_name,
        **({KEPT_LABEL: "1"} if keep else {}),
    }


def label_options(found: Mapping[str, str]) -> list[str]:
    """Labels as options of a ``docker`` command."""
    return [text for label, value in found.items() for text in ("--label", f"{label}={value}")]


def run_command(
    container: Container, name: str, network: str, its_labels: Mapping[str, str], command: list[str]
) -> list[str]:
    """The arguments of ``docker`` that start a container, its stdin held open.

    No variable of the user's environment is among them: those are sent to the agent.

    Args:
        container: to start.
        name: its name at the engine.
        network: that it joins; in a network of the job its host's name resolves to it.
        its_labels: with `KEPT_LABEL` the container stays when it has ended.
        command: to run in the container, instead of the image's entry point.
    """
    argv = ["run", "--interactive", "--name", name, "--network", network, "--log-driver", "none"]
    argv += ["--sig-proxy=false"]
    if network != HOST_NETWORK:
        argv += ["--hostname", container.host, "--network-alias", container.host]
    if KEPT_LABEL not in its_labels:
        argv += ["--rm"]
    argv += label_options(its_labels)
    if container.user:
        argv += ["--user", container.user]
    if container.memory is not None:
        argv += ["--memory", str(container.memory), "--memory-swap", str(container.memory)]
    for mount in container.mounts:
        argv += ["--mount", _mount_option(mount)]
    return [*argv, *container.options, "--entrypoint", command[0], container.image, *command[1:]]


def _mount_option(mount: Mount) -> str:
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return ",".join(_csv(field) for field in [*fields, *(["readonly"] if mount.read_only else [])])


def _csv(field: str) -> str:
    """A field of a line of CSV, which is the syntax of these options."""
    return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n') else field
