"""Job files: what they say, and what is wrong with which line."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import JobError
from launcher.job import Host, JobSpec, OnFailure, Policy, Program, ProgramKind, Role
from launcher.jobfile import JobFile, parse

TRAIN = Program(ProgramKind.SCRIPT, "train.py", ("--lr", "0.1 x"))

FULL = r"""
program: train.py --lr '0.1 x'
roles:
  chief: 1
  ps: 2
  worker:
    count: 4
    gpus: 1
    env: {W: no}
    hosts: n[1-2],m
    labels: [fast, zone=a]
    workdir: /w
  data:
    command: [-m, data.serve, 1e3, ""]
    service: yes
    resources: {gpus: 0}
    hosts: [h1, "[fe80::1]"]
  evaluator: 0
hosts:
  - h1:2
  - {name: h2, gpus: 1}
env: {A: 010}
flags: true
workdir: /x
python: python3.11
on_failure: continue
grace: 1.5m
timeout: 2h
run_dir: out
sync: [., 'lib:/opt/lib']
collect: model
"""


def test_everything() -> None:
    roles = (
        Role("chief", 1, TRAIN, source="j:4", program_source="j:2"),
        Role("ps", 2, TRAIN, service=True, source="j:5", program_source="j:2"),
        Role(
            "worker", 4, TRAIN, env=(("W", "no"),), gpus=1, hosts=("n1", "n2", "m"), labels=("fast", "zone=a"),
            workdir="/w", source="j:6", program_source="j:2",
        ),
        Role(
            "data", 1, Program(ProgramKind.MODULE, "data.serve", ("1e3", "")), gpus=0, hosts=("h1", "fe80::1"),
            service=True, source="j:13", program_source="j:14",
        ),
    )  # fmt: skip
    policy = Policy(OnFailure.CONTINUE, 90.0, 7200.0, "2h")
    job = JobSpec(roles, True, (("A", "010"),), workdir="/x", python="python3.11", policy=policy)
    hosts = (Host("h1", slots=2, source="j:20"), Host("h2", gpus=("0",), source="j:21"))
    assert parse(FULL, "j") == JobFile(
        job,
        hosts,
        hosts_source="j:19",
        run_dir="out",
        run_dir_source="j:29",
        sync=(".", "lib:/opt/lib"),
        collect=("model",),
        workdir_source="j:24",
        python_source="j:25",
        sync_source="j:30",
        collect_source="j:31",
        source="j",
    )


def test_the_least() -> None:
    program = Program(ProgramKind.EXECUTABLE, "hostname")
    job = JobSpec((Role("worker", 1, program, source="j:2", program_source="j:1"),))
    assert parse("\ufeffcommand: hostname\nroles: {worker: 1}", "j") == JobFile(job, source="j")


@pytest.mark.parametrize("written", ["lab.yaml", "h1:2,h2", "no"])
def test_hosts_as_a_text_are_the_callers_to_read(written: str) -> None:
    found = parse(f"program: a\nroles: {{worker: 1}}\nhosts: {written}", "j")
    assert (found.hosts, found.hosts_ref, found.hosts_source) == (None, written, "j:3")


def test_a_service_is_what_is_said_else_by_its_name() -> None:
    roles = parse("program: a\nroles: {ps: {service: no}, worker: 1, evaluator: {}}", "j").job.roles
    assert [(role.name, role.service) for role in roles] == [
        ("ps", False),
        ("worker", False),
        ("evaluator", True),
    ]


@pytest.mark.parametrize(
    ("line", "policy"),
    [("grace: 0", Policy(grace=0)), ("timeout: 0", Policy()), ("timeout: 90", Policy(timeout=90, timeout_said="90")), ("on_failure: stop", Policy())],
)  # fmt: skip
def test_policy(line: str, policy: Policy) -> None:
    assert parse(f"program: a\nroles: {{worker: 1}}\n{line}", "j").job.policy == policy


START = "program: a.py\nroles: {worker: 1}\n"
DURATION = "expected seconds, or a number and s, m, h or d, as in 90 or 5m"
ROLE = "expected a role: a letter, then letters, digits, _ or -, at most 64"
ONE_PROGRAM = "expected command: in the role, or once for all roles"
NO_TASK = "no task in any role; expected at least one below roles:, as in worker: 1"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["j:1: the file has no value; expected a mapping, with roles:"]),
        ("- a", ["j:1: the file is a list; expected a mapping, with roles:"]),
        ("program: a", [f"j:1: {NO_TASK}"]),
        ("program: a\nroles: {worker: 0}", [f"j:2: {NO_TASK}"]),
        ("program: a\nroles: [worker]", ["j:2: roles is a list; expected a mapping, as in worker: 4"]),
        ("roles: {worker: 1}", [f'j:1: role "worker" has no program; {ONE_PROGRAM}']),
        ("program: 'a \"b'\nroles: {worker: 1}", ['j:1: program is "a "b"; expected quotes in pairs, as in a shell']),
        ("comand: a\nroles: {worker: 1, ps: 1}", ['j:1: unknown key "comand"; did you mean "command"?']),
        ("roles: {worker: {progam: a}}", ['j:1: unknown key "progam"; did you mean "program"?']),
        ("program: a\nrols: {worker: 1}", ['j:2: unknown key "rols"; did you mean "roles"?']),
        ("program: ''\nroles: {worker: 1}", ['j:1: program is ""; expected a program: FILE.py, -m MODULE, -c CODE or an executable']),
        ("program: [-c, ' ']\nroles: {worker: 1}", ['j:1: program is "-c  "; -c: expected Python code']),
        ("program: [-m]\nroles: {worker: 1}", ['j:1: program is "-m"; -m: expected the name of a module']),
        ("program: {a: b}\nroles: {worker: 1}", ["j:1: program is a mapping; expected one value"]),
        ("program: [a, null]\nroles: {worker: 1}", ["j:1: program has no value; expected one value"]),
        ("program: a\ncommand: b\nroles: {worker: 1}", ['j:2: "program" and "command" both; expected one of them']),
        (
            "program: a\nroles:\n  ps: x\n  chief: 2\n  9a: 1\n  w:\n  v: 10001\n  u: {counts: 2}\n  t: [1]",
            [
                'j:3: count is "x"; expected a whole number from 0 to 10000',
                'j:4: chief is "2"; expected at most 1: TensorFlow takes no more',
                f'j:5: role is "9a"; {ROLE}',
                'j:6: role "w" has no value; expected a count, or a mapping with count:',
                'j:7: count is "10001"; expected a whole number from 0 to 10000',
                'j:8: unknown key "counts"; did you mean "count"?',
                'j:9: role "t" is a list; expected a count, or a mapping with count:',
            ],
        ),
        (
            "program: a\nroles:\n  w:\n    gpus: 1\n    resources:\n      gpus: 2\n    hosts: [n[3-1]]\n",
            ['j:7: "hosts: [n[3-1]]" is not YAML: expected \',\' or \']\', but got \'[\'; expected quotes around text with brackets, as in "[fe80::1]:2"'],
        ),
        (
            "program: a\nroles:\n  w:\n    gpus: 1\n    resources:\n      gpus: 2\n    hosts: h,n[3-1],10.0.0.300\n    service: 1",
            [
                'j:6: "gpus" and "resources: gpus" both; expected one of them',
                'j:7: hosts is "n[3-1]"; expected a range that goes up, as in [1-3]',
                'j:7: host is "10.0.0.300"; expected an IPv4 address, four numbers from 0 to 255',
                'j:8: service is "1"; expected true or false',
            ],
        ),
        ("program: a\nroles: {w: {hosts: 'n[1-9999]'}}", ["j:2: 9999 hosts for a role; expected at most 4096"]),
        ("program: a\nroles: {w: {hosts: 'h:2'}}", ['j:2: hosts is "h:2"; expected a name without ":", or an IPv6 address as in fe80::1%eth0']),
        (START + "hosts: {a: 1}", ["j:3: hosts is a mapping; expected a list of hosts, or the path of a hostfile"]),
        (START + "hosts:", ["j:3: hosts has no value; expected a list of hosts"]),
        (START + "hosts:\n- a\n- {name: a}", ['j:5: host "a" was already written at j:4; expected each host once']),
        (START + "grace: -1\ntimeout: 1e3\non_failure: stp\nflags: 1\nprogams: x\nenv: {A B: c}", [
            f'j:3: grace is "-1"; {DURATION}',
            f'j:4: timeout is "1e3"; {DURATION}',
            'j:5: on_failure is "stp"; expected stop or continue',
            'j:6: flags is "1"; expected true or false',
            'j:7: unknown key "progams"; did you mean "program"?',
            'j:8: a name in env is "A B"; expected a variable\'s name: letters, digits and _, not beginning with a digit',
        ]),
        ("program: a\nroles: {workers: 2, Worker: 1, PS: 1, evaluators: 1, reader: 1}", [
            'j:2: role is "workers"; did you mean "worker"?',
            'j:2: role is "Worker"; did you mean "worker"?',
            'j:2: role is "PS"; did you mean "ps"?',
            'j:2: role is "evaluators"; did you mean "evaluator"?',
        ]),
        ("program: a\nroles: {evaluater: 1, cheif: 1, wokers: 2, pps: 1, master: 1, worker_gpu: 1}", [
            'j:2: role is "evaluater"; did you mean "evaluator"?',
            'j:2: role is "cheif"; did you mean "chief"?',
            'j:2: role is "wokers"; did you mean "worker"?',
            'j:2: role is "pps"; did you mean "ps"?',
        ]),
        ("program: a\nwrokers: 2\nsp: 1\nworkdr: x", [
            'j:2: unknown key "wrokers"; expected it below roles:, as in worker: 1',
            'j:3: unknown key "sp"; expected it below roles:, as in ps: 1',
            'j:4: unknown key "workdr"; did you mean "workdir"?',
        ]),
        ("program: a\nworkers: 2\nps: 1\ngpus: 2", [
            'j:2: unknown key "workers"; expected it below roles:, as in worker: 1',
            'j:3: unknown key "ps"; expected it below roles:, as in ps: 1',
            'j:4: unknown key "gpus"; expected it in a role, below roles:',
        ]),
        (START + "env: {TF_CONFIG: x}", [
            'j:3: a name in env is "TF_CONFIG"; expected another: launch sets this one, for each task its own',
        ]),
        ("program: a\nroles: {" + ", ".join(f"r{n}: 1" for n in range(257)) + "}", ["j:2: 257 roles; expected at most 256"]),
    ],
    ids=lambda value: value[-30:] if isinstance(value, str) else "",
)  # fmt: skip
def test_faults(text: str, faults: list[str]) -> None:
    with pytest.raises(JobError) as caught:
        parse(text, "j")
    assert [str(fault) for fault in caught.value.faults] == faults


PIECES = [
    "program: ", "command: ", "roles:", "roles: ", "worker: ", "ps: ", "chief: ", "count: ", "gpus: ", "resources: ",
    "hosts: ", "labels: ", "env: ", "timeout: ", "grace: ", "flags: ", "on_failure: ", "workdir: ", "service: ",
    "\n", "\n  ", "\n    ", "\n- ", "- ", "{", "}", "[", "]", ", ", ": ", "&a ", "*a", "<<: ", "!!str ", "|\n ", "'",
    '"', "#", "---\n", "a.py", "-m", "2", "1", "0", "5m", "n[1-3]", "fe80::1", "null", "yes", "\\", "\t", '"\\ud800"',
]  # fmt: skip
pieces = st.lists(st.sampled_from(PIECES), max_size=16).map("".join)
anything = st.one_of(
    st.text(max_size=60),
    pieces,
    pieces.map(lambda text: "program: a\nroles:\n  worker: 1\n" + text),
    pieces.map(lambda text: "program: a\nroles:\n  worker:\n    " + text),
)


@settings(max_examples=200, deadline=None)
@given(anything)
def test_anything_is_a_job_or_a_job_error(text: str) -> None:
    try:
        found = parse(text, "j")
    except JobError as error:
        assert error.faults
        assert str(error).encode()
    else:
        assert found.job.roles
        assert all(role.count > 0 and role.program.name for role in found.job.roles)
