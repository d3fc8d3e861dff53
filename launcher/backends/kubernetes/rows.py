"""The settings of pods of Kubernetes: options, and the section ``kubernetes:`` of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.backends.containers import CONTAINER_ROWS, keep_image
from launcher.config import values
from launcher.config.documents import ConfigNode, FaultList, plain
from launcher.config.settings import EVERYWHERE, FILES, FileSection, Group, Need, Setting, switch

PODS = Need("the option is about Kubernetes", "expected --kubernetes IMAGE, too")

_namespace = values.matching(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "expected a namespace: lower-case letters, digits and -"
)


def _read_template(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """Return the pod template that a node of a job file contains, as plain JSON.

    Args:
        node: The node.
        label: The words that name the template in messages.
        faults: This function adds a fault for each thing in the template that launch does not allow. Then it
            returns None.
    """
    from launcher.backends.kubernetes.template import template_faults  # noqa: PLC0415 - with hashlib

    template = plain(node)
    expectations = list(template_faults(template))
    for expected in expectations:
        faults.add(node.line, f"{label} is not a template for pods", expected)
    return None if expectations else template


def _read_templates(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """Return the pairs of a role and its pod template that a node of a job file contains.

    Args:
        node: A mapping of names of roles to templates.
        label: What messages call the node.
        faults: Receives the faults.

    Returns:
        The pairs. The template in a pair is None if it has a fault. None instead if the node is no mapping,
        which is a fault, too.
    """
    if not isinstance(node.value, dict):
        faults.add_kind(node, label, "expected a mapping of roles to templates")
        return None
    roles = node.value.items()
    return tuple((role, _read_template(written, f"{label} of {role}", faults)) for role, written in roles)


#: The image of all roles without their own. It is empty if every role has one, and None without pods.
KUBERNETES: Setting[str | None] = Setting(
    "kubernetes", values.image, "run each task in a pod of this image", metavar="IMAGE", key="image",
    default=None, value_optional=True, given_in=EVERYWHERE, join=keep_image,
)  # fmt: skip
NAMESPACE: Setting[str | None] = Setting(
    "namespace", _namespace, "the namespace (default: that of the context)", metavar="N", default=None,
    given_in=EVERYWHERE, needs=PODS,
)  # fmt: skip
CONTEXT: Setting[str | None] = Setting(
    "context", values.one_line, "the context of kubectl (default: the current one)", metavar="C",
    default=None, given_in=EVERYWHERE, needs=PODS,
)  # fmt: skip
START_TIMEOUT = Setting(
    "start_timeout", values.positive_duration, "time limit for all pods to run (default: 5m)", metavar="S",
    default=300.0, given_in=EVERYWHERE, needs=PODS,
)  # fmt: skip
POD: Setting[Mapping[str, Any]] = Setting(
    "pod", str, "A pod template that is merged into each pod: nodeSelector, volumes ...", default={},
    given_in=FILES, read=_read_template,
)  # fmt: skip
POD_OF_ROLES: Setting[tuple[tuple[str, Mapping[str, Any]], ...]] = Setting(
    "pods", str, "Templates for the pods of single roles, too: worker: {spec: ...}.", default=(),
    by_role=True, given_in=FILES, read=_read_templates,
)  # fmt: skip

#: An option of ``launch clean``.
CLEAN_KUBERNETES = Setting("kubernetes", switch, "only Jobs of Kubernetes, in one namespace", default=False)

GROUP = Group("Kubernetes", (KUBERNETES, NAMESPACE, CONTEXT, START_TIMEOUT))
SECTION = FileSection(
    "kubernetes", "An image, or a mapping: each task runs in a pod of Kubernetes.",
    head=KUBERNETES, rows=(KUBERNETES, *CONTAINER_ROWS, NAMESPACE, CONTEXT, POD, POD_OF_ROLES, START_TIMEOUT),
    expected="expected an image, or a mapping with image:", short="image",
)  # fmt: skip
