"""What keeps pods from running, and what ends them, is one clear message; nothing is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Started
from tests.kubernetes.cluster import Cluster

Start = Callable[..., Started]

#: An image of each node without any other program than a pod's holder.
BARE = "localhost/pause:1"
#: Seconds within which the cause is shown, on a busy machine.
SHOWN = 40.0


def shows(started: Started, text: str) -> None:
    """The launch shows a text in time, and no line twice."""
    started.until(lambda it: text in it.err, SHOWN)
    lines = started.err.splitlines()
    assert len({*lines}) == len(lines), started.err


def test_what_may_pass_is_shown_and_ends_by_the_time_limit(start: Start, kubernetes: Cluster):
    text = "not scheduled: 0/2 nodes are available: 2 Insufficient memory"
    started = start(*kubernetes.workers(2), "--memory", "900g", "--start-timeout", "8", "--", "true")
    shows(started, f"waiting for pods: worker-0, worker-1: {text}")
    ended = started.wait(code=125)
    assert "not all pods run after 8.0s (--start-timeout)" in ended.err
    assert sum(text in line for line in ended.said) == 1, ended.err


def test_a_reason_that_was_shown_is_not_forgotten(start: Start, kubernetes: Cluster, tmp_path: Path):
    """Between two attempts to pull an image its container is just being created."""
    hides = """test -e hide || exec $kubectl "$@"
$kubectl "$@" | sed "s/ErrImagePull\\|ImagePullBackOff//"; exit;;"""
    path = kubernetes.broken_kubectl(tmp_path, hides, "get")
    words = ("--kubernetes", "localhost/no-such:1", "--start-timeout", "8", "true")
    started = start(*words, env={"PATH": path})
    reason = "worker-0: cannot pull the image localhost/no-such:1: "
    shows(started, f"waiting for pods: {reason}")
    (tmp_path / "hide").touch()
    ended = started.wait(code=125)
    assert f"(--start-timeout): worker-0: its pod is starting; before that: {reason}" in ended.err


def test_what_passes_is_no_trouble(start: Start, kubernetes: Cluster, tmp_path: Path):
    """A queue admits a pod after longer than the lease; the reason of its later loss is that of the loss."""
    gates = {"schedulingGates": [{"name": "queue/admission"}]}
    command = ["sh", "-c", "echo up; sleep 100"]
    kubernetes.write_job(tmp_path, gates, command=command, roles={"worker": 1})
    started = start("--lease", "6", "job.yaml", cwd=tmp_path)
    shows(started, "not admitted yet: its scheduling gates are queue/admission")
    time.sleep(6)
    (pod,) = kubernetes.pods()
    remove = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    kubernetes.kubectl("patch", "pod", pod, "--type=json", f"--patch={remove}")
    started.up(1)
    kubernetes.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    ended = started.wait(code=125)
    assert re.search(r"^launch: host worker-0 on n[12] is lost: its pod was deleted$", ended.err, re.M)


def test_an_image_without_python_ends_the_launch(start: Start):
    ended = start("--kubernetes", BARE, "--workers", "2", "--", "true").wait(SHOWN, code=125)
    assert ended.err.count(f"the image {BARE} has no Python of 3.8 or later (exec: ") == 1, ended.err


def test_a_namespace_without_rights(start: Start, kubernetes: Cluster):
    ended = start(*kubernetes.workers(1), "--namespace", "default", "true").wait(code=125)
    missing = "list events; create, delete, list jobs.batch; get, list, watch pods; create pods/exec"
    assert f"in the namespace default: {missing} (docs/kubernetes.md, Rights, " in ended.err
    assert "or there is no namespace 'default'" in ended.err
    words = (*kubernetes.workers(1), "--namespace", "nosuch", "true")
    known = start(*words, env={"KUBECONFIG": kubernetes.admin}).wait(code=125)
    assert 'namespaces "nosuch" not found' in known.err


def test_a_quota_for_half_of_the_pods(start: Start, kubernetes: Cluster, quota: Callable[[str], None]):
    quota("pods=2")
    started = start(*kubernetes.workers(4), "--start-timeout", "10", "true")
    shows(started, "FailedCreate: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2")
    ended = started.wait(code=125)
    assert ended.err.count("launch: not all pods run after 10s (--start-timeout): ") == 1


def test_a_quota_for_some_of_the_jobs(start: Start, kubernetes: Cluster, quota: Callable[[str], None]):
    quota("count/jobs.batch=1")
    ended = start(*kubernetes.workers(2), "true").wait(code=125)
    assert ended.err.count("is forbidden: exceeded quota: few, requested: count/jobs.batch=1") == 1


def test_a_pod_that_the_namespace_does_not_admit(start: Start, kubernetes: Cluster, tmp_path: Path):
    kubernetes.write_job(tmp_path, {"hostNetwork": True}, command="true", roles={"worker": 2})
    ended = start("job.yaml", cwd=tmp_path).wait(SHOWN, code=125)
    why = 'FailedCreate: violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)'
    assert ended.err.count(why) == 1


def test_the_end_does_not_wait_for_a_kubectl(start: Start, kubernetes: Cluster, tmp_path: Path):
    """One that connects to a pod of a lost node gets no answer for a minute."""
    script = 'mkdir once || exec sleep 100; exec timeout -s KILL 8 $kubectl "$@";;'
    path = kubernetes.broken_kubectl(tmp_path, script)
    words = (*kubernetes.workers(1), "--lease", "8", "sleep", "100")
    ended = start(*words, env={"PATH": path}).wait(45, code=125)
    assert "launch: host worker-0 on n" in ended.err and " is lost: " in ended.err
