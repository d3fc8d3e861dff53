"""The pod templates of the user: checked, and merged into the pods of a launch; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.backends.kubernetes.names import LAUNCHER_LABEL, MANAGED_BY_LABEL, RUN_LABEL
from launcher.backends.kubernetes.status import HOST_LABEL, TASK_CONTAINER

#: Fields that the user's template cannot have, because launch sets them: of the pod; of its container.
_OUR_POD_FIELDS = ("restartPolicy", "hostname", "subdomain")
_OUR_CONTAINER_FIELDS = ("name", "image", "command", "args", "stdin", "stdinOnce", "tty", "imagePullPolicy")
#: The values of such fields that change nothing.
_OUR_VALUES = (("restartPolicy", "Never"), ("name", TASK_CONTAINER))


def merged(ours: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Our mapping with the user's merged into it: items of lists follow ours, and ``null`` removes a field.

    An item of ``env`` or ``volumes`` replaces ours of that name. The user's container is merged into ours.
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
    """What is wrong with the ``pod:`` of a job file, for the user. The API server checks everything else."""
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
    """Return whether all of these fields that are there are mappings, or lists."""
    return all(isinstance(where[name], kind) for name in names if name in where)
