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
    #: Whether the cluster or a user ends the pod, so its processes do not end by themselves.
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
    task_state = _task_container(pod, "status", "containerStatuses")
    end_reason = _end_reason(pod, task_state, node)
    running = isinstance(_get(task_state, "state", "running"), Mapping)
    waiting, hopeless = "", False
    # What a pod waits for is of no interest when it runs or ends.
    if not end_reason and not running:
        waiting, hopeless = _waiting_for(pod, task_state, uid, events)
    has_final_phase = _text(pod, "status", "phase") in ("Failed", "Succeeded")
    has_terminated = isinstance(_get(task_state, "state", "terminated"), Mapping)
    was_evicted = _text(pod, "status", "reason") == "Evicted"
    return PodStatus(
        running,
        node=node if _NAME.fullmatch(node) else "",
        address=address if _ADDRESS.fullmatch(address) else "",
        waiting=sanitize_host_text(waiting),
        hopeless=hopeless,
        over=sanitize_host_text(end_reason),
        preempted=_has_condition(pod, "DisruptionTarget", "True") and not was_evicted,
        # The cluster sets a final phase for pods of a removed node, too. The last word about the container of
        # such a pod may be that it runs, and then its processes may run on.
        ended=has_terminated or (has_final_phase and not running),
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
    reasons = [_text(condition, "reason") for condition in _conditions(pod, "DisruptionTarget", "True")]
    was_deleted = _get(pod, "metadata", "deletionTimestamp") is not None
    # A node removes a pod only if a user has deleted it, and only after its processes have ended. A pod
    # that was on no node had no processes.
    node_removed_it = was_deleted and not _is_node_silent(pod) and _COLLECTED_REASON not in reasons
    ended = last.ended or not last.node or node_removed_it
    over = last.over or "its pod was deleted"
    return replace(last, running=False, waiting="", over=over, taken=True, ended=ended)


def job_status(job: _Json, events: Iterable[_Json]) -> PodStatus:
    """Return the state of the pod that a Job has not made yet: why not, and whether it never will.

    Args:
        job: The Job, as the API server sent it.
        events: Events of the namespace. Those with the reason `JOB_EVENT` say why the Job gets no pod.
    """
    for condition in _list(job, "status", "conditions"):
        # A Job that was suspended may go on. One that has failed makes no more pods.
        condition_type = _text(condition, "type")
        if condition_type in ("Failed", "Suspended") and _text(condition, "status") == "True":
            waiting = sanitize_host_text(_reason_and_message(condition))
            return PodStatus(waiting=waiting, hopeless=condition_type == "Failed")
    why = _newest_event_text(events, _text(job, "metadata", "uid"), JOB_EVENT)
    hopeless = _HOPELESS_WORDS.search(why) is not None
    return PodStatus(waiting=sanitize_host_text(why) or "its pod is not made yet", hopeless=hopeless)


def _host(pod: _Json) -> str:
    """Return the name of a pod's host, which launch has stored in a label of the pod.

    Raises:
        TransportError: The label is not a valid name.
    """
    host = _text(pod, "metadata", "labels", HOST_LABEL)
    if not _NAME.fullmatch(host):
        raise TransportError(f"the API server sends an object with the label {HOST_LABEL}={host!r}")
    return host


def _end_reason(pod: _Json, task_state: _Json, node: str) -> str:
    """Return why a pod has ended or is ending, for messages. Empty if it does not end.

    Several fields of a pod may say why. The one that explains most comes first:

    - Its container was killed because the memory was used up.
    - Its node is lost.
    - The reason of the pod itself, such as an eviction.
    - A disruption by the cluster, such as a preemption or a drain.
    - A user has deleted it.
    - Its container or its init container exited.

    Args:
        pod: The pod.
        task_state: The item of ``containerStatuses`` about the task's container.
        node: The name of its node.
    """
    terminated = _get(task_state, "state", "terminated")
    reason = _text(pod, "status", "reason")
    # The runtime also gives this reason to a container that exits by itself after one of its processes was
    # killed for memory. So the exit code must be that of SIGKILL, too.
    if _text(terminated, "reason") == OOM_KILLED_REASON and _get(terminated, "exitCode") == _KILLED_EXIT_CODE:
        limit = _text(_task_container(pod, "spec", "containers"), "resources", "limits", "memory")
        return f"{OOM_KILLED_REASON}: its {f'limit is {limit}' if limit else 'node had no memory left'}"
    if reason == "NodeLost" or _is_node_silent(pod):
        return f"its node {node} is lost"
    if reason:
        words = "its pod was evicted" if reason == "Evicted" else reason
        return _reason_and_message(_get(pod, "status"), words)
    for condition in _conditions(pod, "DisruptionTarget", "True"):
        disruption = _DISRUPTIONS.get(_text(condition, "reason"), "ended by the cluster")
        return _reason_and_message(condition, f"its pod was {disruption}")
    if _get(pod, "metadata", "deletionTimestamp") is not None:
        return "its pod was deleted"
    if isinstance(terminated, Mapping):
        return _container_end(pod, "its container", terminated)
    # Nothing says why. Only a final phase still tells that the pod has ended.
    phase = _text(pod, "status", "phase")
    if phase not in ("Failed", "Succeeded"):
        return ""
    # The task's container never ran if an init container failed.
    for container in _list(pod, "status", "initContainerStatuses"):
        if _get(container, "state", "terminated", "exitCode"):
            name = f"its init container {_text(container, 'name')}"
            return _container_end(pod, name, container["state"]["terminated"])
    return f"its pod has ended: {phase}"


def _is_taken(pod: _Json) -> bool:
    """Return whether the cluster or a user ends a pod, so it does not end by itself.

    The pod is then deleted, evicted or lost (its status names a reason), or chosen for a disruption.
    """
    was_deleted = _get(pod, "metadata", "deletionTimestamp") is not None
    has_reason = bool(_text(pod, "status", "reason"))
    return was_deleted or has_reason or _has_condition(pod, "DisruptionTarget", "True")


def _is_node_silent(pod: _Json) -> bool:
    """Return whether the node of a pod does not answer.

    Then the node's controller declares the pod not ready without a reason, although its containers are ready.
    """
    is_unready = any(not _text(condition, "reason") for condition in _conditions(pod, "Ready", "False"))
    return is_unready and _has_condition(pod, "ContainersReady", "True")


def _container_end(pod: _Json, name: str, terminated: object) -> str:
    """Return how a container has ended, for messages.

    Args:
        pod: The pod.
        name: The words that name the container.
        terminated: The state ``terminated`` of the container.
    """
    code, message = _get(terminated, "exitCode"), _without_callers(_text(terminated, "message"))
    if fault := _missing_program(pod, message):
        return fault
    if not isinstance(code, int):  # Texts of the API server are not trusted.
        return f"{name} has ended"
    # Runtimes report the end by a signal as 128 and the number of the signal, as shells do.
    how = f"was killed by {signal_name(code - 128)}" if 128 < code <= 192 else f"exited with {code}"
    return f"{name} {how}: {message}" if message else f"{name} {how}"


def _waiting_for(pod: _Json, task_state: _Json, uid: str, events: Iterable[_Json]) -> tuple[str, bool]:
    """Find out what keeps a pod from running: no node yet, then a container, then a volume (an event).

    Args:
        pod: The pod.
        task_state: The item of ``containerStatuses`` about the task's container.
        uid: The uid of the pod.
        events: Events of the namespace, if they are known.

    Returns:
        The reason for messages, and whether waiting for it is hopeless. The reason is empty if the pod is
        just starting.
    """
    for condition in _conditions(pod, "PodScheduled", "False"):
        if _text(condition, "reason") == "SchedulingGated":
            gates = ", ".join(_text(gate, "name") for gate in _list(pod, "spec", "schedulingGates"))
            return f"not admitted yet: its scheduling gates are {gates}", False
        first_sentence = _text(condition, "message").partition(". ")[0]
        return f"not scheduled: {first_sentence}", False
    # The first container that waits for more than its start counts. Init containers run before the task's.
    for container in (*_list(pod, "status", "initContainerStatuses"), task_state):
        reason = _text(container, "state", "waiting", "reason")
        if reason not in _STARTING_REASONS:
            message = _without_callers(_text(container, "state", "waiting", "message"))
            return _container_waiting(pod, container, reason, message)
    if event_text := _newest_event_text(events, uid, POD_EVENT):
        return event_text, False
    if _has_condition(pod, "Initialized", "False"):
        for container in _list(pod, "status", "initContainerStatuses"):
            if isinstance(_get(container, "state", "running"), Mapping):
                return f"its init container {_text(container, 'name')} runs", False
    return "", False


def _container_waiting(pod: _Json, container: _Json, reason: str, message: str) -> tuple[str, bool]:
    """Return what a container waits for, for messages, and whether that can never come.

    Args:
        pod: The pod.
        container: The item of ``containerStatuses`` about the container.
        reason: The reason of its state ``waiting``.
        message: The message of that state.
    """
    if reason in _PULLING_REASONS:
        return f"cannot pull the image {_text(container, 'image')}: {message}", False
    if fault := _missing_program(pod, message):
        return fault, True
    hopeless = reason == "InvalidImageName" or _HOPELESS_WORDS.search(message) is not None
    return f"{reason}: {message}", hopeless


def _missing_program(pod: _Json, message: str) -> str:
    """Return a message for the user if the image lacks the container's program, which is a Python.

    Args:
        pod: The pod.
        message: What the runtime says about the container.

    Returns:
        The message. Empty if the runtime reports another fault, or none.
    """
    match = _NO_PROGRAM.search(message)
    if match is None:
        return ""
    image = _text(_task_container(pod, "spec", "containers"), "image")
    return f"the image {image} has no Python of 3.8 or later ({match[0]})"


# ---------------------------------------------------------------------- parts of objects


def _get(value: object, *path: str) -> Any:
    """Return the value at a path of keys in nested JSON objects. None if it does not exist."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: object, *path: str) -> str:
    """Return the text at a path of keys in a JSON object. Empty if there is no text."""
    text = _get(value, *path)
    return sanitize_host_text(text) if isinstance(text, str) else ""


def _list(value: object, *path: str) -> list[_Json]:
    """Return the objects in the list at a path of keys in a JSON object. Empty if there is no list."""
    items = _get(value, *path)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _conditions(pod: _Json, type: str, status: str) -> Iterator[_Json]:
    """Yield the conditions of a pod with this type and status, such as ``Ready`` and ``False``."""
    for condition in _list(pod, "status", "conditions"):
        if _text(condition, "type") == type and _text(condition, "status") == status:
            yield condition


def _has_condition(pod: _Json, type: str, status: str) -> bool:
    """Return whether a pod has a condition with this type and status, such as ``Ready`` and ``False``."""
    return next(_conditions(pod, type, status), None) is not None


def _task_container(pod: _Json, *path: str) -> _Json:
    """Return the item about the task's container in the list at a path of keys. Empty if there is none."""
    matching = (container for container in _list(pod, *path) if _text(container, "name") == TASK_CONTAINER)
    return next(matching, {})


def _reason_and_message(value: object, reason: str = "") -> str:
    """Return the reason and the message of a condition, a status or an event, as ``REASON: MESSAGE``.

    Args:
        value: The condition, the status or the event.
        reason: Words in place of its own reason. Empty to keep that.
    """
    message = _without_callers(_text(value, "message"))
    return ": ".join(filter(None, (reason or _text(value, "reason"), message)))


def _without_callers(message: str) -> str:
    """Return a message of a runtime or a kubelet without the prefixes of all callers that passed it on."""
    return _CALLER_PREFIX.sub("", message).removesuffix(": unknown")


def _newest_event_text(events: Iterable[_Json], uid: str, reason: str) -> str:
    """Return the text of the newest event about the object with this uid, with this reason.

    Empty if there is none.
    """

    def time(event: _Json) -> str:
        """Return the time of an event, in RFC 3339: such texts can be compared."""
        # Each API for events has a field of its own.
        return max(_text(event, "lastTimestamp"), _text(event, "eventTime"))

    about_it = [event for event in events if _text(event, "involvedObject", "uid") == uid]
    matching = [event for event in about_it if _text(event, "reason") == reason]
    return _reason_and_message(max(matching, key=time, default={}))
