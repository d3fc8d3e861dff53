"""Connections break; pods and nodes are lost, and made anew."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.agent.processes import all_pids
from tests.conftest import Started
from tests.kubernetes.cluster import Cluster
from tests.seeing import command_line, soon

Start = Callable[..., Started]
#: The first attempt waits, the next one ends.
SCRIPT = ("--", "sh", "-c", 'echo attempt $LAUNCH_ATTEMPT; test "$LAUNCH_ATTEMPT" = 1 || exit 0; sleep 600')


def kubectls(started: Started, verb: str) -> list[int]:
    """The kubectl processes of a launch."""
    lines = {pid: command_line(pid) for pid in all_pids()}
    (run, *_) = re.findall(r"job (\S+): ", started.err)
    ours = {pid: line for pid, line in lines.items() if line.startswith("kubectl ") and run in line}
    return [pid for pid, line in ours.items() if f" {verb} " in line]


#: Breaks the first connection to each pod: before it begins, twice; while the program of the agent is sent;
#: while the agent starts.
BREAKS = """\
made() { mkdir $1 2>&-; }
case " $* " in
*-worker-0-*) if made a || made b; then echo "error dialing backend: refused" >&2; exit 1; fi;;
*-worker-1-*) if made c; then head -c 20000 | $kubectl "$@"; exit 1; fi;;
*) if made d; then $kubectl "$@" <&0 >/dev/null & sleep 3; kill -9 $!; exit 1; fi;;
esac;;
"""


@pytest.mark.promise("a pod whose first connection breaks; a kubelet that is started again")
def test_the_first_connection_breaks(start: Start, kubernetes: Cluster, tmp_path: Path):
    """Another one starts the agent, or finds it: a kubelet that is just starting costs no job."""
    path = kubernetes.broken_kubectl(tmp_path, BREAKS)
    result = start(*kubernetes.workers(3), "--", "echo", "done", env={"PATH": path}).wait(60, code=0)
    assert sorted(path.name for path in tmp_path.glob("?")) == [*"abcd"]
    assert result.out.count("| done") == 3
    for number in range(3):
        lost, again = (f"worker-{number}: connect{how}" for how in ("ion lost (", "ed again after "))
        assert result.err.count(lost) == result.err.count(again) == 1, result.err


def test_sigterm_of_a_pod_reaches_its_task(start: Start, kubernetes: Cluster):
    """It has the time of --grace, and its files are there until the end."""
    script = "trap 'sleep 3; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    started = start(*kubernetes.workers(1), "--grace", "8", "--", "sh", "-c", script).up(1, 60)
    (pod,) = kubernetes.pods()
    main = kubernetes.main_process(pod)
    kubernetes.kubectl("delete", "pod", pod, "--wait=false")
    result = started.wait(60)
    assert result.code == 125 and "its pod was deleted" in result.err, result.err
    soon(lambda: not command_line(main), 20)


def test_a_pod_is_preempted(start: Start, kubernetes: Cluster):
    """That is no failure of the job: the restart does not count."""
    started = start(*kubernetes.workers(1), "--restarts", "1", *SCRIPT)
    started.until(lambda it: "attempt 1" in it.out, 60)
    (pod,) = kubernetes.pods()
    metadata = {"name": pod, "namespace": kubernetes.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{kubernetes.namespace}/pods/{pod}/eviction"
    kubernetes.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    result = started.wait(90, code=0)
    assert "its pod was evicted" in result.err and "(attempt 2, not counted)" in result.err, result.err
