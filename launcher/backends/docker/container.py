"""Plans the containers of a job: one for each host, their labels, and their ``docker run`` command lines.

Nothing here asks an engine: `launcher.backends.docker.fleet` starts what this module plans.
"""

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

# The labels of everything that a launch creates: its run, its launcher process, and whether it stays
# (``--keep``).
JOB_LABEL, OWNER_LABEL, KEPT_LABEL = (f"tf-launcher.{name}" for name in ("job", "owner", "kept"))
#: The network of containers on hosts that the user names, which is that of the host itself.
HOST_NETWORK = "host"
#: A character that a container name must not contain.
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
#: The options of ``docker run`` for those names in ``options:`` of a job file that are spelt as in Compose.
_OPTION_ALIASES = {"devices": "device", "extra_hosts": "add-host", "ulimits": "ulimit"}


class Mount(Record):
    """A folder or file of the engine's machine that a container sees."""

    source: str
    target: str
    read_only: bool = False


class Container(Record):
    """The container that is to become one host of the job, before it exists."""

    #: The name of the host.
    host: str
    image: str
    #: The Python of the image that runs the agent: a path, or a name to look up along the PATH of the image.
    python: str
    mounts: tuple[Mount, ...] = ()
    #: ``UID:GID``, or names that the image knows. Empty for the user that the image sets.
    user: str = ""
    #: The memory limit in bytes. None if there is no limit.
    memory: int | None = None
    #: Further options of ``docker run``.
    options: tuple[str, ...] = ()


# ---------------------------------------------------------------------- hosts


def seen_inside(host: Host) -> Host:
    """Return a machine as its container sees it: with GPUs numbered from 0, and the Python of the image."""
    gpus = host.gpus and tuple(map(str, range(len(host.gpus))))
    return replace(host, gpus=gpus, python=None, venv=None)


# ---------------------------------------------------------------------- containers


def containers(
    docker: DockerOptions, spec: JobSpec, placement: Placement, gpus: Mapping[str, Sequence[str]], here: bool
) -> list[Container]:
    """Return a container for each host that runs tasks.

    Args:
        docker: The options, without faults.
        spec: The job. Its Python is one of the image.
        placement: The tasks, each with its host.
        gpus: The ids of the GPUs of each host, by its name. Its container sees them if a task asks for one.
        here: Whether the engine is that of this machine. Then the folders of tasks are mounted, too.

    Raises:
        PlacementError: Tasks of one host need different images.
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
    """Return the container with folders mounted at the paths that they have outside. Its own mounts win."""
    usual = [Mount(folder, folder, read_only) for folder in folders if folder != "/"]
    by_target = {mount.target: mount for mount in (*usual, *container.mounts)}
    return replace(container, mounts=tuple(by_target.values()))


def with_output_mounts(container: Container, tasks: Iterable[PlacedTask]) -> Container:
    """Return the container with the output folders of its tasks mounted."""
    mine = (dict(placed.env) for placed in tasks)
    return with_folders(
        container, (env[OUTPUT_DIR_VARIABLE] for env in mine if OUTPUT_DIR_VARIABLE in env), read_only=False
    )


def task_folders(docker: DockerOptions, spec: JobSpec) -> list[str]:
    """Return the folders of this machine in which tasks run, so that their containers must see them."""
    workdirs = [] if docker.no_mount else [spec.workdir, *(role.workdir for role in spec.roles)]
    # A folder that does not exist on this machine may belong to the image.
    return [os.path.abspath(path) for path in workdirs if path and os.path.isdir(path)]


def mount_faults(docker: DockerOptions, spec: JobSpec, here: bool) -> Iterator[Fault]:
    """Yield the faults of mounts, and of folders that cannot be mounted.

    Args:
        docker: The options.
        spec: The job.
        here: Whether the engine is that of this machine.
    """
    yield from asked_mounts(docker, here)[1]
    if here and "/" in task_folders(docker, spec):
        expected = "expected another folder, or --no-mount"
        yield Fault("--workdir", "the root folder cannot be mounted", expected)


def asked_mounts(docker: DockerOptions, here: bool = True) -> tuple[list[Mount], list[Fault]]:
    """Return the mounts that the user asks for, and a fault for each text that is not a mount.

    Of several mounts at the same path in the container the last one counts.

    Args:
        docker: The options.
        here: Whether the engine is that of this machine, so that ``~`` is the home on it.
    """
    found = [(text, _mount(text, here)) for text in docker.mounts]
    expected = "expected SRC, SRC:/DST or SRC:/DST:ro"
    faults = [Fault(f"--mount {text}", "this is not a mount", expected) for text, mount in found if not mount]
    by_target = {mount.target: mount for _, mount in found if mount}
    return list(by_target.values()), faults


def _mount(text: str, here: bool) -> Mount | None:
    """Parse a mount ``SRC[:DST][:ro]``. None if the text is not a mount.

    ``~`` is the home on this machine if the engine is ``here``. Otherwise it stays, for the home on each
    host.
    """
    source, *rest = text.split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
    if source and (here or not (source == "~" or source.startswith("~/"))):
        source = os.path.abspath(os.path.expanduser(source))
    target = rest[0] if rest else source
    # Without a DST, a folder below the home on a host has the same path in the container.
    at_home = target.startswith("~/") and not rest
    if not source or len(rest) > 1 or not (target.startswith("/") or at_home) or target == "/":
        return None
    return Mount(source, os.path.normpath(target), mode == "ro")


def _limits(limits: Iterable[_N | None]) -> list[_N]:
    """Return the limits of the tasks of a container, or none if a task is without a limit."""
    given = [*limits]
    found = [one for one in given if one is not None]
    return found if len(found) == len(given) else []


# ---------------------------------------------------------------------- names and labels


def network_name(run_name: str) -> str:
    """Return the name of a job's network at the engine."""
    return f"tf-launcher-{run_name}"


def container_name(run_name: str, host: str) -> str:
    """Return the name of a host's container at the engine."""
    return f"tf-launcher-{run_name}-{_INVALID_CHARACTERS.sub('-', host)}"


def labels(run_name: str, keep: bool) -> dict[str, str]:
    """Return the labels of what this process creates at an engine."""
    return {
        OWNER_LABEL: owner_text(this_process()),
        JOB_LABEL: run_name,
        **({KEPT_LABEL: "1"} if keep else {}),
    }


def label_options(found: Mapping[str, str]) -> list[str]:
    """Return labels as options of a ``docker`` command."""
    return [text for label, value in found.items() for text in ("--label", f"{label}={value}")]


def run_command(
    container: Container, name: str, network: str, its_labels: Mapping[str, str], command: list[str]
) -> list[str]:
    """Return the arguments of ``docker`` that start a container whose stdin stays open.

    No variable of the user's environment is among them, because other users could see it. The variables are
    sent to the agent.

    Args:
        container: The container to start.
        name: The name of the container at the engine.
        network: The network that it joins. In a network of the job, the name of the host resolves to it.
        its_labels: The labels. With `KEPT_LABEL` the container stays after it has exited.
        command: The command that runs in the container instead of the image's entry point.
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
    """Return a field of a line of CSV, quoted if it must be, because ``--mount`` and ``--gpus`` are CSV."""
    return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n') else field
