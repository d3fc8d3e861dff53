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
from tests.unit.odd_values import with_odd_values

#: Messages of a registry, of a runtime, of an admission controller.
_PULL = (
    'failed to pull and unpack image "r.io/tf:1": failed to resolve reference "r.io/tf:1": failed to do request: '
    'Head "http://r.io/v2/tf/manifests/1": dial tcp 127.0.0.1:80: connect: connection refused'
)
_RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: exec: "python3": executable file not found in $PATH: unknown'
)
_ROOT = "container has runAsNonRoot and image will run as root"
_SECURITY = (
    'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "task" must set '
    "securityContext.allowPrivilegeEscalation=false)"
)
_MAXIMUM = "maximum memory usage per Container is 1Gi, but limit is 2Gi"


def pod(
    state: dict[str, Any] | None = None,
    condition: str = "",
    limit: str = "",
    init: dict[str, Any] | None = None,
    deleted: bool = False,
    gates: tuple[str, ...] = (),
    **status: Any,
) -> dict[str, Any]:
    """Return a pod.

    Args:
        state: The state of its container.
        condition: Its conditions, ``TYPE STATUS REASON MESSAGE``, with ``;`` between them.
        limit: The limit of its memory.
        init: The state of its init container.
        deleted: Whether it is being deleted.
        gates: The names of its scheduling gates.
        status: Other fields of its status.
    """
    metadata = {"uid": "u1", "labels": {"tf-launcher/host": "worker-0"}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-26T15:03:01Z"
    container = {"name": "task", "image": "r.io/tf:1", "resources": {"limits": {"memory": limit}}}
    gating = [{"name": name} for name in gates]
    spec = {"containers": [container], "nodeName": "n2", "schedulingGates": gating}
    names = ("type", "status", "reason", "message")
    words = [text.strip().split(" ", 3) for text in condition.split(";") if text]
    conditions = [dict(zip(names, each, strict=False)) for each in words]
    status = {"phase": "Pending", "conditions": conditions, **status}
    if state:
        sidecar = {"name": "a-sidecar", "state": {"terminated": {"exitCode": 4}}}
        status["containerStatuses"] = [sidecar, {"name": "task", "image": "r.io/tf:1", "state": state}]
    if init:
        status["initContainerStatuses"] = [{"name": "wait", "image": "r.io/init:1", "state": init}]
    return {"metadata": metadata, "spec": spec, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def failed(code: int, cause: str = "Error", text: str = "", **fields: Any) -> dict[str, Any]:
    """Return a pod that has ended, by the state of its container and other fields."""
    return pod(terminated(code, cause, text), **{"phase": "Failed", **fields})


RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-11-26T15:02:32Z"}}
STARTING = waiting("PodInitializing")
_UNSCHEDULED = "PodScheduled False Unschedulable 0/2 nodes are available: "
_NO_ROOM = "2 Insufficient memory. no new claims to deallocate, preemption: 0/2 nodes are available."
_PREEMPTED = "DisruptionTarget True PreemptionByScheduler default-scheduler: preempting to accommodate a higher priority pod"
_EVICTED = "DisruptionTarget True EvictionByEvictionAPI Eviction API: evicting"
_TAINTED = "DisruptionTarget True DeletionByTaintManager Taint manager: deleting due to NoExecute taint"
_COLLECTED = "DisruptionTarget True DeletionByPodGC PodGC: node no longer exists"
_SILENT = "Ready False; ContainersReady True"
_NO_FOLDER = "runc create failed: Cwd must be an absolute path: unknown"

#: Pods by what is true of them; the snapshot has what their user is told.
PODS: dict[str, dict[str, dict[str, Any]]] = {
    "running": {
        "runs": pod(RUNNING, phase="Running"),
        "silent": pod(RUNNING, _SILENT),
    },
    "": {
        "nothing yet": pod(),
        "creating": pod(waiting("ContainerCreating")),
        "no room": pod(condition=_UNSCHEDULED + _NO_ROOM),
        "no claim": pod(condition=_UNSCHEDULED + 'persistentvolumeclaim "data" not found. not found'),
        "gates": pod(condition="PodScheduled False SchedulingGated blocked", gates=("kueue/admission",)),
        "pull": pod(waiting("ErrImagePull", _PULL)),
        "pull, by rpc": pod(
            waiting("ErrImagePull", f"ErrImagePull: rpc error: code = Unknown desc = {_PULL}")
        ),
        "pull, later": pod(waiting("ImagePullBackOff", f'Back-off pulling image "r.io/tf:1": {_PULL}')),
        "never pulled": pod(waiting("ErrImageNeverPull", "tf:1 is not present with pull policy of Never")),
        "no secret": pod(waiting("CreateContainerConfigError", 'secret "token" not found')),
        "init container runs": pod(STARTING, "Initialized False ContainersNotInitialized", init=RUNNING),
        "pull of an init container": pod(STARTING, init=waiting("ErrImagePull", "denied")),
    },
    "hopeless": {
        "name of the image": pod(waiting("InvalidImageName", 'couldn\'t parse image name "A B": invalid')),
        "root": pod(waiting("CreateContainerConfigError", _ROOT)),
        "no Python": pod(waiting("RunContainerError", _RUNC)),
    },
    "ended": {
        "OOM by its limit": failed(137, "OOMKilled", limit="64Mi"),
        "OOM of its node": failed(137, "OOMKilled"),
        "OOM of another process": failed(1, "OOMKilled", limit="1Gi"),
        "exit code": failed(3),
        "success": failed(0, "Completed", phase="Succeeded"),
        "signal": failed(137),
        "ended without Python": failed(128, "StartError", _RUNC),
        "no folder": failed(128, "StartError", _NO_FOLDER),
        "init container failed": pod(STARTING, init=terminated(1), phase="Failed"),
        "unknown": pod(phase="Failed"),
    },
    "ended taken": {
        "evicted by its node": failed(137, reason="Evicted", message='"v" exceeds the limit "20Mi". '),
        "deadline": failed(137, reason="DeadlineExceeded", message="Pod was active too long"),
        "deleted": failed(143, deleted=True),
    },
    "running preempted taken": {
        "preempted": pod(RUNNING, _PREEMPTED, deleted=True),
        "evicted by the API": pod(RUNNING, _EVICTED, deleted=True),
        "tainted": pod(RUNNING, _TAINTED, deleted=True),
        "tainted and silent": pod(RUNNING, f"{_TAINTED}; {_SILENT}", deleted=True),
        "collected": pod(RUNNING, _COLLECTED, phase="Failed", deleted=True),
    },
    "preempted ended taken": {
        "ended by preemption": failed(137, condition=_PREEMPTED, deleted=True),
    },
    "running taken": {
        "silent and deleted": pod(RUNNING, _SILENT, deleted=True),
        "node lost": pod(RUNNING, reason="NodeLost"),
        "being deleted": pod(RUNNING, deleted=True),
    },
}
BY_NAME = {name: each for pods in PODS.values() for name, each in pods.items()}


def flags(status: PodStatus) -> str:
    """Return what is true of a pod."""
    names = ("running", "hopeless", "preempted", "ended", "taken")
    return " ".join(name for name in names if getattr(status, name))


@pytest.mark.parametrize("true", PODS)
def test_pods(true: str, snapshot: SnapshotAssertion):
    found = {name: pod_status(each) for name, each in PODS[true].items()}
    assert {name: flags(status) for name, status in found.items()} == dict.fromkeys(found, true)
    assert {name: status.waiting or status.over for name, status in found.items()} == snapshot
    assert {status.node for status in found.values()} == {"n2"}


def test_the_address_of_a_pod():
    assert pod_status(pod(RUNNING, podIP="10.244.2.13")).address == "10.244.2.13"


def test_an_event_tells_why_a_volume_is_not_there():
    ours = {"reason": "FailedMount", "involvedObject": {"uid": "u1"}}
    events = [
        {**ours, "lastTimestamp": "2026-11-26T15:01:26Z", "message": 'secret "data" not found'},
        {**ours, "lastTimestamp": "2026-11-26T15:00:54Z", "message": "an older one"},
        {**ours, "lastTimestamp": "2026-11-26T15:02:54Z", "message": "another pod", "involvedObject": {}},
        {**ours, "lastTimestamp": "2026-11-26T15:02:54Z", "message": "no trouble", "reason": "Pulled"},
    ]
    creating, running = BY_NAME["creating"], BY_NAME["runs"]
    assert pod_status(creating, events).waiting == 'FailedMount: secret "data" not found'
    assert pod_status(running, events).waiting == ""


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("runs", False),
        ("being deleted", True),
        ("preempted", True),
        ("silent and deleted", False),
        ("collected", False),
        ("deleted", True),
    ],
)
def test_a_pod_that_is_gone(name: str, ended: bool):
    """Its processes have ended, if its node has removed it."""
    status = gone_status(BY_NAME[name])
    assert (status.ended, status.taken, status.running, status.node) == (ended, True, False, "n2")


