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
    gpus = None if host.gpus is None else tuple(map(str, range(len(host.gpus))))
    return replace(host, gpus=gpus, python=None, venv=None)


# ---------------------------------------------------------------------- containers


def containers(
    docker: DockerOptions, spec: JobSpec, placement: Placement, gpus: Mapping[str, Sequence[str]], here: bool
) -> list[Container]:
    """Return a container for each host that runs tasks, whose limits are enough for all its tasks together.

    Args:
        docker: The options, without faults.
        spec: The job. Its Python is one of the image.
        placement: The tasks, each with its host.
        gpus: The ids of the GPUs of each host, by its name. Its container sees them if a task asks for one.
        here: Whether the engine is that of this machine. Then the folders of tasks are mounted, too.

    Raises:
        PlacementError: Tasks of one host need different images.
    """
    mounts, _ = asked_mounts(docker, here)
    template = Container(host="", image=docker.image, python=spec.python or "python3", mounts=tuple(mounts))
    if here:  # Elsewhere the folders of this machine do not exist.
        template = with_folders(template, task_folders(docker, spec), docker.read_only)
    found = []
    for host, tasks in placement.by_host().items():
        images = [*dict.fromkeys(placed.role.image or docker.image for placed in tasks)]
        if len(images) > 1:
            problem = f"{host}: its tasks are of the images {join_names(images)}, but it has one container"
            raise PlacementError([Fault(tasks[0].host.source, problem, "expected hosts: in the roles")])
        options = []
        if cpus := _all_limits(placed.role.cpus for placed in tasks):
            options.append(f"--cpus={sum(cpus):g}")
        if any(placed.gpus for placed in tasks):
            # The tasks see all GPUs of the container, and ``CUDA_VISIBLE_DEVICES`` selects those of each.
            options.append("--gpus=" + _csv_field(f"device={','.join(gpus[host])}"))
        for name, values in docker.engine_options:
            option = _OPTION_ALIASES.get(name, name.replace("_", "-"))
            options += [f"--{option}={value}" for value in values]
        # The sum is 0 if a task is without a limit. Then the container has none.
        memory = sum(_all_limits(placed.role.memory for placed in tasks)) or None
        found.append(replace(template, host=host, image=images[0], options=tuple(options), memory=memory))
    return found


def with_folders(container: Container, folders: Iterable[str], read_only: bool) -> Container:
    """Return the container with further folders mounted, at the paths that they have outside.

    If it has a mount at such a path already, that one stays. The root folder is never mounted.

    Args:
        container: The container.
        folders: Full paths of folders of the engine's machine.
        read_only: Whether the container cannot write to them.
    """
    new_mounts = [Mount(folder, folder, read_only) for folder in folders if folder != "/"]
    by_target = {mount.target: mount for mount in (*new_mounts, *container.mounts)}
    return replace(container, mounts=tuple(by_target.values()))


def with_output_mounts(container: Container, tasks: Iterable[PlacedTask]) -> Container:
    """Return the container with the output folders of its tasks mounted, if the tasks have such folders."""
    variables = (dict(placed.env) for placed in tasks)
    folders = (env[OUTPUT_DIR_VARIABLE] for env in variables if OUTPUT_DIR_VARIABLE in env)
    return with_folders(container, folders, read_only=False)


