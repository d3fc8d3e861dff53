"""Makes the options of the Kubernetes backend from the settings of a launch, and checks them."""

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
#: The options of Docker that do not apply to pods, and what to use in their place.
_DOCKER_OPTIONS: Mapping[Setting[Any], str] = {
    MOUNTS: "volumes: in pod: of the job file",
    NO_MOUNT: _NO_FOLDER,
    READ_ONLY: _NO_FOLDER,
    KEEP: "no option: pods end with the job",
}
#: The role of the pods of a check.
_CHECKED_ROLE = Role("pod", 2, Program(ProgramKind.EXECUTABLE, "true"))


class KubernetesOptions(ContainerOptions):
    """The settings of pods, from command line and job file."""

    #: The namespace. None means that of the context.
    namespace: str | None = None
    #: The context. None means the current one of kubectl's configuration.
    context: str | None = None
    #: The pod template that is merged into each pod, with ``metadata`` and ``spec``, as in JSON.
    pod: Mapping[str, Any] = {}
    #: The further template that is merged into the pods of a role, by the name of the role.
    pods: Mapping[str, Mapping[str, Any]] = {}
    #: The seconds after which all pods must run.
    start_timeout: float = START_TIMEOUT.default


def user_of(options: KubernetesOptions) -> str:
    """Return the user of the tasks as ``UID`` or ``UID:GID``: ``--user``, or else the user of launch.

    If launch runs as root, tasks do not: many clusters refuse such pods.
    """
    return options.user or (f"{os.getuid()}:{os.getgid()}" if os.getuid() else "1000:1000")


def user_faults(options: KubernetesOptions) -> Iterator[Fault]:
    """Yield a fault if the user of the tasks is given by name, because a pod needs numbers."""
    if options.user is not None and not re.fullmatch("[0-9]{1,9}(:[0-9]{1,9})?", options.user):
        yield Fault("--user", f"{options.user!r} is a name", "expected UID or UID:GID for --kubernetes")


def parse(settings: Settings) -> KubernetesOptions | None:
    """Return the options that the settings contain, or None if the user does not ask for pods."""
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
    """Return the job of a launch. For a check, which has no tasks, it is a role of two pods.

    With two pods ``launch check`` can also test whether they reach each other.
    """
    is_check = request.purpose is Purpose.CHECK
    return replace(request.spec, roles=(_CHECKED_ROLE,)) if is_check else request.spec


def faults(options: KubernetesOptions, request: LaunchRequest) -> Iterator[Fault]:
    """Yield the faults of the options about pods, and of options that do not fit pods.

    Args:
        options: The options about pods.
        request: The launch.
    """
    yield from image_faults(requested_spec(request), options, request.settings, "kubernetes")
    yield from user_faults(options)
    if request.hosts_named:
        yield Fault("--kubernetes", "the hosts are named, too", "expected one of them")
    for setting, instead in _DOCKER_OPTIONS.items():
        # In a job file these settings can only be keys of the section docker:, which is for another backend.
        if request.settings.source_kind(setting) == COMMAND_LINE:
            yield Fault(setting.flag, "the option is not for pods", f"expected {instead}")
