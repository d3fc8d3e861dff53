"""Job files: what they say, and what is wrong with which line."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.backends import rows, sections
from launcher.backends.docker.options import DockerOptions, parse
from launcher.config import values
from launcher.config.jobfile import parse_job
from launcher.config.settings import FileContent, merge
from launcher.job import Host, JobSpec, Program, ProgramKind, Role

TRAIN = Program(ProgramKind.SCRIPT, "train.py", ("--lr", "0.1 x"))

FULL = r"""
command: train.py --lr '0.1 x'
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
    flags: no
  data:
    command: [-m, data.serve, 1e3, ""]
    service: yes
    gpus: 0
    hosts: [h1, "[fe80::1]"]
  evaluator: 0
hosts:
  - h1:2
  - {name: h2, gpus: 1}
env: {A: 010}
flags: true
workdir: x
python: bin/python3.11
on_failure: continue
grace: 1.5m
timeout: 2h
run_dir: out
sync: [., 'lib:/opt/lib']
collect: model
docker:
  image: tf:1
  mounts: ['../data:/data:ro', ~/x]
  read_only: yes
  memory: {worker: 2g, ps: 512m, evaluator: 1g}
  cpus: 1.5
  user: '1000:1000'
  pull: always
  gpus: 1
  keep: true
  options: {shm_size: 1g, ulimits: [memlock=-1, nofile=1:2], init: true}