def task_folders(docker: DockerOptions, spec: JobSpec) -> list[str]:
    """Return the folders of this machine in which tasks run, so their containers must see them.

    There are none with ``--no-mount``.
    """
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
        here: Whether the engine is that of this machine, so ``~`` is the home on it.
    """
    expected = "expected SRC, SRC:/DST or SRC:/DST:ro"
    by_target, faults = {}, []
    for text in docker.mounts:
        mount = _parse_mount(text, here)
        if mount is None:
            faults.append(Fault(f"--mount {text}", "this is not a mount", expected))
        else:
            by_target[mount.target] = mount
    return list(by_target.values()), faults


def _parse_mount(text: str, here: bool) -> Mount | None:
    """Parse a mount ``SRC[:DST][:ro]``. None if the text is not a mount.

    ``~`` is the home on this machine if the engine is ``here``. Otherwise it stays, for the home on each
    host.
    """
    source, *rest = text.split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
    is_below_home = source == "~" or source.startswith("~/")
    if source and (here or not is_below_home):
        source = os.path.abspath(os.path.expanduser(source))
    target = rest[0] if rest else source
    # Without a DST, a folder below the home on a host has the same path in the container.
    is_full = target.startswith("/") or (target.startswith("~/") and not rest)
    if not source or len(rest) > 1 or not is_full or target == "/":
        return None
    return Mount(source, os.path.normpath(target), mode == "ro")


def _all_limits(limits: Iterable[_N | None]) -> list[_N]:
    """Return the limits of all tasks of a container. Empty if any task is without a limit.

    Then the container, which its tasks share, cannot have a limit, either.
    """
    all_limits = [*limits]
    known_limits = [limit for limit in all_limits if limit is not None]
    return known_limits if len(known_limits) == len(all_limits) else []


# ---------------------------------------------------------------------- names and labels


def network_name(run_name: str) -> str:
    """Return the name of a job's network at the engine."""
    return f"tf-launcher-{run_name}"


def container_name(run_name: str, host: str) -> str:
    """Return the name of a host's container at the engine."""
    return f"tf-launcher-{run_name}-{_INVALID_CHARACTERS.sub('-', host)}"


def labels(run_name: str, keep: bool) -> dict[str, str]:
    """Return the labels of what this process creates at an engine, by which it is found and removed later.

    Args:
        run_name: The name of the run.
        keep: Whether containers stay after the job (``--keep``).
    """
    return {
        OWNER_LABEL: owner_text(this_process()),
        JOB_LABEL: run_name,
        **({KEPT_LABEL: "1"} if keep else {}),
    }


def label_options(label_values: Mapping[str, str]) -> list[str]:
    """Return labels as options of a ``docker`` command."""
    return [word for label, value in label_values.items() for word in ("--label", f"{label}={value}")]


def run_command(
    container: Container, name: str, network: str, label_values: Mapping[str, str], command: list[str]
) -> list[str]:
    """Return the arguments of ``docker`` that start a container whose stdin stays open.

    No variable of the user's environment is among them, because other users could see it. The variables are
    sent to the agent.

    Args:
        container: The container to start.
        name: The name of the container at the engine.
        network: The network that it joins. In a network of the job, the name of the host resolves to it.
        label_values: The labels of the container, and their values. With `KEPT_LABEL` the container stays
            after it has exited.
        command: The command that runs in the container instead of the image's entry point.
    """
    # The output consists of the messages of the agent, so the engine must not log it.
    argv = ["run", "--interactive", "--name", name, "--network", network, "--log-driver", "none"]
    # Signals to the docker command must not reach the agent: launch asks it to end by its messages.
    argv += ["--sig-proxy=false"]
    if network != HOST_NETWORK:
        argv += ["--hostname", container.host, "--network-alias", container.host]
    if KEPT_LABEL not in label_values:
        argv += ["--rm"]
    argv += label_options(label_values)
    if container.user:
        argv += ["--user", container.user]
    if container.memory is not None:  # The second limit is for memory and swap together, so there is no swap.
        argv += ["--memory", str(container.memory), "--memory-swap", str(container.memory)]
    for mount in container.mounts:
        argv += ["--mount", _mount_option(mount)]
    return [*argv, *container.options, "--entrypoint", command[0], container.image, *command[1:]]


def _mount_option(mount: Mount) -> str:
    """Return the value of docker's option ``--mount`` for a mount."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    if mount.read_only:
        fields.append("readonly")
    return ",".join(map(_csv_field, fields))


def _csv_field(field: str) -> str:
    """Return a field of a line of CSV, quoted if it must be. Docker reads some of its options as CSV."""
    needs_quotes = bool(set(field) & set(',"\n'))
    return '"' + field.replace('"', '""') + '"' if needs_quotes else field
