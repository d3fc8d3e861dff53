"""Reads what the API server says about pods: whether one runs, what prevents that, why it has ended.

The objects are JSON from the API server, and contain texts of nodes, registries and users. So nothing in them
is trusted: a pod must have a valid uid and a valid label of its host, and every other field that is not as
Kubernetes describes it counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from launcher.common.errors import TransportError
from launcher.common.record import Record, replace
from launcher.common.text import sanitize_host_text, signal_name

#: The beginning of the reason of a pod that ended because its memory ran out.
OOM_KILLED_REASON = "OOMKilled"
#: The exit code of a container after SIGKILL.
_KILLED_EXIT_CODE = 137
#: The name of the container that launch runs in a pod.
TASK_CONTAINER = "task"
#: The label of a pod that contains the name of its host.
HOST_LABEL = "tf-launcher/host"
_Json = Mapping[str, Any]
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")
#: The reasons of a container that is just starting.
_STARTING_REASONS = ("", "ContainerCreating", "PodInitializing")
#: The reasons that alternate while an image cannot be pulled, each with the same message.
_PULLING_REASONS = ("ErrImagePull", "ImagePullBackOff")
#: Messages about causes that waiting cannot remove.
_HOPELESS_WORDS = re.compile(r"runAsNonRoot|violates PodSecurity|(?:minimum|maximum) .* usage per ")
#: The kernel's or the runtime's answer if the image does not have the program of the container.
_NO_PROGRAM = re.compile(
    r'exec: "[^"]*": (?:executable file not found|stat [^:]*: no such file).*|executable file .* not found.*'
)
#: What runtimes, kubelets and controllers write before a message, and after it.
_CALLER_PREFIX = re.compile(
    r'^(?:(?:failed to [^:"]*(?:"[^"]*")?|OCI runtime [^:]*|runc [^:]*|unable to start container process'
    r'|Back-off pulling image "[^"]*"|ErrImagePull|Error creating|Error): |rpc error: code = \w+ desc = '
    r'|pods "[^"]*" is forbidden: )+'
)
#: The reason of the condition DisruptionTarget if the node of a pod no longer exists.
_COLLECTED_REASON = "DeletionByPodGC"
#: What happened to a pod, by the reason of its condition DisruptionTarget.
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "evicted",
    "DeletionByTaintManager": "evicted",
    "TerminationByKubelet": "evicted",
    _COLLECTED_REASON: "deleted",
}
#: The reason of events about a Job that gets no pod.
JOB_EVENT = "FailedCreate"
#: The reason of events about a pod that does not start.
POD_EVENT = "FailedMount"


class PodStatus(Record):
    """The state of the pod of a host."""

    #: Whether the container of the task runs.
    running: bool = False
    #: The node of the pod. Empty if it is on none yet.
    node: str = ""
    #: The IP address of the pod. Empty if it is without one yet.
    address: str = ""
    #: What keeps the pod from running, for messages. Empty if nothing does, or if it is just starting.
    waiting: str = ""
    #: Whether the pod waits for something that can never come.
    hopeless: bool = False
    #: Why the pod has ended or is ending, for messages. Empty if it does not end. A pod on a lost node may
    #: run on.
    over: str = ""
    #: Whether the cluster ended the pod for a reason of its own: preemption, a drain, a lost node. A pod that
    #: its node evicts may have used too much, so this does not count.
    preempted: bool = False
    #: Whether the processes of the pod have surely ended.
    ended: bool = False
    #: Whether the cluster or a user ends the pod, so that its processes do not end by themselves.
    taken: bool = False


def pod_status(pod: _Json, events: Iterable[_Json] = ()) -> PodStatus:
    """Return the state of a pod.

    Args:
        pod: The pod, as the API server sent it.
        events: Events of the namespace, if they are known. Those with the reason `POD_EVENT` add details.

    Raises:
        TransportError: The pod lacks a valid uid, or a valid label of its host.
    """
    uid, host = _text(pod, "metadata", "uid"), _host(pod)
    if not _NAME.fullmatch(uid):
        raise TransportError(f"{host}: the API server sends a pod with the uid {uid!r}")
    node, address = _text(pod, "spec", "nodeName"), _text(pod, "status", "podIP")
    ours = _task_container(pod, "status", "containerStatuses")
    over = _over(pod, ours, node)
    running = isinstance(_get(ours, "state", "running"), Mapping)
    waiting, hopeless = ("", False) if over or running else _waiting(pod, ours, uid, events)
    return PodStatus(
        running,
        node=node if _NAME.fullmatch(node) else "",
        address=address if _ADDRESS.fullmatch(address) else "",
        waiting=sanitize_host_text(waiting),
        hopeless=hopeless,
        over=sanitize_host_text(over),
        preempted=_has_condition(pod, "DisruptionTarget", "True")
        and _text(pod, "status", "reason") != "Evicted",
        # The cluster sets the phase of pods of a removed node, but their processes may run on.
        ended=(_text(pod, "status", "phase") in ("Failed", "Succeeded") and not running)
        or isinstance(_get(ours, "state", "terminated"), Mapping),
        taken=_is_taken(pod),
    )


def gone_status(pod: _Json) -> PodStatus:
    """Return the state of a pod that no longer exists, from the API's last answer about it.

    Usually its node removed it after its processes had ended. But if the node itself was removed, the cluster
    removes the pod, and the processes may run on.

    Args:
        pod: The pod, as the API server sent it last.
    """
    last = pod_status(pod)
    reasons = (_text(condition, "reason") for condition in _conditions(pod, "DisruptionTarget", "True"))
    deleted = _get(pod, "metadata", "deletionTimestamp") is not None
    by_node = not last.node or (deleted and not _is_silent(pod) and _COLLECTED_REASON not in reasons)
    over = last.over or "its pod was deleted"
    return replace(last, running=False, waiting="", over=over, taken=True, ended=last.ended or by_node)


def job_status(job: _Json, events: Iterable[_Json]) -> PodStatus:
    """Return the state of the pod that a Job has not made yet.

    Args:
        job: The Job, as the API server sent it.
        events: Events of the namespace with the reason `JOB_EVENT`.
    """
    for condition in _list(job, "status", "conditions"):
        if _text(condition, "type") in ("Failed", "Suspended") and _text(condition, "status") == "True":
            hopeless = _text(condition, "type") == "Failed"
            return PodStatus(waiting=sanitize_host_text(_said(condition)), hopeless=hopeless)
    why = _event(events, _text(job, "metadata", "uid"), JOB_EVENT)
    hopeless = _HOPELESS_WORDS.search(why) is not None
    return PodStatus(waiting=sanitize_host_text(why) or "its pod is not made yet", hopeless=hopeless)


def _host(found: _Json) -> str:
    """Return the name of the host that is a label of a pod.

    Raises:
        TransportError: The label is not a valid name.
    """
    host = _text(found, "metadata", "labels", HOST_LABEL)
    if not _NAME.fullmatch(host):
        raise TransportError(f"the API server sends an object with the label {HOST_LABEL}={host!r}")
    return host


def _over(pod: _Json, ours: _Json, node: str) -> str:
    """Return why a pod has ended or is ending, for messages. Empty if it does not end.

    Args:
        pod: The pod.
        ours: The state of its task container.
        node: The name of its node.
    """
    ended = _get(ours, "state", "terminated")
    reason = _text(pod, "status", "reason")
    # If a process was killed for memory before, this is the reason, however the container ends.
    if _text(ended, "reason") == OOM_KILLED_REASON and _get(ended, "exitCode") == _KILLED_EXIT_CODE:
        limit = _text(_task_container(pod, "spec", "containers"), "resources", "limits", "memory")
        return f"{OOM_KILLED_REASON}: its {f'limit is {limit}' if limit else 'node had no memory left'}"
    if reason == "NodeLost" or _is_silent(pod):
        return f"its node {node} is lost"
    if reason:
        return _said(_get(pod, "status"), "its pod was evicted" if reason == "Evicted" else reason)
    for condition in _conditions(pod, "DisruptionTarget", "True"):
        done = _DISRUPTIONS.get(_text(condition, "reason"), "ended by the cluster")
        return _said(condition, f"its pod was {done}")
    if _get(pod, "metadata", "deletionTimestamp") is not None:
        return "its pod was deleted"
    if isinstance(ended, Mapping):
        return _end(pod, "its container", ended)
    phase = _text(pod, "status", "phase")
    if phase not in ("Failed", "Succeeded"):
        return ""
    for container in _list(pod, "status", "initContainerStatuses"):
        if _get(container, "state", "terminated", "exitCode"):
            name = f"its init container {_text(container, 'name')}"
            return _end(pod, name, container["state"]["terminated"])
    return f"its pod has ended: {phase}"


def _is_taken(pod: _Json) -> bool:
    """Return whether the cluster or a user ends a pod.

    The pod is then deleted, evicted or lost (its status names a reason), or chosen for a disruption.
    """
    deleted = _get(pod, "metadata", "deletionTimestamp") is not None
    return deleted or bool(_text(pod, "status", "reason")) or _has_condition(pod, "DisruptionTarget", "True")


def _is_silent(pod: _Json) -> bool:
    """Return whether the node of a pod does not answer.

    Then the node's controller declares the pod not ready without a reason, although its containers are ready.
    """
    silent = any(not _text(ready, "reason") for ready in _conditions(pod, "Ready", "False"))
    return silent and _has_condition(pod, "ContainersReady", "True")


def _end(pod: _Json, name: str, ended: object) -> str:
    """Return how a container has ended, for messages.

    Args:
        pod: The pod.
        name: The words that name the container.
        ended: The state ``terminated`` of the container.
    """
    code, message = _get(ended, "exitCode"), _cut(_text(ended, "message"))
    if fault := _no_program(pod, message):
        return fault
    if not isinstance(code, int):
        return f"{name} has ended"
    how = f"was killed by {signal_name(code - 128)}" if 128 < code <= 192 else f"exited with {code}"
    return f"{name} {how}: {message}" if message else f"{name} {how}"


def _waiting(pod: _Json, ours: _Json, uid: str, events: Iterable[_Json]) -> tuple[str, bool]:
    """Find out what keeps a pod from running.

    Args:
        pod: The pod.
        ours: The state of its task container.
        uid: The uid of the pod.
        events: Events of the namespace, if they are known.

    Returns:
        The reason for messages, empty if the pod is just starting; and whether waiting cannot help.
    """
    for condition in _conditions(pod, "PodScheduled", "False"):
        if _text(condition, "reason") == "SchedulingGated":
            gates = ", ".join(_text(gate, "name") for gate in _list(pod, "spec", "schedulingGates"))
            return f"not admitted yet: its scheduling gates are {gates}", False
        return f"not scheduled: {_text(condition, 'message').partition('. ')[0]}", False
    for container in (*_list(pod, "status", "initContainerStatuses"), ours):
        reason = _text(container, "state", "waiting", "reason")
        if reason not in _STARTING_REASONS:
            return _held_up(pod, container, reason, _cut(_text(container, "state", "waiting", "message")))
    if text := _event(events, uid, POD_EVENT):
        return text, False
    if _has_condition(pod, "Initialized", "False"):
        for container in _list(pod, "status", "initContainerStatuses"):
            if isinstance(_get(container, "state", "running"), Mapping):
                return f"its init container {_text(container, 'name')} runs", False
    return "", False


def _held_up(pod: _Json, container: _Json, reason: str, message: str) -> tuple[str, bool]:
    """Return what a container waits for, and whether that can never come."""
    if reason in _PULLING_REASONS:
        return f"cannot pull the image {_text(container, 'image')}: {message}", False
    if fault := _no_program(pod, message):
        return fault, True
    hopeless = reason == "InvalidImageName" or _HOPELESS_WORDS.search(message) is not None
    return f"{reason}: {message}", hopeless


def _no_program(pod: _Json, message: str) -> str:
    """Return a message that the image lacks the program of the container.

    Empty if the fault is another one.
    """
    found = _NO_PROGRAM.search(message)
    if found is None:
        return ""
    image = _text(_task_container(pod, "spec", "containers"), "image")
    return f"the image {image} has no Python of 3.8 or later ({found[0]})"


# ---------------------------------------------------------------------- parts of objects


def _get(value: object, *path: str) -> Any:
    """Return the value at a path of keys in a JSON object, or None."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: object, *path: str) -> str:
    """Return the text at a path of keys in a JSON object. Empty if there is no text."""
    found = _get(value, *path)
    return sanitize_host_text(found) if isinstance(found, str) else ""


