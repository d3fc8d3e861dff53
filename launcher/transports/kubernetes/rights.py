"""The rights that launch needs in a namespace: all are checked at once, before anything is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from launcher.errors import TransportError
from launcher.transports.kubernetes.kubectl import in_pod

#: What launch does to resources of the core and of ``batch``. The Role in docs/kubernetes.md allows it.
RIGHTS: Mapping[str, Sequence[str]] = {
    "events": ("list",),
    "jobs.batch": ("create", "delete", "list"),
    "pods": ("get", "list", "watch"),
    "pods/exec": ("create",),
}
_API = "authorization.k8s.io/v1"
#: Of each answer, one word: ``true`` or ``false``.
_ANSWER = r'--output=jsonpath={.status.allowed}{"\n"}'


def check_rights(ask: Callable[..., str], namespace: str) -> None:
    """Ask the API server by one command whether this user has all rights that launch needs.

    Args:
        ask: runs kubectl with these words, and ``stdin``: what it prints.
        namespace: of the pods.

    Raises:
        TransportError: some are missing, or the API server does not answer.
    """
    rights = [(verb, resource) for resource, verbs in RIGHTS.items() for verb in verbs]
    reviews = [_review(namespace, verb, *resource.partition("/")[::2]) for verb, resource in rights]
    request = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    # The schema of the API server is large, and not needed for this.
    answers = ask("create", "--validate=false", _ANSWER, "--filename=-", stdin=request).split()
    if len(answers) != len(rights) or {*answers} - {"true", "false"}:
        raise TransportError("the API server does not say which rights this user has")
    missing: dict[str, list[str]] = {}
    for (verb, resource), allowed in zip(rights, answers, strict=True):
        if allowed == "false":
            missing.setdefault(resource, []).append(verb)
    if missing:
        listed = "; ".join(f"{', '.join(verbs)} {resource}" for resource, verbs in missing.items())
        who = "the service account of the launcher's pod" if in_pod() else "this user"
        raise TransportError(
            f"{who} lacks rights that launch needs in the namespace {namespace}: {listed} "
            "(docs/kubernetes.md, Rights, has the Role)"
        )


def _review(namespace: str, verb: str, resource: str, part: str) -> Mapping[str, object]:
    name, _, group = resource.partition(".")
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": part}
    return {"apiVersion": _API, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}
