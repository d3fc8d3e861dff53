"""The plan: addresses, TF_CONFIG, environments, commands."""

from __future__ import annotations

import json
import re

import pytest

from launcher.job import Host, JobSpec, Plan, Program, ProgramKind, Role, TaskPlan
from launcher.planning import assemble, commands, place

PROGRAM = Program(ProgramKind.SCRIPT, "train.py")

#: Every placeholder of a job that has a role ``my-own``.
WORDS = """
    job_name task_index rank world_size task_address task_host task_port cluster_spec tf_config
    ps_hosts worker_hosts chief_hosts evaluator_hosts my_own_hosts
    num_ps num_workers num_worker num_chief num_evaluator num_my_own
"""


def plan(job: JobSpec, *hosts: Host) -> Plan:
    """The plan with ports 5000, 5001, ... in the order of the table."""
    placement = place(job, hosts)
    return assemble(job, placement, {placed.task: 5000 + n for n, placed in enumerate(placement.tasks)})


def roles(**counts: int) -> tuple[Role, ...]:
    return tuple(Role(name, count, PROGRAM) for name, count in counts.items())


def only(job: JobSpec, host: Host) -> TaskPlan:
    (task,) = plan(job, host).tasks
    return task


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (Host("n1"), "n1:5000"),
        (Host("n1", address="10.0.0.1"), "10.0.0.1:5000"),
        (Host("fe80::1"), "[fe80::1]:5000"),
        (Host("n1", address="fe80::1%eth0"), "[fe80::1%eth0]:5000"),
        (Host("[fe80::1]"), "[fe80::1]:5000"),
    ],
)
def test_addresses(host, expected):
    task = only(JobSpec(roles(worker=1)), host)
    assert (task.host, task.address, task.port) == (host.name, expected, 5000)
    assert task.env["TASK_ADDRESS"] == expected


def test_the_cluster_names_every_task_and_tf_config_only_what_tensorflow_takes():
    job = JobSpec(roles(reader=1, evaluator=1, ps=1, worker=2, chief=1, master=1))
    made = plan(job, Host("n1"))
    assert list(made.cluster.items()) == [
        ("chief", ("n1:5000",)),
        ("worker", ("n1:5001", "n1:5002")),
        ("ps", ("n1:5003",)),
        ("evaluator", ("n1:5004",)),
        ("reader", ("n1:5005",)),
        ("master", ("n1:5006",)),
    ]
    cluster = '{"chief":["n1:5000"],"worker":["n1:5001","n1:5002"],"ps":["n1:5003"]}'
    for task in made.tasks:
        own = f'{{"type":"{task.task.role}","index":{task.task.index}}}'
        assert task.env["TF_CONFIG"] == f'{{"cluster":{cluster},"task":{own}}}'
        assert {
            role: tuple(them) for role, them in json.loads(task.env["CLUSTER_SPEC"]).items()
        } == made.cluster
        assert (task.env["JOB_NAME"], task.env["TASK_INDEX"]) == (task.task.role, str(task.task.index))


def test_tf_config_of_roles_that_tensorflow_does_not_know():
    task = only(JobSpec(roles(**{'re"ader': 1})), Host("n1"))
    assert json.loads(task.env["TF_CONFIG"]) == {"cluster": {}, "task": {"type": 're"ader', "index": 0}}


@pytest.mark.parametrize(
    ("job_env", "host_env", "role_env", "expected"),
    [
        ((("A", "job"),), (), (), "job"),
        ((("A", "job"),), (("A", "host"),), (), "host"),
        ((("A", "job"),), (("A", "host"),), (("A", "role"),), "role"),
        ((), (), (("A", "1"), ("A", "2")), "2"),
    ],
)
def test_the_nearer_environment_wins(job_env, host_env, role_env, expected):
    job = JobSpec((Role("worker", 1, PROGRAM, env=role_env),), env=job_env)
    assert only(job, Host("n1", env=host_env)).env["A"] == expected


def test_ours_cannot_be_overruled():
    ours = ("TF_CONFIG", "JOB_NAME", "TASK_INDEX", "CLUSTER_SPEC", "TASK_ADDRESS")
    theirs = tuple((name, "theirs") for name in ours)
    job = JobSpec((Role("worker", 1, PROGRAM, env=theirs),), env=theirs)
    assert "theirs" not in only(job, Host("n1", env=theirs)).env.values()


