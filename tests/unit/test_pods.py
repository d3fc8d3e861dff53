"""What the API server tells about pods and Jobs. The texts are those of a Kubernetes 1.36 with containerd."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
_NO_PYTHON = (
    'the image r.io/tf:1 has no Python of 3.8 or later (exec: "python3": executable file not found in $PATH'
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


@pytest.mark.parametrize(
    ("found", "text", "hopeless"),
    [
        (pod(), "", False),
        (pod(waiting("ContainerCreating")), "", False),
        (
            pod(conditions={
                "PodScheduled": "False Unschedulable 0/2 nodes are available: 2 Insufficient memory. no new claims "
                "to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for "
                "scheduling."
            }),
            "not scheduled: 0/2 nodes are available: 2 Insufficient memory", False,
        ),
        (
            pod(conditions={"PodScheduled": "False Unschedulable 0/2 nodes are available: persistentvolumeclaim "
                '"data" not found. not found'}),
            'not scheduled: 0/2 nodes are available: persistentvolumeclaim "data" not found', False,
        ),
        (
            pod(conditions={"PodScheduled": "False SchedulingGated Scheduling is blocked due to non-empty gates"},
                gates=[{"name": "kueue.x-k8s.io/admission"}]),
            "not admitted yet: its scheduling gates are kueue.x-k8s.io/admission", False,
        ),
        *(
            (
                pod(waiting(reason, message)),
                'can\'t pull the image r.io/tf:1: Head "http://r.io/v2/tf/manifests/1": dial tcp 127.0.0.1:80: '
                "connect: connection refused", False,
            )
            for reason, message in (
                ("ErrImagePull", _PULL),
                ("ErrImagePull", f"rpc error: code = Unknown desc = {_PULL}"),
                ("ImagePullBackOff", f'Back-off pulling image "r.io/tf:1": ErrImagePull: {_PULL}'),
            )
        ),
        (
            pod(waiting("ErrImageNeverPull", 'Container image "tf:1" is not present with pull policy of Never')),
            'ErrImageNeverPull: Container image "tf:1" is not present with pull policy of Never', False,
        ),
        (
            pod(waiting("InvalidImageName", "couldn't parse image name \"A B\": invalid reference format")),
            "InvalidImageName: couldn't parse image name \"A B\": invalid reference format", True,
        ),
        (
            pod(waiting("CreateContainerConfigError", 'secret "token" not found')),
            'CreateContainerConfigError: secret "token" not found', False,
        ),
        (pod(waiting("CreateContainerConfigError", _ROOT)), f"CreateContainerConfigError: {_ROOT}", True),
        (pod(waiting("RunContainerError", _RUNC)), f"{_NO_PYTHON})", True),
        (
            pod(STARTING, {"Initialized": "False ContainersNotInitialized"}, init=RUNNING),
            "its init container wait runs", False,
        ),
        (pod(STARTING, init=waiting("ErrImagePull", "denied")), "can't pull the image r.io/init:1: denied", False),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_running(found: dict[str, Any], text: str, hopeless: bool):
    status = pod_status(found)
    assert (status.waiting, status.hopeless, status.running, status.over) == (text, hopeless, False, "")


def test_an_event_tells_why_a_volume_is_not_there():
    events = [
        {**_EVENT, "lastTimestamp": "2026-11-26T15:01:26Z", "message": 'secret "data" not found'},
        {**_EVENT, "lastTimestamp": "2026-11-26T15:00:54Z", "message": "an older one"},
        {**_EVENT, "lastTimestamp": "2026-11-26T15:02:54Z", "message": "another pod", "involvedObject": {}},
        {**_EVENT, "lastTimestamp": "2026-11-26T15:02:54Z", "message": "no trouble", "reason": "Pulled"},
    ]
    assert (
        pod_status(pod(waiting("ContainerCreating")), events).waiting
        == 'FailedMount: secret "data" not found'
    )
    assert pod_status(pod(RUNNING), events).waiting == ""


_PREEMPTED = {
    "DisruptionTarget": "True PreemptionByScheduler default-scheduler: preempting to accommodate a higher priority pod"
}
_TAINTED = {"DisruptionTarget": "True DeletionByTaintManager Taint manager: deleting due to NoExecute taint"}
_SILENT = {"Ready": "False", "ContainersReady": "True"}
_COLLECTED = {"DisruptionTarget": "True DeletionByPodGC PodGC: node no longer exists"}


@pytest.mark.parametrize(
    ("found", "text", "ended", "preempted"),
    [
        (pod(terminated(137, "OOMKilled"), limit="64Mi", phase="Failed"), "OOMKilled: its limit is 64Mi", True, False),
        (pod(terminated(137, "OOMKilled"), phase="Failed"), "OOMKilled: its node had no memory left", True, False),
        (pod(terminated(1, "OOMKilled"), limit="1Gi", phase="Failed"), "its container exited with 1", True, False),
        (
            pod(terminated(137), phase="Failed", reason="Evicted", message='EmptyDir "v" exceeds the limit "20Mi". '),
            'its pod was evicted: EmptyDir "v" exceeds the limit "20Mi".', True, False,
        ),
        (
            pod(terminated(137), phase="Failed", reason="DeadlineExceeded", message="Pod was active too long"),
            "DeadlineExceeded: Pod was active too long", True, False,
        ),
        (pod(RUNNING, _PREEMPTED, phase="Running", deleted=True),
         "its pod was preempted: default-scheduler: preempting to accommodate a higher priority pod", False, True),
        (pod(terminated(137), _PREEMPTED, phase="Failed", deleted=True),
         "its pod was preempted: default-scheduler: preempting to accommodate a higher priority pod", True, True),
        (pod(RUNNING, {"DisruptionTarget": "True EvictionByEvictionAPI Eviction API: evicting"}, deleted=True),
         "its pod was evicted: Eviction API: evicting", False, True),
        (pod(RUNNING, _TAINTED, deleted=True), "its pod was evicted: Taint manager: deleting due to NoExecute taint", False, True),
        (pod(RUNNING, {**_TAINTED, **_SILENT}, phase="Running", deleted=True), "its node n2 is lost", False, True),
        (pod(RUNNING, _SILENT, phase="Running"), "its node n2 is lost", False, False),
        (pod(RUNNING, phase="Running", reason="NodeLost"), "its node n2 is lost", False, False),
        (pod(RUNNING, phase="Running", deleted=True), "its pod was deleted", False, False),
        (pod(terminated(143), phase="Failed", deleted=True), "its pod was deleted", True, False),
        (pod(RUNNING, _COLLECTED, phase="Failed", deleted=True), "its pod was deleted: PodGC: node no longer exists", False, True),
        (pod(terminated(3), phase="Failed"), "its container exited with 3", True, False),
        (pod(terminated(0, "Completed"), phase="Succeeded"), "its container exited with 0", True, False),
        (pod(terminated(137), phase="Failed"), "its container was killed by SIGKILL", True, False),
        (pod(terminated(128, "StartError", message=_RUNC), phase="Failed"), f"{_NO_PYTHON})", True, False),
        (
            pod(terminated(128, "StartError", message="runc create failed: Cwd must be an absolute path: unknown"),
                phase="Failed"),
            "its container exited with 128: Cwd must be an absolute path", True, False,
        ),
        (pod(STARTING, init=terminated(1), phase="Failed"), "its init container wait exited with 1", True, False),
        (pod(phase="Failed"), "its pod has ended: Failed", True, False),
    ],
)  # fmt: skip
def test_why_a_pod_is_over(found: dict[str, Any], text: str, ended: bool, preempted: bool):
    status = pod_status(found)
    assert (status.over, status.ended, status.preempted, status.waiting) == (text, ended, preempted, "")


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        (pod(RUNNING, phase="Running"), False),
        (pod(RUNNING, phase="Running", deleted=True), True),
        (pod(RUNNING, _PREEMPTED, phase="Running", deleted=True), True),
        (pod(RUNNING, _SILENT, phase="Running", deleted=True), False),
        (pod(RUNNING, _COLLECTED, phase="Failed", deleted=True), False),
        (pod(terminated(143), phase="Failed", deleted=True), True),
    ],
)
def test_a_pod_that_is_gone(last: dict[str, Any], ended: bool):
    """Its processes have ended, if its node has removed it."""
    status = gone_status(last)
    assert (status.ended, status.taken, status.running, status.node) == (ended, True, False, "n2")


def _created(message: str) -> dict[str, Any]:
    return {
        "reason": "FailedCreate",
        "involvedObject": {"uid": "j1"},
        "message": f"Error creating: {message}",
    }


@pytest.mark.parametrize(
    ("status", "events", "waiting", "hopeless"),
    [
        ({}, [], "its pod is not made yet", False),
        (
            {}, [_created('pods "m-dc4vj" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2')],
            "FailedCreate: exceeded quota: q, requested: pods=1, used: pods=2", False,
        ),
        ({}, [_created(f'pods "m-x" is forbidden: {_SECURITY}')], f"FailedCreate: {_SECURITY}", True),
        (
            {}, [_created('pods "m-x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi')],
            "FailedCreate: maximum memory usage per Container is 1Gi, but limit is 2Gi", True,
        ),
        (
            {}, [_created('pods "m-" is forbidden: error looking up service account a/b: serviceaccount "b" not found')],
            'FailedCreate: error looking up service account a/b: serviceaccount "b" not found', False,
        ),
        (
            {"conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}]},
            [], "JobSuspended: Job suspended", False,
        ),
        (
            {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}]},
            [], "DeadlineExceeded: too long", True,
        ),
    ],
)  # fmt: skip
def test_why_a_job_has_no_pod(status: dict[str, Any], events: list[Any], waiting: str, hopeless: bool):
    metadata = {"name": "m", "uid": "j1", "labels": {"tf-launcher/host": "worker-0"}}
    found = job_status({"metadata": metadata, "status": status}, events)
    assert found == PodStatus(waiting=waiting, hopeless=hopeless)


# ---------------------------------------------------------------------- any object

_KEYS = [
    "metadata", "name", "uid", "labels", "tf-launcher/host", "spec", "status", "containers", "initContainerStatuses",
    "containerStatuses", "state", "waiting", "terminated", "running", "reason", "message", "conditions", "type",
    "phase", "exitCode", "image", "limits", "resources", "memory",
]  # fmt: skip
_WORDS = (
    "task",
    "True",
    "False",
    "Ready",
    "DisruptionTarget",
    "PodScheduled",
    "ErrImagePull",
    "OOMKilled",
    "a\n\x1b[2J",
)
_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5000)
    | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=8),
    max_leaves=30,
)
_STATUSES = st.lists(
    st.fixed_dictionaries({"name": st.just("task"), "state": _ANY, "lastState": _ANY}), max_size=1
)
_CONDITION = st.fixed_dictionaries({"type": st.sampled_from(_WORDS), "status": st.sampled_from(_WORDS)})


@settings(max_examples=examples(200), deadline=None)
@given(
    st.fixed_dictionaries(
        {"metadata": st.just(pod()["metadata"]) | _ANY, "spec": _ANY},
        optional={
            "status": _ANY
            | st.fixed_dictionaries(
                {
                    "containerStatuses": _STATUSES | _ANY,
                    "conditions": st.lists(_CONDITION | _ANY, max_size=3),
                },
                optional={"reason": _ANY, "message": _ANY, "phase": _ANY, "initContainerStatuses": _ANY},
            )
        },
    ),
    st.lists(st.dictionaries(st.sampled_from(("reason", "message", "involvedObject")), _ANY), max_size=2),
)
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
