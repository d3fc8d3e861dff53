"""Checks the pod templates of the user, and merges them into the pods of a launch.

Nothing here asks the cluster, which checks everything else in a template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.backends.kubernetes.names import LAUNCHER_LABEL, MANAGED_BY_LABEL, RUN_LABEL
from launcher.backends.kubernetes.status import HOST_LABEL, TASK_CONTAINER

#: The fields of a pod that the user's template must not contain, because launch sets them.
_OUR_POD_FIELDS = ("restartPolicy", "hostname", "subdomain")
#: The same for the fields of the container.
_OUR_CONTAINER_FIELDS = ("name", "image", "command", "args", "stdin", "stdinOnce", "tty", "imagePullPolicy")
#: Such fields with values that are allowed, because they change nothing.
_OUR_VALUES = (("restartPolicy", "Never"), ("name", TASK_CONTAINER))


def merged(ours: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return our mapping with the user's template merged into it.

    Items of the user's lists follow ours, and ``null`` removes a field. An item of ``env`` or ``volumes``
    replaces ours of the same name. The user's container is merged into ours.
    """
    found = dict(ours)
    for name, value in template.items():
        mine = found.get(name)
        if value is None:
            found.pop(name, None)
        elif isinstance(mine, dict) and isinstance(value, dict):
            found[name] = merged(mine, value)
        elif name == "containers" and isinstance(mine, list):
            found[name] = [merged(mine[0], value[0])]
        elif isinstance(mine, list) and isinstance(value, list):
            names = [item["name"] for item in value if isinstance(item, dict) and "name" in item]
            kept = [item for item in mine if not (isinstance(item, dict) and item.get("name") in names)]
            found[name] = [*kept, *value] if name in ("env", "volumes") else [*mine, *value]
        else:
            found[name] = value
    return found


def template_faults(template: Any) -> Iterator[str]:
    """Yield what is wrong with a pod template of a job file, for messages."""
    if not isinstance(template, dict) or template.keys() - {"metadata", "spec"}:
        yield "expected a pod template, with metadata: or spec:"
        return
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        yield "expected mappings below metadata: and spec:"
        return
    if not (_are(dict, metadata, "labels", "annotations") and _are(list, spec, "containers", "volumes")):
        yield "expected mappings of labels: and annotations:, and lists of containers: and volumes:"
        return
    for name in (MANAGED_BY_LABEL, RUN_LABEL, HOST_LABEL, LAUNCHER_LABEL):
        if name in metadata.get("labels", {}):
            yield f"expected no label {name}: launch sets it"
    containers: Sequence[Any] = spec.get("containers", [{}])
    if len(containers) != 1 or not isinstance(containers[0], dict):
        yield "expected one item below containers:, the container of the task; others go to initContainers:"
        return
    resources = containers[0].get("resources") or {}
    if not isinstance(resources, dict) or not isinstance(resources.get("limits") or {}, dict):
        yield "expected mappings of resources: and limits:"
    for where, names in ((spec, _OUR_POD_FIELDS), (containers[0], _OUR_CONTAINER_FIELDS)):
        for name in names:
            if name in where and (name, where[name]) not in _OUR_VALUES:
                yield f"expected no {name}: launch sets it"


def _are(kind: type[dict[Any, Any]] | type[list[Any]], where: Mapping[str, Any], *names: str) -> bool:
    """Return whether all of these fields that exist are mappings, or lists."""
    return all(isinstance(where[name], kind) for name in names if name in where)
