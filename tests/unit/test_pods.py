"""What the API server tells about pods and Jobs. The texts are those of a Kubernetes 1.36 with containerd."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from launcher.backends.kubernetes.status import PodStatus, gone_status, job_status, pod_status
from launcher.common.errors import TransportError
from tests.conftest import examples

#: Messages of a registry, of a runtime, of an admission controller.
_PULL = (
    'failed to pull and unpack image "r.io/tf:1": failed to resolve reference "r.io/tf:1": failed to do request: '
    'Head "http://r.io/v2/tf/manifests/1": dial tcp 127.0.0.1:80: connect: connection refused'
)
_RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc "
    "create failed: "
    'unable to start container process: exec: "python3": executable file not found in $PATH: unknown'
)
_ROOT = "container has runAsNonRoot and image will run as root"
_SECURITY = (
    'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "task" must set '
    "securityContext.allowPrivilegeEscalation=false)"
)
_EVENT = {"reason": "FailedMount", "involvedObject": {"uid": "u1"}}


def pod(
    state: dict[str, Any] | None = None,
    conditions: dict[str, str] | None = None,
    limit: str = "",
    init: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A pod.

    Args:
        state: of its container, by kind.
        conditions: by type: ``STATUS REASON MESSAGE``.
        limit: of memory.
        init: the state of its init container.
        fields: of its status; deleted and gates are those of other parts.
    """
    metadata = {"uid": "u1", "labels": {"tf-launcher/host": "worker-0"}}
    if fields.pop("deleted", False):
        metadata["deletionTimestamp"] = "2026-11-26T15:03:01Z"
    container: dict[str, Any] = {"name": "task", "image": "r.io/tf:1"}
    if limit:
        container["resources"] = {"limits": {"memory": limit}}
    spec = {"containers": [container], "nodeName": "n2", "schedulingGates": fields.pop("gates", [])}
    names = ("status", "reason", "message")
    found = [
        {"type": type, **dict(zip(names, text.split(" ", 2), strict=False))}
        for type, text in (conditions or {}).items()
    ]
    status = {"phase": "Pending", "conditions": found, **fields}
    if state:
        sidecar = {"name": "a-sidecar", "state": {"terminated": {"exitCode": 4}}}
        last = {"lastState": state.pop("last", {})}
        ours = {"name": "task", "image": "r.io/tf:1", "state": state, **last}
        status["containerStatuses"] = [sidecar, ours]
    if init:
        status["initContainerStatuses"] = [{"name": "wait", "image": "r.io/init:1", "state": init}]
    return {"metadata": metadata, "spec": spec, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, reason: str = "Error", **fields: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, **fields}}


RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-11-26T15:02:32Z"}}
STARTING = waiting("PodInitializing")


def test_a_pod_that_runs():
    found = pod_status(pod(RUNNING, phase="Running", podIP="10.244.2.13"))
    assert found == PodStatus(True, "n2", "10.244.2.13")


def unscheduled(reason: str, message: str, **fields: Any) -> dict[str, Any]:
    return pod(conditions={"PodScheduled": f"False {reason} {message}"}, **fields)


UNSCHEDULED = "0/2 nodes are available: 2 Insufficient memory. no new claims to deallocate, preemption: 0/2 nodes are available."
NO_CLAIM = '0/2 nodes are available: persistentvolumeclaim "data" not found. not found'
WAITING = {
    "nothing yet": pod(),
    "creating": pod(waiting("ContainerCreating")),
    "no room": unscheduled("Unschedulable", UNSCHEDULED),
    "no claim": unscheduled("Unschedulable", NO_CLAIM),
    "gates": unscheduled(
        "SchedulingGated", "Scheduling is blocked", gates=[{"name": "kueue.x-k8s.io/admission"}]
    ),
    "pull": pod(waiting("ErrImagePull", _PULL)),
    "pull, by rpc": pod(waiting("ErrImagePull", f"rpc error: code = Unknown desc = {_PULL}")),
    "pull, later": pod(
        waiting("ImagePullBackOff", f'Back-off pulling image "r.io/tf:1": ErrImagePull: {_PULL}')
    ),
    "never pulled": pod(waiting("ErrImageNeverPull", "tf:1 is not present with pull policy of Never")),
    "no secret": pod(waiting("CreateContainerConfigError", 'secret "token" not found')),
    "init container": pod(STARTING, {"Initialized": "False ContainersNotInitialized"}, init=RUNNING),
    "pull of an init container": pod(STARTING, init=waiting("ErrImagePull", "denied")),
}
HOPELESS = {
    "name of the image": pod(waiting("InvalidImageName", 'couldn\'t parse image name "A B": invalid')),
    "root": pod(waiting("CreateContainerConfigError", _ROOT)),
    "no Python": pod(waiting("RunContainerError", _RUNC)),
}


