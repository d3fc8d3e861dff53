"""The plan: ClusterSpec, TF_CONFIG, environments, commands, placeholders."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import json
import re

import pytest

from launcher.common import cluster as cluster_spec
from launcher.common.cluster import ClusterSpec, TaskId, fill_placeholders
from launcher.common.errors import PlacementError
from launcher.common.record import replace
from launcher.job import Host, JobSpec, Plan, Program, Role, TaskPlan
from launcher.scheduler.placement import place
from launcher.scheduler.plan import (
    MAX_ARGUMENT_BYTES,
    check_texts,
    completed,
    make_plan,
)

PROGRAM = Program.of(["train.py"])


def plan(spec: JobSpec, *hosts: Host) -> Plan:
    """The plan with ports 5000, 5001, ... in the order of the table."""
    placement = place(spec, hosts)
    made = make_plan(spec, placement, {placed.task: 5000 + n for n, placed in enumerate(placement.tasks)})
    cluster = ClusterSpec(made.cluster, made.sidecars)
    return replace(made, tasks=tuple(completed(task, cluster) for task in made.tasks))


def roles(**counts: int) -> tuple[Role, ...]:
    return tuple(Role(name, count, PROGRAM) for name, count in counts.items())


HOST = Host("n1")


def only(spec: JobSpec, host: Host = HOST) -> TaskPlan:
    (task,) = plan(spec, host).tasks
    return task


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (Host("n1"), "n1:5000"),
        (Host("n1", address="10.0.0.1"), "10.0.0.1:5000"),
        (Host("n1", address="fe80::1%eth0"), "[fe80::1%eth0]:5000"),
        (Host("[fe80::1]"), "[fe80::1]:5000"),
    ],
)
def test_addresses(host: Host, expected: str):
    task = only(JobSpec(roles(worker=1)), host)
    assert (task.host, task.address, task.env["TASK_ADDRESS"]) == (host.name, expected, expected)


def test_the_cluster_names_every_task_and_tf_config_only_what_tensorflow_takes():
    made = plan(JobSpec(roles(reader=1, evaluator=1, ps=1, worker=2, chief=1)), Host("n1"))
    assert " ".join(made.cluster) == "chief worker ps evaluator reader"
    assert [len(addresses) for addresses in made.cluster.values()] == [1, 2, 1, 1, 1]
    cluster = '{"chief":["n1:5000"],"worker":["n1:5001","n1:5002"],"ps":["n1:5003"]}'
    for task in made.tasks:
        role, index = task.task.role, task.task.index
        assert task.env["TF_CONFIG"] == f'{{"cluster":{cluster},"task":{{"type":"{role}","index":{index}}}}}'
        spec = json.loads(task.env["CLUSTER_SPEC"])
        assert {role: tuple(addresses) for role, addresses in spec.items()} == made.cluster
        assert (task.env["JOB_NAME"], task.env["TASK_INDEX"]) == (role, str(index))


def test_tf_config_of_other_roles():
    task = only(JobSpec(roles(**{'re"ader': 1})))
    assert json.loads(task.env["TF_CONFIG"]) == {"cluster": {}, "task": {"type": 're"ader', "index": 0}}
    master = plan(JobSpec(roles(worker=1, master=1)), Host("n1")).tasks[1]
    cluster = {"master": ["n1:5001"], "worker": ["n1:5000"]}
    assert json.loads(master.env["TF_CONFIG"]) == {"cluster": cluster, "task": {"type": "master", "index": 0}}


def test_environment_later_ones_win_and_ours_always():
    ours = ("TF_CONFIG", "JOB_NAME", "TASK_INDEX", "CLUSTER_SPEC", "TASK_ADDRESS")
    taken = tuple((name, "taken") for name in ours)

    def env(job=(), host=(), role=(), option=(), gpus=None) -> dict[str, str]:
        spec = JobSpec((Role("worker", 1, PROGRAM, env=role),), env=job, option_env=option)
        return dict(only(spec, Host("n1", env=host, gpus=gpus)).env)

    for levels, value in [
        ("job", "job"),
        ("job host", "host"),
        ("job host role", "role"),
        ("job role option", "option"),
    ]:
        assert env(**{level: (("A", level),) for level in levels.split()})["A"] == value
    assert "taken" not in env(taken, taken, taken, taken).values()
    assert "CUDA_VISIBLE_DEVICES" not in env()
    assert env(gpus=())["CUDA_VISIBLE_DEVICES"] == ""
    assert env(gpus=("0", "1"))["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert env(gpus=("0", "1"), host=(("CUDA_VISIBLE_DEVICES", "1"),))["CUDA_VISIBLE_DEVICES"] == "1"


def test_workdir_and_python():
    for job, host, role, expected in [(None, None, None, None), ("/j", None, None, "/j"), ("/j", "/h", None, "/h"), ("/j", "/h", "/r", "/r")]:  # fmt: skip
        spec = JobSpec((Role("worker", 1, PROGRAM, workdir=role),), workdir=job)
        assert only(spec, Host("n1", workdir=host)).workdir == expected
    for python, on, expected in [(None, Host("n"), "python3"), ("pj", Host("n"), "pj"), ("pj", Host("n", python="ph"), "ph"), ("pj", Host("n", venv="v"), "python"), ("pj", Host("n", python="ph", venv="v"), "python")]:  # fmt: skip
        assert only(JobSpec(roles(worker=1), python=python), on).argv == (expected, "train.py")


def test_classic_flags():
    own = ("--job_name=worker", "--task_index=0")
    alone = only(JobSpec(roles(worker=1), flags=True)).argv
    assert alone[2:] == ("--ps_hosts=", "--worker_hosts=n1:5000", *own)
    made = plan(JobSpec(roles(chief=1, worker=1), flags=True), Host("n1"))
    assert made.tasks[1].argv[2:] == ("--ps_hosts=", "--worker_hosts=n1:5001", "--chief_hosts=n1:5000", *own)


PLACEHOLDERS = """
    job_name task_index rank world_size local_rank local_size node_rank first_address first_host first_port
    task_address task_host task_port cluster_spec tf_config ps_hosts worker_hosts chief_hosts evaluator_hosts
    my_own_hosts num_ps num_workers num_worker num_chief num_evaluator num_my_own attempt
