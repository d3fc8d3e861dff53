"""The options about Kubernetes, on the command line and in job files."""

from __future__ import annotations

import argparse
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.backends.docker.options import (
    CONTAINER_OPTIONS,
    any_image,
    image_faults,
    read_engine,
    read_shared,
    shared_keys,
    with_shared,
)
from launcher.backends.launch_request import Asked
from launcher.common.errors import Fault
from launcher.common.record import Record
from launcher.common.text import did_you_mean
from launcher.config import values

if TYPE_CHECKING:  # only a launch with a job file needs it
    from launcher.config.schema import ConfigNode, FaultList, Keys

#: Seconds for all pods to run.
_START_TIMEOUT_SECONDS = 300.0
#: Options that replace keys of the job file.
_OVERRIDING_OPTIONS = ("namespace", "context", "start_timeout")
#: Options of Docker that pods do not have, and what is there in their place.
_DOCKER_OPTIONS = {
    "mount": "volumes: in pod: of the job file",
    "no_mount": "no option: pods see no folder of this machine",
    "read_only": "no option: pods see no folder of this machine",
    "keep": "no option: pods end with the job",
}

#: Options that other commands than ``launch run`` do not have.
NOT_GIVEN: Mapping[str, Any] = {
    "kubernetes": None, "memory": (), "cpus": (),
    **dict.fromkeys((*_OVERRIDING_OPTIONS, *CONTAINER_OPTIONS, *_DOCKER_OPTIONS)),
}  # fmt: skip

name = values.matching(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "expected a namespace: lower-case letters, digits and -"
)


class KubernetesOptions(Record):
    """The settings of pods, of command line and job file."""

    #: Of roles without their own.
    image: str = ""
    #: ``None``: those of kubectl's configuration.
    namespace: str | None = None
    context: str | None = None
    #: Limits: role -> bytes of memory; role -> CPUs; an empty role is every role.
    memory: tuple[tuple[str, int], ...] = ()
    cpus: tuple[tuple[str, float], ...] = ()
    user: str | None = None
    #: ``missing``, ``always`` or ``never``.
    pull: str = "missing"
    #: For each task of a role without its own number; ps and sidecars get none.
    gpus: int | None = None
    #: What is merged into each pod: a pod template, with ``metadata`` and ``spec``, as JSON has it.
    pod: Mapping[str, Any] = {}
    #: Role -> what is merged into its pods, too.
    pods: Mapping[str, Mapping[str, Any]] = {}
    #: Seconds for all pods to run.
    start_timeout: float = _START_TIMEOUT_SECONDS
    #: Roles that the job file has limits for; they may have no task this time.
    limited_roles: tuple[str, ...] = ()
    #: Nothing asks for Kubernetes but the command itself.
    implied: bool = False


def user_of(options: KubernetesOptions) -> str:
    """``UID[:GID]`` of the tasks: as the user says, else those of launch, but not root."""
    return options.user or (f"{os.getuid()}:{os.getgid()}" if os.getuid() else "1000:1000")


def user_faults(options: KubernetesOptions) -> Iterator[Fault]:
    """The fault of a user that has a name: a pod needs numbers."""
    if options.user is not None and not re.fullmatch("[0-9]{1,9}(:[0-9]{1,9})?", options.user):
        yield Fault("--user", f"{options.user!r} is a name", "expected UID or UID:GID for --kubernetes")


def keys() -> Keys:
    """The keys of ``kubernetes:`` in a job file."""
    from launcher.config.schema import KeySpec, single, table

    duration = single(values.positive_duration)
    return table(
        *shared_keys(),
        KeySpec("namespace", "The namespace of the pods. Default: that of the context.", single(name)),
        KeySpec("context", "The context of kubectl. Default: the current one.", single(values.one_line)),
        KeySpec("pod", "A pod template that is merged into each pod: nodeSelector, volumes ...", _template),
        KeySpec("pods", "Templates for the pods of single roles, too: worker: {spec: ...}.", _templates),
        KeySpec("start_timeout", "Time limit for all pods to run. Default: 5m.", duration),
    )


def _template(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """``pod:`` of a job file."""
    from launcher.backends.kubernetes.template import template_faults
    from launcher.config.schema import plain

    template = plain(node)
    wrong = list(template_faults(template))
    for expected in wrong:
        faults.add(node.line, f"{label} is not a template for pods", expected)
    return None if wrong else template


def _templates(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """``pods:`` of a job file."""
    if not isinstance(node.value, dict):
        return faults.add_kind(node, label, "expected a mapping of roles to templates")
    return {role: _template(written, f"{label} of {role}", faults) for role, written in node.value.items()}


def read_section(node: ConfigNode, roles: Sequence[str], faults: FaultList) -> KubernetesOptions:
    """``kubernetes:`` of a job file, an image or a mapping; without an image each role must have one."""
    found = read_engine(node, "kubernetes", keys(), faults)
    for role in found.get("pods", ()):
        if roles and role not in roles:
            found.add("pods", f"pods: there is no role {role!r}", did_you_mean(role, roles))
    return KubernetesOptions(**read_shared(found, roles), **found.some("pod", "pods", *_OVERRIDING_OPTIONS))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about Kubernetes; `settings` reads them, and those that Docker has, too."""
    group = parser.add_argument_group("Kubernetes")
    add = functools.partial(values.option, group)
    add("--kubernetes IMAGE", "run each task in a pod of this image", any_image, nargs="?", const="")
    add_reaching(group)
    text = "time limit for all pods to run (default: 5m)"
    add("--start-timeout S", text, values.positive_duration)


def add_reaching(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options about the cluster."""
    add = functools.partial(values.option, parser)
    add("--namespace N", "the namespace (default: that of the context)", name)
    add("--context C", "the context of kubectl (default: the current one)", values.one_line)


def settings(asked: Asked) -> KubernetesOptions | None:
    """The parsed options and ``kubernetes:`` of a job file together; the command line has priority.

    Returns:
        ``None``: no pods.
    """
    args = asked.args
    implied = args.kubernetes is None and asked.section is None
    if implied and not asked.implied:
        return None
    file: KubernetesOptions = asked.section or KubernetesOptions(implied=implied)
    given = {name: getattr(args, name) or getattr(file, name) for name in _OVERRIDING_OPTIONS}
    return with_shared(file._replace(image=args.kubernetes or file.image, **given), args)


def faults(asked: Asked, settings: KubernetesOptions | None) -> Iterator[Fault]:
    """Faults of the options about Kubernetes."""
    if settings is None:
        for name in _OVERRIDING_OPTIONS:
            if getattr(asked.args, name):
                option = f"--{name.replace('_', '-')}"
                yield Fault(option, "the option is about Kubernetes", "expected --kubernetes IMAGE, too")
        return
    yield from image_faults(asked.spec, settings, "kubernetes")
    yield from user_faults(settings)
    if asked.named:
        yield Fault("--kubernetes", "the hosts are named, too", "expected one of them")
    for name, instead in _DOCKER_OPTIONS.items():
        if getattr(asked.args, name):
            yield Fault(f"--{name.replace('_', '-')}", "the option is not for pods", f"expected {instead}")
