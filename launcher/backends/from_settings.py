"""The options of each backend from the settings of a launch, and their faults."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.container_rows import CONTAINER_GPUS, CPUS, MEMORY, PULL, USER
from launcher.backends.docker import rows as docker
from launcher.backends.docker.options import DockerOptions, image_faults
from launcher.backends.kubernetes import rows as kubernetes
from launcher.backends.kubernetes.options import KubernetesOptions, user_faults
from launcher.backends.slurm import (
    SlurmOptions,
    _wrong_variables,
    is_in_script,
    is_in_step,
    is_inside,
)
from launcher.backends.slurm import rows as slurm
from launcher.backends.ssh import SshSettings
from launcher.backends.ssh import rows as ssh
from launcher.common.errors import Fault
from launcher.config.settings import COMMAND_LINE, FILES, FileSection, Group, Setting, Settings
from launcher.config.table import DETACH, FIRST_GROUPS, LAST_GROUPS
from launcher.job import RUN_FOLDER_VARIABLE, JobSpec

SECTIONS: tuple[FileSection, ...] = (docker.SECTION, slurm.SECTION, kubernetes.SECTION)


def groups() -> tuple[Group, ...]:
    """Return all rows of a launch, as the help shows them."""
    return (*FIRST_GROUPS, ssh.GROUP, docker.GROUP, slurm.GROUP, kubernetes.GROUP, *LAST_GROUPS)


def all_rows() -> list[Setting[Any]]:
    """Return all rows of a launch: those of the help, and those of sections of files."""
    rows = [row for group in groups() for row in group.rows]
    return [*dict.fromkeys([*rows, *(row for section in SECTIONS for row in section.rows)])]


def launch_rows() -> list[Setting[Any]]:
    """Return the rows that are keys at the top of files."""
    return [row for group in (*FIRST_GROUPS, *LAST_GROUPS) for row in group.rows]


def parse_backends(settings: Settings, spec: JobSpec, hosts_named: bool, engine: str) -> dict[str, Any]:
    """Return the options of each backend by name; None: the user does not ask for it."""
    return {
        "ssh": SshSettings(accept_new=settings[ssh.ACCEPT_NEW_HOST_KEYS]),
        "docker": _docker(settings, spec, engine),
        "slurm": _slurm(settings, hosts_named),
        "kubernetes": _kubernetes(settings, engine),
    }


def _docker(settings: Settings, spec: JobSpec, engine: str) -> DockerOptions | None:
    implied = not settings.is_given(docker.DOCKER)
    if implied and not (engine == "docker" or any(role.image for role in spec.roles)):
        return None
    return DockerOptions(
        mounts=settings[docker.MOUNTS],
        no_mount=settings[docker.NO_MOUNT],
        read_only=settings[docker.READ_ONLY],
        keep=settings[docker.KEEP],
        engine_options=settings[docker.ENGINE_OPTIONS],
        implied=implied,
        **_shared(settings, docker.DOCKER),
    )


def _kubernetes(settings: Settings, engine: str) -> KubernetesOptions | None:
    implied = not settings.is_given(kubernetes.KUBERNETES)
    if implied and engine != "kubernetes":
        return None
    return KubernetesOptions(
        namespace=settings[kubernetes.NAMESPACE],
        context=settings[kubernetes.CONTEXT],
        pod=settings[kubernetes.POD],
        pods=dict(settings[kubernetes.POD_OF_ROLES]),
        start_timeout=settings[kubernetes.START_TIMEOUT],
        implied=implied,
        **_shared(settings, kubernetes.KUBERNETES),
    )


def _shared(settings: Settings, image: Setting[str | None]) -> dict[str, Any]:
    return {
        "image": settings[image] or "",
        "memory": settings[MEMORY],
        "cpus": settings[CPUS],
        "user": settings[USER],
        "pull": settings[PULL],
        "gpus": settings[CONTAINER_GPUS],
        "limited_roles": tuple(
            role
            for row in (MEMORY, CPUS)
            for part in settings.parts(row)
            if part.kind in FILES
            for role, _ in part.value
            if role
        ),
    }


def _slurm(settings: Settings, hosts_named: bool) -> SlurmOptions | None:
    if settings[slurm.NO_SLURM]:
        return None
    if not settings[slurm.SLURM]:
        implied = is_inside(os.environ) and not hosts_named
        return SlurmOptions(implied=True) if implied else None
    return SlurmOptions(
        nodes=settings[slurm.NODES],
        partition=settings[slurm.PARTITION],
        time=settings[slurm.TIME],
        gpus_per_node=settings[slurm.GPUS_PER_NODE],
        account=settings[slurm.ACCOUNT],
        options=settings[slurm.SLURM_OPTIONS],
        notice=settings[slurm.SLURM_NOTICE],
    )


# ---------------------------------------------------------------------- faults


def met_needs(chosen: Mapping[str, Any], in_containers: bool, other_machines: bool) -> set[str]:
    """Return the subjects of the needs that a launch meets."""
    met = set()
    if other_machines:
        met.add("other machines, and none is named")
    if chosen["docker"] is not None or in_containers:
        met.add("containers")
    if chosen["kubernetes"] is not None:
        met.add("Kubernetes")
    if (chosen["slurm"] is not None and not chosen["slurm"].implied) or is_inside(os.environ):
        met.add("an allocation of Slurm")
    return met


def need_faults(settings: Settings, met: set[str]) -> Iterator[Fault]:
    """Yield the faults of options without what they need."""
    for row in all_rows():
        if row.needs and row.needs.subject not in met and settings.source_kind(row) == COMMAND_LINE:
            yield Fault(settings.source(row), f"the option is about {row.needs.subject}", row.needs.expected)


def backend_faults(
    name: str,
    settings: Settings,
    spec: JobSpec,
    chosen: Mapping[str, Any],
    hosts_named: bool,
    in_containers: bool,
) -> Iterator[Fault]:
    """Yield the faults of the options of a backend, without those about needs."""
    options = chosen[name]
    if name == "docker":
        yield from _docker_faults(settings, spec, options, hosts_named, in_containers)
    elif name == "kubernetes" and options is not None:
        yield from image_faults(spec, options, "kubernetes")
        yield from user_faults(options)
        if hosts_named:
            yield Fault("--kubernetes", "the hosts are named, too", "expected one of them")
        for row, instead in _NOT_FOR_PODS.items():
            if settings.source_kind(row) == COMMAND_LINE:
                yield Fault(settings.source(row), "the option is not for pods", f"expected {instead}")
    elif name == "slurm":
        yield from _slurm_faults(settings, options, hosts_named)


_NO_FOLDER = "no option: pods see no folder of this machine"
_NOT_FOR_PODS: Mapping[Setting[Any], str] = {
    docker.MOUNTS: "volumes: in pod: of the job file",
    docker.NO_MOUNT: _NO_FOLDER,
    docker.READ_ONLY: _NO_FOLDER,
    docker.KEEP: "no option: pods end with the job",
}


def _docker_faults(
    settings: Settings, spec: JobSpec, options: DockerOptions | None, hosts_named: bool, in_containers: bool
) -> Iterator[Fault]:
    if options is not None:
        if options.no_mount and options.read_only:
            source = settings.source(docker.READ_ONLY)
            yield Fault(source, "the working folder is not mounted", "expected one of no_mount and read_only")
        from launcher.backends.docker.container import container_faults

        yield from container_faults(options, spec, here=not hosts_named)
        return
    for role in spec.roles if not in_containers else ():
        limited = role.cpus is not None or role.memory is not None
        if limited or role.image:
            what = "limits of CPUs or memory" if limited else "an image"
            problem = f"{role.name} has {what}, which only containers have"
            yield Fault(role.source, problem, "expected image: in it, docker: IMAGE or --docker IMAGE")


def _slurm_faults(settings: Settings, options: SlurmOptions | None, hosts_named: bool) -> Iterator[Fault]:
    if settings[DETACH] and is_in_script(os.environ) and RUN_FOLDER_VARIABLE not in os.environ:
        text = "in a script for sbatch, whose job ends with the script, and so would the launcher"
        yield Fault("--detach", text, "expected launch without it; for several at once: launch ... &")
    if options is None:
        return
    yield from _wrong_variables()
    if hosts_named:
        yield Fault("--slurm", "the hosts are named, too", "expected one of them, or --no-slurm")
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if is_inside(os.environ) and is_in_step(os.environ) and tasks != "1":
        if os.environ.get("SLURM_PROCID", "0") != "0":
            raise SystemExit(2)
        text = f"srun has started launch {tasks} times, once for each of its tasks"
        expected = f"expected launch without srun, which starts the tasks: launch --workers {tasks} ..."
        yield Fault("", text, expected)


def backend_notes(options: SlurmOptions | None, hosts_named: bool) -> Iterator[str]:
    """Yield the notes of Slurm; the other backends have none."""
    if not is_inside(os.environ):
        return
    job = os.environ["SLURM_JOB_ID"]
    if options is None and hosts_named:
        yield f"--hosts: the tasks run there, not on the nodes of Slurm's job {job}"
    elif options is not None and options.salloc() and RUN_FOLDER_VARIABLE not in os.environ:
        text = f"launch runs in Slurm's job {job}, and uses its nodes"
        yield f"no allocation is asked for ({shlex.join(options.salloc())}): {text}"
