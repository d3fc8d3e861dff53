"""The options about Kubernetes, from the settings of a launch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.backend import LaunchRequest, Purpose
from launcher.backends.containers import ContainerOptions, container_options, image_faults
from launcher.backends.docker.rows import KEEP, MOUNTS, NO_MOUNT, READ_ONLY
from launcher.backends.kubernetes.rows import CONTEXT, KUBERNETES, NAMESPACE, POD, POD_OF_ROLES, START_TIMEOUT
from launcher.common.errors import Fault
from launcher.common.record import replace
from launcher.config.settings import COMMAND_LINE, Setting, Settings
from launcher.job import JobSpec, Program, ProgramKind, Role

_NO_FOLDER = "no option: pods see no folder of this machine"
#: Options of Docker that pods do not have, and what is there in their place.
_DOCKER_OPTIONS: Mapping[Setting[Any], str] = {
    MOUNTS: "volumes: in pod: of the job file",
    NO_MOUNT: _NO_FOLDER,
    READ_ONLY: _NO_FOLDER,
    KEEP: "no option: pods end with the job",
}
#: The pods of a check.
_CHECKED_ROLE = Role("pod", 2, Program(ProgramKind.EXECUTABLE, "true"))


class KubernetesOptions(ContainerOptions):
    """The settings of pods, of command line and job file."""

    #: ``None``: those of kubectl's configuration.
    namespace: str | None = None
    context: str | None = None
    #: What is merged into each pod: a pod template, with ``metadata`` and ``spec``, as JSON has it.
    pod: Mapping[str, Any] = {}
    #: Role -> what is merged into its pods, too.
    pods: Mapping[str, Mapping[str, Any]] = {}
    #: Seconds for all pods to run.
    start_timeout: float = START_TIMEOUT.default


def user_of(options: KubernetesOptions) -> str:
    """``UID[:GID]`` of the tasks: as the user says, else those of launch, but not root."""
    return options.user or (f"{os.getuid()}:{os.getgid()}" if os.getuid() else "1000:1000")


def user_faults(options: KubernetesOptions) -> Iterator[Fault]:
    """The fault of a user that has a name: a pod needs numbers."""
    if options.user is not None and not re.fullmatch("[0-9]{1,9}(:[0-9]{1,9})?", options.user):
        yield Fault("--user", f"{options.user!r} is a name", "expected UID or UID:GID for --kubernetes")


def parse(settings: Settings) -> KubernetesOptions | None:
    """Make the options from the settings. None: no pods."""
    if not settings.is_given(KUBERNETES):
        return None
    return KubernetesOptions(
        namespace=settings[NAMESPACE],
        context=settings[CONTEXT],
        pod=settings[POD],
        pods=dict(settings[POD_OF_ROLES]),
        start_timeout=settings[START_TIMEOUT],
        **container_options(settings, KUBERNETES),
    )


def requested_spec(request: LaunchRequest) -> JobSpec:
    """Return the job of a launch: for a check, two pods that do nothing."""
    is_check = request.purpose is Purpose.CHECK
    return replace(request.spec, roles=(_CHECKED_ROLE,)) if is_check else request.spec


def faults(options: KubernetesOptions, request: LaunchRequest) -> Iterator[Fault]:
    """Yield the faults of the options about Kubernetes."""
    yield from image_faults(requested_spec(request), options, request.settings, "kubernetes")
    yield from user_faults(options)
    if request.hosts_named:
        yield Fault("--kubernetes", "the hosts are named, too", "expected one of them")
    for row, instead in _DOCKER_OPTIONS.items():
        if request.settings.source_kind(row) == COMMAND_LINE:
            yield Fault(row.flag, "the option is not for pods", f"expected {instead}")
