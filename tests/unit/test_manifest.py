"""The Jobs of a launch."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.backends.backend import LaunchRequest
from launcher.backends.kubernetes.launcher_pod import POD_HOST, LauncherPod
from launcher.backends.kubernetes.manifest import job_manifest
from launcher.backends.kubernetes.names import job_name
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.kubernetes.pods import KubernetesAllocation
from launcher.backends.kubernetes.template import merged, template_faults
from launcher.config.settings import Settings
from launcher.job import Host, JobSpec, Program, ProgramKind, Role
from tests.conftest import examples
from tests.unit.odd_values import with_odd_values

ROLE = Role("worker", 2, Program(ProgramKind.EXECUTABLE, "true"))
#: RFC 1123.
_LABEL = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def pod(options: KubernetesOptions) -> Any:
    """The pod template of a Job."""
    made = job_manifest(options, "run", Host("worker-0"), ROLE, "python3", 10.0, "me")
    return made["spec"]["template"]


CONTAINER = {
    "env": [{"name": "HOME", "value": "/data"}],
    "volumeMounts": [{"name": "data"}],
    "resources": {"limits": {"nvidia.com/gpu": "1"}},
}
TEMPLATE = {
    "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "securityContext": {"runAsUser": None, "fsGroup": 5},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [{}],
        "containers": [CONTAINER],
    },
}


def test_a_template_is_passed_on():
    found = pod(KubernetesOptions("i", pod=TEMPLATE))
    spec = found["spec"]
    (container,) = spec["containers"]
    assert set(found["metadata"]["labels"]) >= {"tf-launcher/host", "kueue.x-k8s.io/queue-name"}
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert "runAsUser" not in spec["securityContext"] and spec["securityContext"]["fsGroup"] == 5
    assert [volume["name"] for volume in spec["volumes"]] == ["data"]
    assert container["env"] == [{"name": "HOME", "value": "/data"}]
    assert len(container["volumeMounts"]) == 1 and container["image"] == "i"


@pytest.mark.parametrize(
    "template",
    [
        [],
        {"nodeSelector": {}},
        {"spec": []},
        {"spec": {"containers": {}}},
        {"spec": {"containers": [{"image": "x"}]}},
        {"spec": {"containers": [{"command": ["x"]}]}},
        {"spec": {"restartPolicy": "Always"}},
        {"metadata": {"labels": {"tf-launcher/run": "x"}}},
        {"metadata": {"labels": {"tf-launcher/launcher": "x"}}},
    ],
)
def test_a_template_with_faults(template: Any):
    assert [*template_faults(template)]


def test_a_template_without_faults():
    spec = {"restartPolicy": "Never", "containers": [{"name": "task", "env": []}]}
    assert not [*template_faults({"spec": spec, "metadata": {"annotations": {"a": "b"}}})]


def test_a_launcher_has_no_resources_of_tasks():
    """What the user gives tasks beside variables, it does not need; it has limits of its own."""
    options = KubernetesOptions("image", memory=(("", 64 << 30),), pod=TEMPLATE)
    request = LaunchRequest("run", JobSpec((ROLE,)), Settings())
    pod = LauncherPod(options, request).manifest(POD_HOST)["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "384Mi", "cpu": "1"}
    assert {"name": "HOME", "value": "/data"} in pod["containers"][0]["env"]
    assert "initContainers" not in pod
    assert pod["automountServiceAccountToken"] is True and pod["nodeSelector"] == {"disk": "ssd"}


ODD: list[Any] = [None, 1, "x", [], [None], {}, {"name": {}}, {"metadata": 1}, {"limits": {"memory": []}}]


@settings(max_examples=examples(100), deadline=None)
@given(with_odd_values([TEMPLATE], ODD, most=3))
def test_any_template_has_faults_or_makes_a_job(template: Any):
    if not [*template_faults(template)]:
        options = KubernetesOptions("i", pod=template, pods={"worker": template})
        request = LaunchRequest("run", JobSpec((ROLE,)), Settings())
        assert KubernetesAllocation(options, request).remarks


@settings(max_examples=examples(100), deadline=None)
@given(
    st.from_regex(r"[0-9]{8}-[0-9]{6}-[0-9a-z]{5}", fullmatch=True),
    st.from_regex(r"[a-z][a-z0-9-]{0,63}-[0-9]{1,4}", fullmatch=True),
    st.integers(1, 999),
)
def test_names_are_labels(run: str, host: str, number: int):
    assert _LABEL.fullmatch(job_name(run, host, number))


@settings(max_examples=examples(100), deadline=None)
@given(st.from_regex(r"[a-z]{60,64}", fullmatch=True))
def test_long_names_differ(role: str):
    assert len({job_name("r", f"{role}-{index}", number) for index in range(9) for number in (1, 2)}) == 18


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.text("ab"), st.dictionaries(st.text("ab"), st.integers())))
def test_merging_with_nothing_changes_nothing(mapping: dict[str, Any]):
    assert merged(mapping, {}) == merged({}, mapping) == merged(mapping, mapping) == mapping
