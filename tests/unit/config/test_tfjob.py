"""Kubeflow's TFJob: the job it becomes, and what is wrong with which line."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from launcher.backends import backends, rows, sections
from launcher.backends.docker.options import DockerOptions
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.common.cluster import ClusterSpec, TaskId, fill_placeholders, literal, misspelt_placeholders
from launcher.common.record import replace
from launcher.config.documents import NO_TARGET, Target
from launcher.config.jobfile import parse_job
from launcher.config.settings import FileContent, merge
from launcher.job import JobSpec, Program, ProgramKind, Role
from tests.conftest import examples
from tests.unit.config.answers import check_faults
from tests.unit.odd_values import with_odd_values

FULL = Path(__file__).with_name("full_tfjob.yaml").read_text()
ARGS = ("/code/train.py", "--data=/mnt/data/mnist", "--batch={{rank}}", "$(DATA)", "$(NONE)", "{tf_config}")
WORKER = Role(
    "worker", 3, Program(ProgramKind.EXECUTABLE, "python3", ARGS), gpus=2, workdir="/code",
    env=(("ROOT", "/mnt"), ("DATA", "/mnt/data"), ("EMPTY", "")), retryable=(range(128, 256),),
    source="j:8", program_source="j:19",
)  # fmt: skip
PS = Role(
    "ps", 1, Program(ProgramKind.SCRIPT, "serve.py", ("-v", "--serve")), service=True, restart="never",
    source="j:31", program_source="j:32",
)  # fmt: skip
HERE = Target(("serve.py", "-v"), variables=frozenset({"TOKEN"}))


def values_of(found: FileContent) -> dict[str, object]:
    """Return what the file gives beside its roles, by the names of settings."""
    return {name: given.value for name, given in found.level.items() if name not in ("command", "roles")}


def options_of(found: FileContent, name: str) -> object:
    """Return the options of a backend."""
    settings = merge([found.level], rows())[0]
    return backends()[name].parse(settings, JobSpec(()), hosts_named=False)


def test_everything():
    found = parse_job(FULL, "j", {}, sections(), "/proj", HERE)
    assert found.faults == ()
    assert found.roles == (WORKER, PS)
    assert values_of(found) == {"timeout": 3600.0, "restarts": 4, "done_when": "workers"}
    where = [found.level[key].source for key in ("timeout", "restarts", "done_when")]
    assert where == ["j:6", "j:6", "j:5"]


def test_in_containers_it_has_its_limits_and_perhaps_its_images():
    limited = replace(WORKER, cpus=0.5, memory=1 << 30)
    found = parse_job(FULL, "j", {}, sections(), "/proj", replace(HERE, engine="docker"))
    assert found.roles == (limited, PS), "--docker IMAGE replaces those of the TFJob"
    assert "image" not in found.notes[0] and "memory" not in found.notes[0]
    found = parse_job(FULL, "j", {}, sections(), "/proj", replace(HERE, engine="docker", images=True))
    assert found.roles == (replace(limited, image="tf:1"), replace(PS, image="tf:2"))
    assert options_of(found, "docker") == DockerOptions(no_mount=True), "its folders are those of its images"


PODS = Path(__file__).with_name("tfjob_for_pods.yaml").read_text()
TEMPLATE = yaml.safe_load(Path(__file__).with_name("template_of_pods.yaml").read_text())


def test_kubernetes_gets_what_launch_does_not_use():
    here = Target(engine="kubernetes", images=True)
    found = parse_job(PODS, "j", {}, sections(), "/proj", here)
    assert found.faults == ()
    (worker,) = found.roles
    assert (worker.program.args, worker.env, worker.cpus) == (("/mnt",), (("ROOT", "/mnt"),), 2.0)
    options = KubernetesOptions(pull="missing", namespace="ml", pods={"worker": TEMPLATE})
    assert options_of(found, "kubernetes") == options
    (note,) = found.notes
    assert "restartPolicy (j:10), tty (:19); see docs/tfjob.md" in note
    (fault,) = parse_job(PODS.replace("[a, ", "[a, $(NODE), "), "j", {}, sections(), "", here).faults
    assert (fault.where, "$(NODE)" in fault.problem, "sh, -c" in fault.expected) == ("j:18", True, True)


def tfjob(roles: str, spec: str = "", version: str = "kubeflow.org/v1") -> str:
    """A TFJob; its roles begin at line 4."""
    return f"apiVersion: {version}\nkind: TFJob\nspec: {{{spec}tfReplicaSpecs: {{\n{roles}\n}}}}"


def role(name: str, keys: str = "", container: str = "", pod: str = "") -> str:
    """One type of replicas, on one line."""
    start = "name: tensorflow, command: [a]"
    return f"{name}: {{{keys}template: {{spec: {{{pod}containers: [{{{start}{container}}}]}}}}}}"


CHIEF, WORKERS = role("Chief"), role("Worker", "replicas: 2, ")
SETTINGS = [
    # the job is done when the chief is, or worker 0, or all workers
    (f"{CHIEF},\n{WORKERS}", "", {}),
    (f"{role('Master')},\n{WORKERS}", "successPolicy: AllWorkers, ", {}),
    (WORKERS, "", {"done_when": "chief"}),
    (WORKERS, "successPolicy: '', ", {"done_when": "chief"}),
    (WORKERS, "successPolicy: AllWorkers, ", {"done_when": "workers"}),
    (role("PS"), "", {}),
    # the policy of the run, in runPolicy or beside the roles, as old versions have it
    (CHIEF, "activeDeadlineSeconds: 9, cleanPodPolicy: All, ", {"timeout": 9.0}),
    (CHIEF, "activeDeadlineSeconds: 9, runPolicy: {activeDeadlineSeconds: 8}, ", {"timeout": 8.0}),
    # restarts
    (CHIEF, "backoffLimit: 3, ", {}),
    (role("Chief", "restartPolicy: OnFailure, "), "", {"restarts": 1000}),
    (role("Chief", "restartPolicy: Always, "), "runPolicy: {backoffLimit: 3}, ", {"restarts": 3}),
    (role("Chief", "restartPolicy: OnFailure, "), "backoffLimit: 0, ", {}),
]


@pytest.mark.parametrize(("roles", "spec", "settings"), SETTINGS)
def test_settings(roles: str, spec: str, settings: dict[str, object]):
    found = parse_job(tfjob(roles, spec), "j")
    assert (found.faults, values_of(found)) == ((), settings)
    assert all(each.restart is None for each in found.roles), "no restart: has no effect without restarts"


def test_notes_on_what_differs(snapshot: SnapshotAssertion):
    spec = "successPolicy: AllWorkers, enableDynamicWorker: true, runPolicy: {suspend: true}, "
    old = tfjob(role("PS", "restartPolicy: Always, "), version="kubeflow.org/v1beta2")
    found = [parse_job(FULL, "j", {}, sections(), "/proj", HERE)]
    found += [parse_job(text, "j") for text in (tfjob(f"{role('Master')},\n{WORKERS}", spec), old)]
    assert "\n".join(note for each in found for note in each.notes) == snapshot


def test_options_replace_the_numbers_of_replicas():
    found = parse_job(tfjob(f"{CHIEF},\n{WORKERS}"), "j", {"worker": {"count": 5}})
    assert {each.name: each.count for each in found.roles} == {"chief": 1, "worker": 5}
    (fault,) = parse_job(tfjob(CHIEF), "j", {"evaluator": {"count": 1}}).faults
    assert 'role "evaluator" has no program' in str(fault)


ITEMS = "items:\n" + "".join(
    f"- {line}\n" if n == 0 else f"  {line}\n" for n, line in enumerate(FULL.splitlines())
)
MAP = "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n"


@pytest.mark.promise("the only TFJob among documents and in lists; what another file of Kubernetes is")
@pytest.mark.parametrize(
    ("text", "first", "others"),
    [
        (f"---\n{FULL}", 2, ""),
        (f"---\n---\n{FULL}---\n", 3, ""),
        (f"# a: b\n---\n# Source: x.yaml\n---\n{FULL}...\n---\n# end\n", 5, ""),
        (f"apiVersion: v1\nkind: List\n{ITEMS}metadata: {{resourceVersion: ''}}", 4, ""),
        (f"apiVersion: kubeflow.org/v1\nkind: TFJobList\n{ITEMS}", 4, ""),
        (f"{MAP}---\n{FULL}---\n{MAP}---\na: b", 5, f"ConfigMap (:1), ConfigMap (:{len(FULL.splitlines()) + 6}), a document (:{len(FULL.splitlines()) + 10})"),
        (f"kind: List\napiVersion: v1\n{ITEMS}- {{apiVersion: v1, kind: Service}}\n", 4, f"Service (:{len(FULL.splitlines()) + 4})"),
        (json.dumps(yaml.safe_load(FULL), indent="\t"), 1, ""),
    ],
)  # fmt: skip
def test_the_only_tfjob_of_a_file(text: str, first: int, others: str):
    found, alone = (parse_job(each, "j", {}, sections(), "/proj", HERE) for each in (text, FULL))
    assert found.faults == ()
    assert [(each.name, each.count, each.env) for each in found.roles] == [
        ("worker", 3, WORKER.env),
        ("ps", 1, ()),
    ]
    assert text.startswith("{") or found.level["timeout"].source == f"j:{first + 5}"
    about_others = (
        [f"j:{first}: launch uses this TFJob only; of the same file it does not use {others}"]
        if others
        else []
    )
    assert list(found.notes[:-1]) == about_others and len(found.notes) - len(about_others) == len(alone.notes)


WRONG_KINDS = {
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec: {}": "1",
    "kind: Job\nspec: {}": "1",
    "apiVersion: v1\nspec: {}": "1",
    f"{MAP}---\napiVersion: batch/v1\nkind: Job\n---\n{MAP}": "1",
    f"command: a\nroles: {{worker: 1}}\n---\n{MAP}": "4",
    "apiVersion: v1\nkind: List\nitems: []": "1",
    "apiVersion: kubeflow.org/v1beta1\nkind: Experiment\nspec: {a: '${trialParameters.b}'}": "1",
    f"{FULL}---\n{FULL}": f"{len(FULL.splitlines()) + 2}",
    # placeholders
    FULL.replace("--serve", "'--lr=${trialParameters.lr}'"): "32",
    FULL.replace("replicas: 3", "replicas: {{ .Values.workers }}"): "9",
    FULL.replace("image: tf:1", 'image: "{{ .Values.image }}"'): "18",
    f"{{{{- if .Values.on }}}}\n{FULL}\n{{{{- end }}}}": "1",
}  # fmt: skip


@pytest.mark.promise("the only TFJob among documents and in lists; what another file of Kubernetes is")
def test_what_a_file_of_kubernetes_is_instead(snapshot: SnapshotAssertion):
    check_faults(
        WRONG_KINDS, lambda text: parse_job(text, "j", {}, sections(), "", HERE).faults, "j", snapshot
    )


def test_placeholders_of_programs_and_in_comments_do_not_matter():
    for text in (f"# {{{{ .Values.a }}}}\n{FULL}", FULL.replace("--serve", "'{{- name }} {{ x }} ${A}'")):
        assert parse_job(text, "j", {}, sections(), "/proj", HERE).faults == ()


@pytest.mark.parametrize("engine", ["", "kubernetes"])
@pytest.mark.parametrize("name", ["TF_CONFIG", "JOB_NAME", "TASK_INDEX", "CLUSTER_SPEC", "LAUNCH_ATTEMPT"])
@pytest.mark.parametrize("value", ["value: x", "valueFrom: {fieldRef: {fieldPath: a}}"])
def test_variables_that_launch_sets(engine: str, name: str, value: str):
    text = tfjob(role("Worker", container=f", env: [{{name: {name}, {value}}}]"))
    (fault,) = parse_job(text, "j", {}, sections(), "", Target(engine=engine)).faults
    assert str(fault).startswith(
        f"j:4: variable {name}: launch sets it for each task; expected another name, or "
    )
    assert f"env {name}=VALUE" in str(fault)


WRONG = {
    "kind: TFJob\nspec: {}": "1 2",
    "kind: TFJob\napiVersion: kubeflow.org/v1": "1",
    tfjob(CHIEF, version="kubeflow.org/v1alpha1"): "1",
    # replicas
    tfjob(f"{role('Wroker')},\nWorkers: {{}},\nReader: {{}}"): "4 5 6",
    tfjob(role("Worker", "replicas: two, ")): "4",
    tfjob(role("Worker", "replica: 2, ")): "4",
    tfjob(role("Worker", "restartPolicy: OnError, ")): "4",
    tfjob(role("Chief", "replicas: 2, ")): "4",
    tfjob(f"{CHIEF},\n{role('Master')}"): "5",
    tfjob(f"{WORKERS},\n{role('worker')}"): "5",
    tfjob(role("Worker", "replicas: 0, ")): "3",
    # the container
    tfjob("Worker: {replicas: 2},\nPS: {template: {spec: {containers: []}}},\nChief: {template: {spec: {containers: [{name: tf}]}}}"): "4 5 6",
    tfjob("Worker: {template: {spec: {containers: [{name: tensorflow}]}}}"): "4",
    tfjob(role("Worker", container=", comand: [b]")): "4",
    tfjob(role("Worker", container=", args: a b")): "4",
    tfjob(role("Worker", container=", resources: {limits: {cpu: -1, memory: 1g, nvidia.com/gpu: -2}}")): "4 4 4",
    tfjob(role("Worker", container=", env: {A: b}")): "4",
    tfjob(role("Worker", container=", env: [{nam: A}, {name: B, value: [1]}]")): "4 4",
    tfjob(role("Worker", container=", env: [{name: TF_CONFIG, value: x}]")): "4",
    tfjob(role("Worker", container=", env: [{name: V0, value: xxxxxxxxxx}" + "".join(f", {{name: V{n + 1}, value: '{f'$(V{n})' * 9}'}}" for n in range(40)) + "]")): "4",
    # what would change what the program does
    tfjob(role("Worker", container=", env: [{name: A, valueFrom: {}}], envFrom: []", pod="initContainers: [], ")): "4 4 4",
    tfjob(CHIEF, "successPolicy: Any, runPolicy: {cleanPodPolicy: Never, activeDeadlineSeconds: 0, backoffLimit: -1}, "): "3 3 3 3",
}  # fmt: skip


def test_faults(snapshot: SnapshotAssertion):
    check_faults(
        WRONG, lambda text: parse_job(text, "j", {}, sections(), "", NO_TARGET).faults, "j", snapshot
    )


def test_a_program_only_for_containers_without_a_command():
    (fault,) = parse_job(tfjob(CHIEF), "j", target=Target(("train.py",))).faults
    assert (fault.where, "'train.py'" in fault.problem) == ("j", True)


PIECES = ["{", "}", "$", "rank", "ps_hosts", "task_idx", "num_workers", "x", '"a": 1', " "]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_braces_of_a_tfjob_are_no_placeholders(text: str):
    cluster = ClusterSpec({"worker": ["h:1", "h:2"], "ps": ["h:3"]})
    escaped = literal(text, cluster.addresses)
    assert fill_placeholders([escaped], cluster, TaskId.of("worker", 1)) == (text,)
    assert list(misspelt_placeholders(escaped, cluster.addresses)) == []


ODD: list[Any] = [None, "x", "$(NODE)", -1, [], [None], [{}], {}, {"name": []}, {"name": "tensorflow"}]


@settings(max_examples=examples(100), deadline=None)
@given(with_odd_values([yaml.safe_load(PODS)], ODD), st.sampled_from(["", "docker", "kubernetes"]))
def test_any_value_anywhere_is_read_or_a_fault(document: dict[str, Any], engine: str):
    found = parse_job(json.dumps(document), "j", {}, sections(), "", Target(("a",), engine, bool(engine)))
    assert bool(found.faults) != bool(found.roles)