"""


@pytest.mark.promise("`TF_CONFIG` and flags by role; placeholders; variables as TonY has them")
def test_every_placeholder():
    words = PLACEHOLDERS.split()
    program = Program.of(["run", *(f"{{{word}}}" for word in words)])
    board = Role("my-own", 1, program, sidecar=True)
    task = plan(
        JobSpec((Role("ps", 1, program), Role("worker", 2, program), board)), Host("n1", address="::2")
    ).tasks[1]
    assert dict(zip(words, task.argv[1:], strict=True)) == {
        "job_name": "worker", "task_index": "1", "rank": "1", "world_size": "3",
        "local_rank": "1", "local_size": "3", "node_rank": "0",
        "first_address": "[::2]:5000", "first_host": "::2", "first_port": "5000",
        "task_address": "[::2]:5001", "task_host": "::2", "task_port": "5001",
        "cluster_spec": task.env["CLUSTER_SPEC"], "tf_config": task.env["TF_CONFIG"],
        "ps_hosts": "[::2]:5002", "worker_hosts": "[::2]:5000,[::2]:5001", "chief_hosts": "", "evaluator_hosts": "",
        "my_own_hosts": "[::2]:5003", "num_ps": "1", "num_workers": "2", "num_worker": "2", "num_chief": "0",
        "num_evaluator": "0", "num_my_own": "1", "attempt": "1",
    }  # fmt: skip
    table = (cluster_spec.__doc__ or "").split("Other braces")[0]
    documented = set(re.findall(r"``\{(\w+)\}``", table))
    assert documented == {word.replace("my_own", "ROLE") for word in words}


def test_ranks():
    """The order of the table; sidecars come last and count in no size."""
    program = Program.of(["run", "{rank} {local_rank}/{local_size} {node_rank} {first_address}"])
    counts = {"ps": 1, "worker": 3, "chief": 1, "evaluator": 1}
    board = Role("board", 1, program, sidecar=True)
    spec = JobSpec((board, *(Role(name, count, program) for name, count in counts.items())))
    made = plan(spec, Host("n1", slots=3), Host("n2", slots=4))
    assert [f"{task.task} {task.argv[1]}" for task in made.tasks] == [
        "chief/0 0 0/3 0 n1:5000", "worker/0 1 1/3 0 n1:5000", "worker/1 2 2/3 0 n1:5000",
        "worker/2 3 0/3 1 n1:5000", "ps/0 4 1/3 1 n1:5000", "evaluator/0 5 2/3 1 n1:5000",
        "board/0 6 3/3 0 n1:5000",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", ""),
        ("--ps={ps_hosts} {rank}{rank}", "--ps=a:1 22"),
        ("{data_reader_hosts} {num_data_reader} {num_workers}", "d:4 1 2"),
        ("{{rank}} is {rank}, {{ranks}}", "{rank} is 2, {ranks}"),
        # braces that are not ours
        ("{} {0} {unknown} {{unknown}} {{ rank }} { rank } {rank:d}", "{} {0} {unknown} {{unknown}} {{ rank }} { rank } {rank:d}"),
        ("${rank} ${{rank}} $rank ${RANK:-{rank}}", "${rank} ${{rank}} $rank ${RANK:-2}"),
        ('{"rank": {rank}} {"lr":{"rank":1}}', '{"rank": 2} {"lr":{"rank":1}}'),
        ("{RANK} {rank rank} node{1..3} {print $1}", "{RANK} {rank rank} node{1..3} {print $1}"),
    ],
)  # fmt: skip
def test_placeholders(written: str, expected: str):
    cluster = ClusterSpec({"ps": ["a:1"], "worker": ["b:2", "c:3"], "data-reader": ["d:4"]})
    assert fill_placeholders(["{x}", written], cluster, TaskId.of("worker", 1)) == ("{x}", expected)


def job(*args: str) -> JobSpec:
    return JobSpec((Role("data-reader", 1, Program.of(["t.py", *args]), source="j:3"),))


@pytest.mark.parametrize(
    ("written", "meant"),
    [("--w={worker_host}", "worker_hosts"), ("{task_id}", "task_index"), ("{ranks}", "rank"), ("{data_raeder_hosts}", "data_reader_hosts"),
     ("{wrold_size}", "world_size"), ("{master_addr}", "first_host")],
)  # fmt: skip
def test_a_misspelt_placeholder_is_a_fault(written: str, meant: str):
    name = written[written.index("{") :]
    faults = [*check_texts(job(written, "{ranks}"), (), "")]
    assert (faults[0].where, repr(written) in faults[0].problem) == ("j:3", True)
    assert f"did you mean {{{meant}}}? ({{{name}}} becomes" in str(faults[0])
    assert len(faults) == (1 if written == "{ranks}" else 2)
    env = (("A", written), ("B", "{rank}"))
    every = JobSpec((Role("data-reader", 1, PROGRAM, env=env, source="j:3"),), env=env, option_env=env)
    found = [*check_texts(every, (Host("n1", env=env, source="h:1"),), "j:1")]
    assert [fault.where for fault in found] == ["j:1", "-x", "j:3", "h:1"]
    assert all("variable A" in str(fault) and f"{{{meant}}}?" in str(fault) for fault in found)
    assert not [*check_texts(JobSpec((), option_env=env, copied=frozenset("A")), (), "")]


def test_descriptors_that_tasks_have():
    words = [
        "/dev/fd/0", "--out=/dev/fd/2", "cat /dev/fd/3 3<a", "exec 3<a; cat --c=/dev/fd/3", "/dev/fd/",
        "/tmp/dev/fd/63", "/dev/fd/63/x", "x/dev/fd/9",
    ]  # fmt: skip
    assert not [*check_texts(job(*words), (), "")]


def test_variables_that_are_too_long_for_the_kernel():
    host = Host("node-with-a-name")
    many = JobSpec(roles(worker=4000))
    assert len(place(many, (host,)).tasks) == 4000
    with pytest.raises(PlacementError) as caught:
        place(JobSpec(roles(worker=6000, ps=10)), (host,))
    assert [fault.problem.split()[0] for fault in caught.value.faults] == ["TF_CONFIG", "CLUSTER_SPEC"]
    assert "in a job of 6,010 tasks; expected at most 131,072" in str(caught.value)
    assert str(caught.value).count("short `address:` entries") == 2
    for size, fits in ((MAX_ARGUMENT_BYTES - 3, True), (MAX_ARGUMENT_BYTES - 2, False)):
        spec = JobSpec(roles(worker=1), env=(("A", "x" * size),))
        if fits:
            only(spec)
        else:
            with pytest.raises(PlacementError, match="A takes 131,073 bytes"):
                place(spec, (host,))