@pytest.mark.parametrize(
    ("gpus", "env", "expected"),
    [
        (None, (), None),
        ((), (), ""),
        (("0", "1"), (), "0,1"),
        (("0", "1"), (("CUDA_VISIBLE_DEVICES", "1"),), "1"),
        (None, (("CUDA_VISIBLE_DEVICES", "1"),), "1"),
    ],
)
@pytest.mark.parametrize("level", ["job", "host", "role"])
def test_gpus_in_the_environment(gpus, env, expected, level):
    said = {"job": (), "host": (), "role": (), level: env}
    job = JobSpec((Role("worker", 1, PROGRAM, env=said["role"]),), env=said["job"])
    task = only(job, Host("n1", gpus=gpus, env=said["host"]))
    assert task.env.get("CUDA_VISIBLE_DEVICES") == expected
    assert task.gpus == gpus


@pytest.mark.parametrize(
    ("of_job", "of_host", "of_role", "expected"),
    [
        (None, None, None, None),
        ("/job", None, None, "/job"),
        ("/job", "/host", None, "/host"),
        ("/job", "/host", "/role", "/role"),
    ],
)
def test_workdir(of_job, of_host, of_role, expected):
    job = JobSpec((Role("worker", 1, PROGRAM, workdir=of_role),), workdir=of_job)
    assert only(job, Host("n1", workdir=of_host)).workdir == expected


@pytest.mark.parametrize(
    ("of_job", "of_host", "expected"),
    [(None, None, "python3"), ("py-job", None, "py-job"), ("py-job", "py-host", "py-host")],
)
def test_python(of_job, of_host, expected):
    job = JobSpec(roles(worker=1), python=of_job)
    assert only(job, Host("n1", python=of_host)).argv == (expected, "train.py")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (
            {"ps": 1, "worker": 2},
            ("--ps_hosts=n1:5002", "--worker_hosts=n1:5000,n1:5001", "--job_name=worker", "--task_index=0"),
        ),
        (
            {"worker": 1},
            ("--ps_hosts=", "--worker_hosts=n1:5000", "--job_name=worker", "--task_index=0"),
        ),
        (
            {"chief": 1, "worker": 1, "evaluator": 1},
            (
                "--ps_hosts=",
                "--worker_hosts=n1:5001",
                "--chief_hosts=n1:5000",
                "--job_name=chief",
                "--task_index=0",
            ),
        ),
    ],
)
def test_the_classic_flags(counts, expected):
    made = plan(JobSpec(roles(**counts), flags=True), Host("n1"))
    assert made.tasks[0].argv == ("python3", "train.py", *expected)


def test_every_placeholder():
    words = WORDS.split()
    program = Program(ProgramKind.EXECUTABLE, "run", tuple(f"{{{word}}}" for word in words))
    job = JobSpec((Role("ps", 1, program), Role("worker", 2, program), Role("my-own", 1, program)))
    task = plan(job, Host("n1", address="::2")).tasks[1]
    assert dict(zip(words, task.argv[1:], strict=True)) == {
        "job_name": "worker",
        "task_index": "1",
        "rank": "1",
        "world_size": "4",
        "task_address": "[::2]:5001",
        "task_host": "::2",
        "task_port": "5001",
        "cluster_spec": task.env["CLUSTER_SPEC"],
        "tf_config": task.env["TF_CONFIG"],
        "ps_hosts": "[::2]:5002",
        "worker_hosts": "[::2]:5000,[::2]:5001",
        "chief_hosts": "",
        "evaluator_hosts": "",
        "num_ps": "1",
        "num_workers": "2",
        "num_worker": "2",
        "num_chief": "0",
        "num_evaluator": "0",
        "my_own_hosts": "[::2]:5003",
        "num_my_own": "1",
    }


def test_the_table_of_placeholders_is_whole():
    table = (commands.__doc__ or "").split("Other braces")[0]
    told = set(re.findall(r"``\{(\w+)\}``", table))
    assert told == {word.replace("my_own", "ROLE") for word in WORDS.split()}


def test_a_task_without_a_port_is_a_fault_of_ours():
    job = JobSpec(roles(worker=1))
    with pytest.raises(KeyError):
        assemble(job, place(job, (Host("n1"),)), {})