def _list(value: object, *path: str) -> list[_Json]:
    """Return the objects in the list at a path of keys in a JSON object."""
    found = _get(value, *path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _conditions(pod: _Json, type: str, status: str) -> Iterator[_Json]:
    """Yield the conditions of a pod with this type and status."""
    for condition in _list(pod, "status", "conditions"):
        if _text(condition, "type") == type and _text(condition, "status") == status:
            yield condition


def _has_condition(pod: _Json, type: str, status: str) -> bool:
    return next(_conditions(pod, type, status), None) is not None


def _task_container(pod: _Json, *path: str) -> _Json:
    """Return the item about the task's container in the list at a path of keys."""
    return next((each for each in _list(pod, *path) if _text(each, "name") == TASK_CONTAINER), {})


def _said(value: object, reason: str = "") -> str:
    """Return the reason and the message of a condition or a status."""
    message = _cut(_text(value, "message"))
    return ": ".join(filter(None, (reason or _text(value, "reason"), message)))


def _cut(message: str) -> str:
    """Return a message without the names of the functions that passed it on."""
    return _CALLER_PREFIX.sub("", message).removesuffix(": unknown")


def _event(events: Iterable[_Json], uid: str, reason: str) -> str:
    """Return the text of the newest event of an object with this reason. Empty if there is none."""
    found = [
        event
        for event in events
        if _text(event, "involvedObject", "uid") == uid and _text(event, "reason") == reason
    ]
    times = ("lastTimestamp", "eventTime")
    newest = max(found, key=lambda event: max(_text(event, time) for time in times), default={})
    return _said(newest)