"""


def parsed(text: str) -> FileContent:
    found = parse_job(text, "j", {}, sections())
    assert found.faults == ()
    return found


def values_of(found: FileContent) -> dict[str, object]:
    """Return what the file gives, by the names of settings."""
    return {name: given.value for name, given in found.level.items()}


def docker_of(found: FileContent) -> DockerOptions | None:
    """Return the options of containers."""
    return parse(merge([found.level], rows())[0], JobSpec(()))


def test_everything():
    roles = (
        Role("chief", 1, TRAIN, source="j:4", program_source="j:2"),
        Role("ps", 2, TRAIN, service=True, source="j:5", program_source="j:2"),
        Role(
            "worker", 4, TRAIN, env=(("W", "no"),), gpus=1, hosts=("n1", "n2", "m"), labels=("fast", "zone=a"),
            workdir="/w", flags=False, source="j:6", program_source="j:2",
        ),
        Role(
            "data", 1, Program(ProgramKind.MODULE, "data.serve", ("1e3", "")), gpus=0, hosts=("h1", "fe80::1"),
            service=True, source="j:14", program_source="j:15",
        ),
    )  # fmt: skip
    docker = DockerOptions(
        "tf:1", ("../data:/data:ro", "~/x"), read_only=True,
        memory=(("worker", 2 << 30), ("ps", 512 << 20), ("evaluator", 1 << 30)), cpus=(("", 1.5),),
        user="1000:1000", pull="always", gpus=1, keep=True, limited_roles=("worker", "ps", "evaluator"),
        engine_options=(("shm_size", ("1g",)), ("ulimits", ("memlock=-1", "nofile=1:2")), ("init", ("true",))),
    )  # fmt: skip
    found = parsed(FULL)
    assert (found.roles, docker_of(found)) == (roles, docker)
    own = {
        "env": (("A", "010"),), "flags": True, "workdir": "x", "python": "bin/python3.11",
        "on_failure": "continue", "grace": 90.0, "timeout": 7200.0, "run_dir": "out",
        "sync": (".", "lib:/opt/lib"), "collect": ("model",),
        "hosts": (Host("h1", slots=2, source="j:21"), Host("h2", gpus=("0",), source="j:22")),
    }  # fmt: skip
    assert values_of(found).items() >= own.items()
    level = found.level
    assert (level["grace"].text, level["timeout"].text) == ("1.5m", "2h")
    sources = [level[name].source for name in ("workdir", "hosts", "docker", "mounts")]
    assert sources == ["j:25", "j:20", "j:33", "j:35"]


def test_paths_are_relative_to_the_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    text = re.sub("hosts:\n  - h1.*\n.*", "hosts: lab.yaml", FULL).replace("run_dir: out", "run_dir: ~/out")
    found = parse_job(text, "j", {}, sections(), "/proj")
    assert {key: found.level[key].value for key in ("workdir", "python", "run_dir", "sync", "collect")} == {
        "workdir": "/proj/x",
        "python": "/proj/bin/python3.11",
        "run_dir": "/home/me/out",
        "sync": ("/proj/.", "/proj/lib:/opt/lib"),
        "collect": ("model",),
    }
    assert [role.workdir for role in found.roles] == [None, None, "/w", None]
    assert found.level["hosts"].value == "/proj/lab.yaml", "it names a file, even if there is none"


def test_hosts_are_a_file_beside_the_job_file_or_a_list(tmp_path: Path):
    (tmp_path / "nodes").write_text("h1\n")
    (tmp_path / "h2").mkdir()
    for written, expected in (("nodes", f"{tmp_path}/nodes"), ("h2", "h2"), ("h1:2,h3", "h1:2,h3")):
        text = f"command: a\nroles: {{worker: 1}}\nhosts: {written}"
        assert parse_job(text, "j", {}, sections(), str(tmp_path)).level["hosts"].value == expected


def test_short_forms():
    program = Program(ProgramKind.EXECUTABLE, "hostname")
    roles = (Role("worker", 1, program, source="j:2", program_source="j:1"),)
    found = parsed("\ufeffcommand: hostname\nroles: {worker: 1}")
    assert (found.roles, [*found.level], found.notes) == (roles, ["command", "roles"], ())
    for written in ("lab.yaml", "h1:2,h2", "no"):
        assert parsed(f"command: a\nroles: {{worker: 1}}\nhosts: {written}").level["hosts"].value == written
    assert docker_of(parsed("command: a\nroles: {worker: 1}\ndocker: tf")) == DockerOptions("tf")


def test_services_drain_and_sidecars():
    text = (
        "{chief: 1, worker: {drain: 0}, ps: {service: no}, evaluator: {drain: 1m}, x: {service: yes, drain: 5}, "
        "y: {drain: 2}, board: {sidecar: true}}"
    )
    roles = parsed(f"command: a\nroles: {text}").roles
    assert [(role.name, role.service, role.drain, role.sidecar) for role in roles] == [
        ("chief", False, None, False),
        ("worker", False, 0.0, False),
        ("ps", False, None, False),
        ("evaluator", True, 60.0, False),
        ("x", True, 5.0, False),
        ("y", False, 2.0, False),
        ("board", True, None, True),
    ]


def test_the_tasks_that_decide_need_no_drain_the_others_may_have_one():
    text = "command: a\nroles: {worker: {count: 2, drain: 5, retryable: '3,128-255'}, chief: {drain: 6}}\ndone_when: "
    found = parse_job(text + "worker", "j")
    assert [str(fault) for fault in found.faults] == [f'j:2: "drain" for "worker"; {WAITS}']
    roles = parsed(text.replace(", chief: {drain: 6}", "") + "chief").roles  # worker 0 decides
    assert [(role.drain, role.retryable) for role in roles] == [(5.0, (range(3, 4), range(128, 256)))]


def test_a_role_has_what_a_pod_has():
    text = "command: a\nroles:\n worker:\n  image: tf:2\n  resources:\n   limits: {cpu: 500m, memory: 1.5Gi, nvidia.com/gpu: 2}"
    (role,) = parsed(text).roles
    assert (role.image, role.cpus, role.memory, role.gpus) == ("tf:2", 0.5, 3 << 29, 2)
    (note,) = parsed(text + "\n   requests: {cpu: 0.5, memory: 1G, nvidia.com/gpu: 2}").notes
    assert (
        note
        == "j:5: requests: of worker: launch reserves no CPUs and no memory; limits: and slots limit tasks"
    )


@pytest.mark.parametrize(
    ("roles", "meant"),
    [("evaluater: 1", "evaluator"), ("cheif: 1", "chief"), ("workers: 1", "worker"), ("PS: 1", "ps"), ("worked: 1", "worker"), ("thief: 1", "chief")],
)  # fmt: skip
def test_a_name_near_one_of_tensorflows_is_only_noted(roles: str, meant: str):
    found = parsed(f"command: a\nroles: {{{roles}, master: 1, worker_gpu: 1, worker1: 1, reader: 1}}")
    (note,) = found.notes
    assert note.startswith(f'j:2: role "{roles[:-3]}": did you mean "{meant}"? TensorFlow does not know it')


def test_a_variable_in_a_command_is_noted():
    assert parsed("command: a.py --data=$DATA ${X}\nroles: {worker: 2, ps: 1}").notes == (
        "j:1: the program gets $DATA as it is written: no shell expands it; [sh, -c, 'exec a.py ...'] "
        "expands it from the task's environment",
    )  # fmt: skip
    assert parsed("command: [sh, -c, 'echo $X']\nroles: {worker: 1}").notes == ()


@pytest.mark.parametrize("command", ["python a.py && python b.py", "a.py | tee log", "a.py > log 2>&1"])
def test_an_operator_of_a_shell_in_a_command_is_noted(command: str):
    (note,) = parsed(f"command: {command}\nroles: {{worker: 1}}").notes
    assert note.startswith("j:1: the program gets") and "no shell reads it; [sh, -c, " in note
    assert parsed(f"command: [sh, -c, '{command}']\nroles: {{worker: 1}}").notes == ()
    assert parsed("command: a.py 'x && y' a|b --sep '|'\nroles: {worker: 1}").notes == ()


def test_roles_laid_over_a_file():
    text = "command: b\nroles: {worker: {count: 2, workdir: w, command: a}, ps: 1, board: {sidecar: true, command: t}}"
    laid = {"worker": {"count": 3, "command": ["-c", "x"], "env": {"A": "1"}}, "chief": 1}
    found = parse_job(text, "j", laid)
    assert found.faults == ()
    assert [(role.name, role.count, role.program.name, role.workdir) for role in found.roles] == [
        ("worker", 3, "x", "w"),
        ("board", 1, "t", None),
        ("chief", 1, "b", None),
    ]
    (role,) = parse_job("", "COMMAND", {"worker": {"count": 2, "command": ["a"]}}).roles
    assert role.count == 2
    (fault,) = parse_job("", "COMMAND", {"worker": {"count": "x", "command": ["a"]}}).faults
    assert str(fault) == 'COMMAND: count of worker is "x"; expected a whole number from 0 to 10000'


START = "command: a.py\nroles: {worker: 1}\n"
DOCKER = "docker: {image: tf, "
DURATION = "expected seconds, or a number and s, m, h or d, as in 90 or 5m"
COUNT = "expected a whole number from 0 to 10000"
ROLE = "expected a role: a letter, then letters, digits, _ or -, at most 64"
WAITS = "expected it beside a chief, or a role of done_when: the job waits for this one anyway"
SIDECAR = "expected one of them: a sidecar has no GPU, is stopped with the job, and may fail"
NO_PROGRAM = "expected command: in the role, or once for all roles"
NO_TASK = "no task in any role; expected at least one below roles:, as in worker: 1"


@pytest.mark.parametrize(
    "text",
    ["---\n{}", "---\n---\n# x\n{}", "# x\n---\n{}---\n", "{}...\n---\n---\n# x\n", "%YAML 1.1\n---\n{}"],
)
def test_empty_documents_do_not_matter(text: str):
    found = parse_job(text.format(START), "j")
    assert (found.faults, [role.name for role in found.roles]) == ((), ["worker"])


FAULTS = [
    ("", "j:1: the file has no value; expected kind: TFJob, or a mapping with command: and roles:"),
    ("---\n---\n# a\n---\n", "j:1: the file has no value; expected kind: TFJob, or a mapping with command: and roles:"),
    ("command: a\nroles: {worker: 1}\n---\ncommand: b\nroles: {worker: 2}", "j:4: a second document, after that at line 1; expected one document"),
    ("command: [echo, '${trialParameters.lr}']\nroles: {worker: {{ .Values.n }}}", 'j:1: the placeholder "${trialParameters.lr}" is not filled in; expected a value, as Katib writes it into the TFJob of each trial'),
    ("- a", "j:1: the file is a list; expected kind: TFJob, or a mapping with command: and roles:"),
    ("command: a\nroles: {worker: 0}", f"j:2: {NO_TASK}"),
    ("command: a\nroles: [worker]", "j:2: roles is a list; expected a mapping, as in worker: 4"),
    ("roles: {worker: 1}", f'j:1: role "worker" has no program; {NO_PROGRAM}'),
    ("command: 'a \"b'\nroles: {worker: 1}", 'j:1: command is "a "b"; expected quotes in pairs, as in a shell'),
    # what is missing because of a misspelt key is not a second fault
    ("comand: a\nroles: {worker: 1, ps: 1}", 'j:1: unknown key "comand"; did you mean "command"?'),
    ("roles: {worker: {comand: a}}", 'j:1: unknown key "comand"; did you mean "command"?'),
    ("command: a\nrols: {worker: 1}", 'j:2: unknown key "rols"; did you mean "roles"?'),
    ("command: [-m]\nroles: {worker: 1}", 'j:1: command is "-m"; -m: expected the name of a module'),
    ("program: a\nroles: {worker: 1}", 'j:1: unknown key "program"; expected "command"'),
    (
        "command: a\nroles:\n  ps: x\n  chief: 2\n  9a: 1\n  w:\n  v: 10001\n  u: {counts: 2}\n  t: [1]",
        f'j:3: count of ps is "x"; {COUNT}',
        'j:4: chief is "2"; expected at most 1: TensorFlow takes no more',
        f'j:5: role is "9a"; {ROLE}',
        'j:6: role "w" has no value; expected a count, or a mapping with count:',
        f'j:7: count of v is "10001"; {COUNT}',
        'j:8: unknown key "counts"; did you mean "count"?',
        'j:9: role "t" is a list; expected a count, or a mapping with count:',
    ),
    (
        "command: a\nroles:\n  w:\n    hosts: h,n[3-1],10.0.0.300\n    service: 1",
        'j:4: hosts of w is "n[3-1]"; expected a range that goes up, as in [1-3]',
        'j:4: hosts of w is "10.0.0.300"; expected an IPv4 address, four numbers from 0 to 255',
        'j:5: service of w is "1"; expected true or false',
    ),
    (START + "hosts:", "j:3: hosts has no value; expected a list of hosts, as in [node1, node2]"),
    (
        START + "grace: -1\ntimeout: 1e3\non_failure: stp\nflags: 1\ncommandd: x\nenv: {A B: c}",
        f'j:3: grace is "-1"; {DURATION}',
        f'j:4: timeout is "1e3"; {DURATION}',
        'j:5: on_failure is "stp"; expected stop or continue',
        'j:6: flags is "1"; expected true or false',
        'j:7: unknown key "commandd"; did you mean "command"?',
        'j:8: a name in env is "A B"; expected a variable\'s name: letters, digits and _, not beginning with a digit',
    ),
    ("command: a\nworkers: 2\nps: 1\ngpus: 2\nworkdr: x", 'j:2: unknown key "workers"; expected it below roles:, as in worker: 1', 'j:3: unknown key "ps"; expected it below roles:, as in ps: 1', 'j:4: unknown key "gpus"; expected it in a role, below roles:', 'j:5: unknown key "workdr"; did you mean "workdir"?'),
       # how roles end
    ("command: a\nroles: {worker: 1, chief: {drain: 5}}", f'j:2: "drain" for "chief"; {WAITS}'),
    ("command: a\nroles: {worker: 1, x: {sidecar: yes, drain: 5}}", f'j:2: "drain" and "sidecar" both; {SIDECAR}'),
    ("command: a\nroles: {worker: 1, ps: {sidecar: yes}}", "j:2: ps as a sidecar; expected a role with a name of your own: the job needs this one"),
    ("command: a\nroles: {worker: 1, x: {sidecar: yes, gpus: 1}}", f'j:2: "gpus" and "sidecar" both; {SIDECAR}'),
    ("command: a\nroles: {board: {sidecar: true}}", "j:2: sidecars only; expected another role, which decides when the job is done"),
    ("command: a\nroles:\n worker:\n  drain: 5\n ps: {drain: 5}\n chief: 0", f'j:4: "drain" for "worker"; {WAITS}'),
    ("command: a\nroles: {worker: 1, x: {sidecar: yes, retryable: 1}}", f'j:2: "retryable" and "sidecar" both; {SIDECAR}'),
    (
        "command: a\nroles:\n worker:\n  retryable: [0, 5-3, 128-256, -1, 1-, 7]",
        *(f'j:4: retryable of worker is "{text}"; expected exit codes from 1 to 255, as in [1, 128-255]' for text in ("0", "5-3", "128-256", "-1", "1-")),
    ),
    # what a pod has
    (
        "command: a\nroles:\n worker:\n  image: a b\n  gpus: 1\n  resources:\n   limits: "
        "{cpu: 2, memory: 512m, nvidia.com/gpu: 2}\n   requests: {cpu: 2500m}",
        'j:4: image of worker is "a b"; expected the name of an image',
        "j:5: gpus of worker differs from nvidia.com/gpu in limits:; expected one of them",
        "j:6: cpu of worker: requests: and limits: do not fit; expected at most the limit; as many "
        "GPUs as in limits:",
        'j:7: memory is "512m"; expected a quantity of Kubernetes, as in 512Mi or 2Gi',
    ),
    (
        "command: a\nroles:\n worker:\n  resources:\n   requests: {nvidia.com/gpu: 1}\n   limits: "
        "[2]\n   cpu: 1",
        "j:4: nvidia.com/gpu of worker: requests: and limits: do not fit; expected at most the limit; "
        "as many GPUs as in limits:",
        "j:6: limits is a list; expected a mapping with cpu:, memory: or nvidia.com/gpu:",
        'j:7: unknown key "cpu"; expected one of limits, requests',
    ),
    ("command: a\nroles: {worker: {container: tf}}", 'j:2: unknown key "container"; expected "image"'),
    (START + "retryable: 1", 'j:3: unknown key "retryable"; expected it in a role, below roles:'),
    (START + "done_when: [worker]", "j:3: done_when is a list; expected one value"),
    ("command: a\ndone_when: workers\nroles:\n chief: {drain: 5}\n worker: 1", f'j:4: "drain" for "chief"; {WAITS}'),
    # docker
    (START + "docker: [tf]", "j:3: docker is a list; expected an image, or a mapping with image:"),
    (START + "docker: true", 'j:3: image is "true"; expected the name of an image'),
    (START + DOCKER + "memory: 1m}", 'j:3: memory is "1m"; expected from 6m to 8388607t: container engines accept no other size'),
    (START + DOCKER + 'memory: "2g,4g"}', 'j:3: memory is "2g,4g"; expected one size such as 512m or 2g'),
    (START + DOCKER + "memory: {worker: [2g, 4g]}}", "j:3: memory of worker is a list; expected one value"),
    (START + "kubernetes: {image: a, memory: [1g, 2g]}", "j:3: memory is a list; expected one value"),
    ("command: a\nroles:\n worker:\n  image: a\n  resources:\n   limits: {memory: [1Gi, 2Gi]}", "j:6: memory is a list; expected one value"),
    (START + DOCKER + "memory: {wroker: 1g}}", "j:3: memory: there is no role 'wroker'; did you mean \"worker\"?"),
    (START + DOCKER + "cpus: none}", 'j:3: cpus is "none"; expected a number of CPUs such as 2 or 0.5'),
    (START + DOCKER + "options: [x]}", "j:3: options is a list; expected a mapping, as in shm_size: 1g"),
    (START + DOCKER + "options: {network: host}}", 'j:3: option "network"; expected another: launch sets this one'),
    (START + DOCKER + "imge: x}", 'j:3: unknown key "imge"; did you mean "image"?'),
]  # fmt: skip


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case[0][-30:])
def test_faults(case: tuple[str, ...]):
    text, *expected = case
    assert [str(fault) for fault in parse_job(text, "j", {}, sections()).faults] == expected


GOOD: dict[Callable[[str], object], dict[str, object]] = {
    values.duration: {"0": 0, "90": 90, "10s": 10, "0.5": 0.5, "1.5m": 90, "2h": 7200, "10000d": 864_000_000},
    values.memory: {"8 MiB": 8 << 20, "1.5t": 3 << 39, "64MB": 64 << 20, "8388607t": 8388607 << 40},
    values.memory_quantity: {"8388608": 8 << 20, "64M": 64_000_000, "8192Ki": 8 << 20, "1.5Ti": 3 << 39},
    values.cpu_quantity: {"1500m": 1.5, "2": 2, "0.5": 0.5},
    values.whole(1, 20): {"1": 1, "20": 20},
    values.flag: {"true": True, "No": False, "ON": True},
    values.one_line: {"/a b/ü": "/a b/ü", "-x": "-x"},
    values.role_name: {"a-b_C9": "a-b_C9", "x" * 64: "x" * 64},
    values.label: {"fast": "fast", "a.b/c-d=1:2@x": "a.b/c-d=1:2@x"},
}
BAD: dict[Callable[[str], object], list[str]] = {
    values.duration: ["", "-1", "1e3", "inf", "nan", ".", "5 m", "5ms", "1h30m", "m", "٣", "5\n", "10001d"],
    values.memory: ["", "much", "-1g", "5m", "999999999999999t", "8388608t"],
    values.memory_quantity: ["", "1g", "512m", "2GiB", "1 Gi", "1Mi", "-1Gi"],
    values.cpu_quantity: ["", "m", "5m", "1.5m", "two"],
    values.whole(1, 20): ["0", "21", "01", "+1", "1.0", " 1", "", "٣", "9" * 5000],
    values.flag: ["", "1", "y"],
    values.one_line: ["", "a\nb", "\x00", "\x1b[1m", "\udcff"],
    values.program_path: ["", "-c", "a\tb"],
    values.env_name: ["", "1A", "A B", "A=B", "Ä", "A\n", "TF_CONFIG"],
    values.role_name: ["", "9a", "-a", "a/b", "x" * 65, "é", "a\n"],
    values.label: ["", "=a", "a b", "-x", "a\n"],
}


def test_single_values():
    for read, cases in GOOD.items():
        assert {text: read(text) for text in cases} == cases
    for read, texts in BAD.items():
        for text in texts:
            with pytest.raises(ValueError, match="^expected "):
                read(text)