def job(**condition: str) -> dict[str, Any]:
    conditions = [{"status": "True", **condition}] if condition else []
    return {"metadata": {"name": "m", "uid": "j1"}, "status": {"conditions": conditions}}


#: Jobs without a pod, by what is true of them: a condition, or the message about the refused pod.
JOBS: dict[str, dict[str, dict[str, Any] | str]] = {
    "": {
        "quota": 'pods "m-d" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2',
        "account": 'pods "m-" is forbidden: error looking up service account a/b: "b" not found',
        "not yet": {},
        "suspended": {"type": "Suspended", "reason": "JobSuspended", "message": "Job suspended"},
    },
    "hopeless": {
        "security": f'pods "m-x" is forbidden: {_SECURITY}',
        "maximum": f'pods "m-x" is forbidden: {_MAXIMUM}',
        "deadline": {"type": "Failed", "reason": "DeadlineExceeded", "message": "too long"},
    },
}


def status_of_job(told: dict[str, Any] | str) -> PodStatus:
    job: dict[str, Any] = {"metadata": {"name": "m", "uid": "j1"}, "status": {}}
    if not isinstance(told, str):
        job["status"]["conditions"] = [{"status": "True", **told}]
        return job_status(job, [])
    event = {"reason": "FailedCreate", "involvedObject": {"uid": "j1"}}
    return job_status(job, [{**event, "message": f"Error creating: {told}"}])


@pytest.mark.parametrize("true", JOBS)
def test_why_a_job_has_no_pod(true: str, snapshot: SnapshotAssertion):
    found = {name: status_of_job(told) for name, told in JOBS[true].items()}
    assert {name: flags(status) for name, status in found.items()} == dict.fromkeys(found, true)
    assert {name: status.waiting for name, status in found.items()} == snapshot


ODD = [None, True, 1.5, "", "x" * 5000, "a\n\x1b[2J", "task", "OOMKilled", [], [None], {}, {"name": "task"}]


@settings(max_examples=examples(200), deadline=None)
@given(with_odd_values([*BY_NAME.values()], ODD, most=3), st.sampled_from(ODD))
def test_any_object_gives_a_status_or_an_error(found: dict[str, Any], odd: Any):
    events = [{"reason": "FailedMount", "message": odd, "involvedObject": {"uid": "u1"}}, {"reason": odd}]
    texts: list[str] = []
    for read in (pod_status, job_status):
        try:
            status = read(found, events)
        except TransportError as error:
            texts.append(str(error))
        else:
            texts += (status.node, status.address, status.waiting, status.over)
    assert all(len(text) <= 2200 and text.isprintable() for text in texts)
