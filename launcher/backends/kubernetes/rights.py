"""Checks the rights that launch needs in a namespace, all at once, before anything is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from launcher.backends.kubernetes.kubectl import uses_pod_account
from launcher.common.errors import TransportError

#: The verbs that launch uses, by resource. The Role in docs/kubernetes.md allows them.
RIGHTS: Mapping[str, Sequence[str]] = {
    "events": ("list",),
    "jobs.batch": ("create", "delete", "list"),
    "pods": ("get", "list", "watch"),
    "pods/exec": ("create",),
}
#: The user who runs kubectl in the pod of a launcher, for messages.
LAUNCHER_ACCOUNT = "the service account of the launcher's pod"
_REVIEW_API = "authorization.k8s.io/v1"
#: The option of kubectl that prints one word for each answer: ``true`` or ``false``.
_ANSWER_OPTION = r'--output=jsonpath={.status.allowed}{"\n"}'


def check_rights(ask: Callable[..., str], namespace: str) -> None:
    """Check that the user of this process has all rights that launch needs.

    Args:
        ask: Runs kubectl with these words, and with ``stdin``, and returns what it prints.
        namespace: The namespace of the pods.

    Raises:
        TransportError: Some rights are missing, the namespace does not exist, or the API server does not
            answer.
    """
    missing = missing_rights(ask, namespace)
    if not missing:
        return
    text = lacks(LAUNCHER_ACCOUNT if uses_pod_account() else "this user", namespace, missing)
    lacks_all_rights = missing == {resource: [*verbs] for resource, verbs in RIGHTS.items()}
    if lacks_all_rights:
        text += _about_namespace(ask, namespace)
    raise TransportError(text)


def missing_rights(ask: Callable[..., str], namespace: str) -> Mapping[str, Sequence[str]]:
    """Ask the API server by one command which rights a user lacks.

    Args:
        ask: Runs kubectl as this user, see `check_rights`.
        namespace: The namespace of the pods.

    Returns:
        The verbs that launch uses and the user may not, by resource.

    Raises:
        TransportError: The API server does not answer.
    """
    rights = [(verb, resource) for resource, verbs in RIGHTS.items() for verb in verbs]
    reviews = [_review(namespace, verb, resource) for verb, resource in rights]
    request = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    # To validate the objects, kubectl would first fetch the large schema of the API server.
    answers = ask("create", "--validate=false", _ANSWER_OPTION, "--filename=-", stdin=request).split()
    if len(answers) != len(rights) or not {"true", "false"}.issuperset(answers):
        raise TransportError("the API server does not say which rights this user has")
    missing: dict[str, list[str]] = {}
    for (verb, resource), allowed in zip(rights, answers, strict=True):
        if allowed == "false":
            missing.setdefault(resource, []).append(verb)
    return missing


def lacks(user: str, namespace: str, missing: Mapping[str, Sequence[str]]) -> str:
    """Return the message that a user lacks rights.

    Args:
        user: The words that name the user.
        namespace: The namespace.
        missing: The verbs that the user may not, by resource.
    """
    rights = "; ".join(f"{', '.join(verbs)} {resource}" for resource, verbs in missing.items())
    return (
        f"{user} lacks rights that launch needs in the namespace {namespace}: {rights} "
        "(docs/kubernetes.md, Rights, has the Role)"
    )


def _about_namespace(ask: Callable[..., str], namespace: str) -> str:
    """Return what to add to the message if a user has no right at all in a namespace.

    Perhaps the namespace does not exist. The result is empty if it does exist.

    Args:
        ask: Runs kubectl as this user, see `check_rights`.
        namespace: The namespace.

    Raises:
        TransportError: It surely does not exist.
    """
    try:
        ask("get", "namespace", namespace, "--output=name")
    except TransportError as error:
        if str(error).endswith(" not found"):
            raise TransportError(f"there is no namespace {namespace!r} in the cluster") from error
        # Most users may not read namespaces, so nobody knows.
        return f"; or there is no namespace {namespace!r}: --namespace names another one"
    return ""


def _review(namespace: str, verb: str, resource: str) -> Mapping[str, object]:
    """Return a SelfSubjectAccessReview, by which the API server answers whether its user has a right.

    Args:
        namespace: The namespace.
        verb: The verb, as in ``create``.
        resource: The resource, as in `RIGHTS`: ``NAME``, ``NAME.GROUP`` or ``NAME/SUBRESOURCE``.
    """
    qualified_name, _, subresource = resource.partition("/")
    name, _, group = qualified_name.partition(".")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name}
    return {
        "apiVersion": _REVIEW_API,
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
    }