def test_what_keeps_a_pod_from_running(snapshot: SnapshotAssertion):
    found = {name: pod_status(each) for name, each in {**WAITING, **HOPELESS}.items()}
    assert {name for name, status in found.items() if status.hopeless} == {*HOPELESS}
    assert not any(status.running or status.over for status in found.values())
    assert {name: status.waiting for name, status in found.items()} == snapshot


def test_an_event_tells_why_a_volume_is_not_there():
    events = [
        {**_EVENT, "lastTimestamp": "2026-11-26T15:01:26Z", "message": 'secret "data" not found'},
        {**_EVENT, "lastTimestamp": "2026-11-26T15:00:54Z", "message": "an older one"},
        {**_EVENT, "lastTimestamp": "2026-11-26T15:02:54Z", "message": "another pod", "involvedObject": {}},
        {**_EVENT, "lastTimestamp": "2026-11-26T15:02:54Z", "message": "no trouble", "reason": "Pulled"},
    ]
    missing = pod_status(pod(waiting("ContainerCreating")), events).waiting
    assert missing == 'FailedMount: secret "data" not found'
    assert pod_status(pod(RUNNING), events).waiting == ""


_PREEMPTED = {
    "DisruptionTarget": "True PreemptionByScheduler default-scheduler: preempting to accommodate a higher priority pod"
}
_EVICTED = {"DisruptionTarget": "True EvictionByEvictionAPI Eviction API: evicting"}
_TAINTED = {"DisruptionTarget": "True DeletionByTaintManager Taint manager: deleting due to NoExecute taint"}
_SILENT = {"Ready": "False", "ContainersReady": "True"}
_COLLECTED = {"DisruptionTarget": "True DeletionByPodGC PodGC: node no longer exists"}
_NO_FOLDER = "runc create failed: Cwd must be an absolute path: unknown"


def failed(code: int, reason: str = "Error", message: str = "", **fields: Any) -> dict[str, Any]:
    return pod(terminated(code, reason, message=message), **{"phase": "Failed", **fields})


ENDED = {
    "OOM by its limit": failed(137, "OOMKilled", limit="64Mi"),
    "OOM of its node": failed(137, "OOMKilled"),
    "OOM of another process": failed(1, "OOMKilled", limit="1Gi"),
    "evicted": pod(
        terminated(137), phase="Failed", reason="Evicted", message='EmptyDir "v" exceeds the limit "20Mi". '
    ),
    "deadline": pod(
        terminated(137), phase="Failed", reason="DeadlineExceeded", message="Pod was active too long"
    ),
    "deleted": failed(143, deleted=True),
    "exit code": failed(3),
    "success": failed(0, "Completed", phase="Succeeded"),
    "signal": failed(137),
    "no Python": failed(128, "StartError", _RUNC),
    "no folder": failed(128, "StartError", _NO_FOLDER),
    "init container": pod(STARTING, init=terminated(1), phase="Failed"),
    "unknown": pod(phase="Failed"),
}
PREEMPTED = {
    "preempted": pod(RUNNING, _PREEMPTED, phase="Running", deleted=True),
    "evicted by the API": pod(RUNNING, _EVICTED, deleted=True),
    "tainted": pod(RUNNING, _TAINTED, deleted=True),
    "tainted and silent": pod(RUNNING, {**_TAINTED, **_SILENT}, phase="Running", deleted=True),
    "collected": pod(RUNNING, _COLLECTED, phase="Failed", deleted=True),
}
PREEMPTED_AND_ENDED = {"ended by preemption": pod(terminated(137), _PREEMPTED, phase="Failed", deleted=True)}
LOST = {
    "silent": pod(RUNNING, _SILENT, phase="Running"),
    "its node": pod(RUNNING, phase="Running", reason="NodeLost"),
    "being deleted": pod(RUNNING, phase="Running", deleted=True),
}


