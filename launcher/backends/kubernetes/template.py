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


def merged(base: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping of a pod with the user's template merged into it, at all levels.

    Items of the user's lists follow those of launch, and ``null`` removes a field. An item of ``env`` or
    ``volumes`` replaces that of the same name, because Kubernetes accepts each name once. The user's
    container is merged into that of launch.

    Args:
        base: A pod as launch makes it, or a part of one, as JSON. It is not changed.
        template: The same part of the user's template.
    """
    result = dict(base)
    for field, value in template.items():
        present = result.get(field)
        if value is None:
            result.pop(field, None)
        elif isinstance(present, dict) and isinstance(value, dict):
            result[field] = merged(present, value)
        elif field == "containers" and isinstance(present, list):
            # A pod of launch has one container, and templates with more are refused.
            result[field] = [merged(present[0], value[0])]
        elif isinstance(present, list) and isinstance(value, list):
            if field in ("env", "volumes"):
                names = [item["name"] for item in value if isinstance(item, dict) and "name" in item]
                present = [it for it in present if not (isinstance(it, dict) and it.get("name") in names)]
            result[field] = [*present, *value]
        else:
            result[field] = value
    return result


def template_faults(template: Any) -> Iterator[str]:
    """Yield what is wrong with a pod template of a job file: for each fault what was expected instead.

    Only what launch itself needs is checked: that the parts which `merged` merges are mappings or lists, that
    there is one container at most, and that fields which launch sets are not in the template. The cluster
    checks the rest. A fault of metadata, spec, or the number of containers ends the list, because what
    follows reads these parts.

    Args:
        template: The template, as any JSON value.
    """
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
    # Without containers the template changes only the pod.
    containers: Sequence[Any] = spec.get("containers", [{}])
    if len(containers) != 1 or not isinstance(containers[0], dict):
        yield "expected one item below containers:, the container of the task; others go to initContainers:"
        return
    resources = containers[0].get("resources") or {}  # null is allowed: it removes a field.
    if not isinstance(resources, dict) or not isinstance(resources.get("limits") or {}, dict):
        yield "expected mappings of resources: and limits:"
    for mapping, our_fields in ((spec, _OUR_POD_FIELDS), (containers[0], _OUR_CONTAINER_FIELDS)):
        for field in our_fields:
            # A template may repeat the value that launch sets.
            if field in mapping and (field, mapping[field]) not in _OUR_VALUES:
                yield f"expected no {field}: launch sets it"


def _are(kind: type[dict[Any, Any]] | type[list[Any]], mapping: Mapping[str, Any], *fields: str) -> bool:
    """Return whether each of these fields is of this kind, dict or list, or missing in the mapping."""
    return all(isinstance(mapping[field], kind) for field in fields if field in mapping)