def test_why_a_pod_is_over(snapshot: SnapshotAssertion):
    pods = {**ENDED, **PREEMPTED, **PREEMPTED_AND_ENDED, **LOST}
    found = {name: pod_status(each) for name, each in pods.items()}
    assert {name for name, status in found.items() if status.ended} == {*ENDED, *PREEMPTED_AND_ENDED}
    assert {name for name, status in found.items() if status.preempted} == {*PREEMPTED, *PREEMPTED_AND_ENDED}
    assert not any(status.waiting for status in found.values())
    assert {name: status.over for name, status in found.items()} == snapshot


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        (pod(RUNNING, phase="Running"), False),
        (pod(RUNNING, phase="Running", deleted=True), True),
        (PREEMPTED["preempted"], True),
        (pod(RUNNING, _SILENT, phase="Running", deleted=True), False),
        (PREEMPTED["collected"], False),
        (ENDED["deleted"], True),
    ],
)
def test_a_pod_that_is_gone(last: dict[str, Any], ended: bool):
    """Its processes have ended, if its node has removed it."""
    status = gone_status(last)
    assert (status.ended, status.taken, status.running, status.node) == (ended, True, False, "n2")


def not_created(message: str) -> PodStatus:
    """The status of a Job whose pod was refused with this message; empty: there was no event."""
    event = {
        "reason": "FailedCreate",
        "involvedObject": {"uid": "j1"},
        "message": f"Error creating: {message}",
    }
    return job_status(a_job(), [event] if message else [])


def a_job(**condition: str) -> dict[str, Any]:
    metadata = {"name": "m", "uid": "j1", "labels": {"tf-launcher/host": "worker-0"}}
    return {
        "metadata": metadata,
        "status": {"conditions": [{"status": "True", **condition}]} if condition else {},
    }


def test_why_a_job_has_no_pod(snapshot: SnapshotAssertion):
    maximum = "maximum memory usage per Container is 1Gi, but limit is 2Gi"
    passing = {
        "not yet": not_created(""),
        "quota": not_created('pods "m-d" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2'),
        "account": not_created('pods "m-" is forbidden: error looking up service account a/b: "b" not found'),
        "suspended": job_status(a_job(type="Suspended", reason="JobSuspended", message="Job suspended"), []),
    }
    hopeless = {
        "security": not_created(f'pods "m-x" is forbidden: {_SECURITY}'),
        "maximum": not_created(f'pods "m-x" is forbidden: {maximum}'),
        "deadline": job_status(a_job(type="Failed", reason="DeadlineExceeded", message="too long"), []),
    }
    assert not any(status.hopeless for status in passing.values())
    assert all(status == PodStatus(waiting=status.waiting, hopeless=True) for status in hopeless.values())
    assert {name: status.waiting for name, status in {**passing, **hopeless}.items()} == snapshot


# ---------------------------------------------------------------------- any object

_KEYS = [
    "metadata", "name", "uid", "labels", "tf-launcher/host", "spec", "status", "containers", "initContainerStatuses",
    "containerStatuses", "state", "waiting", "terminated", "running", "reason", "message", "conditions", "type",
    "phase", "exitCode", "image", "limits", "resources", "memory",
]  # fmt: skip
_WORDS = (
    "task", "True", "False", "Ready", "DisruptionTarget", "PodScheduled", "ErrImagePull", "OOMKilled", "a\n\x1b[2J",
)  # fmt: skip
_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5000) | st.sampled_from(_WORDS)
)
_ANY = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=8),
    max_leaves=30,
)
_STATUSES = st.lists(
    st.fixed_dictionaries({"name": st.just("task"), "state": _ANY, "lastState": _ANY}), max_size=1
)
_CONDITION = st.fixed_dictionaries({"type": st.sampled_from(_WORDS), "status": st.sampled_from(_WORDS)})


_STATUS = st.fixed_dictionaries(
    {"containerStatuses": _STATUSES | _ANY, "conditions": st.lists(_CONDITION | _ANY, max_size=3)},
    optional=dict.fromkeys(("reason", "message", "phase", "initContainerStatuses"), _ANY),
)
_OBJECTS = st.fixed_dictionaries(
    {"metadata": st.just(pod()["metadata"]) | _ANY, "spec": _ANY}, optional={"status": _ANY | _STATUS}
)
_EVENTS = st.lists(
    st.dictionaries(st.sampled_from(("reason", "message", "involvedObject")), _ANY), max_size=2
)


@settings(max_examples=examples(200), deadline=None)
@given(_OBJECTS, _EVENTS)
def test_any_object_gives_a_status_or_an_error(found: dict[str, Any], events: list[dict[str, Any]]):
    texts: list[str] = []
    for read in (pod_status, job_status):
        try:
            status = read(found, events)
        except TransportError as error:
            texts.append(str(error))
        else:
            texts += (status.node, status.address, status.waiting, status.over)
    assert all(len(text) <= 2200 and text.isprintable() for text in texts)
