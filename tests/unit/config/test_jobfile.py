"""Job files: what they say, and what is wrong with which line."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.backends import rows, sections
from launcher.backends.docker.options import DockerOptions, parse
from launcher.config import values
from launcher.config.jobfile import parse_job
from launcher.config.settings import FileContent, merge
from launcher.job import JobSpec, Program, ProgramKind, Role
from tests.unit.config.answers import check_faults, faulty

TRAIN = Program(ProgramKind.SCRIPT, "train.py", ("--lr", "0.1 x"))

FULL = Path(__file__).with_name("full_job.yaml").read_text()


def parsed(text: str) -> FileContent:
    found = parse_job(text, "j", {}, sections())
    assert found.faults == ()
    return found


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
        "tf:1", mounts=("../data:/data:ro", "~/x"), read_only=True,
        memory=(("worker", 2 << 30), ("ps", 512 << 20), ("evaluator", 1 << 30)), cpus=(("", 1.5),),
        user="1000:1000", pull="always", gpus=1, keep=True,
        engine_options=(("shm_size", ("1g",)), ("ulimits", ("memlock=-1", "nofile=1:2")), ("init", ("true",))),
    )  # fmt: skip
    found = parsed(FULL)
    assert (found.roles, docker_of(found)) == (roles, docker)
    assert [found.level[name].source for name in ("docker", "mounts")] == ["j:20", "j:22"]


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
    assert [(fault.where, fault.problem) for fault in found.faults] == [("j:2", '"drain" for "worker"')]
    roles = parsed(text.replace(", chief: {drain: 6}", "") + "chief").roles  # worker 0 decides
    assert [(role.drain, role.retryable) for role in roles] == [(5.0, (range(3, 4), range(128, 256)))]


def test_a_role_has_what_a_pod_has():
    text = "command: a\nroles:\n worker:\n  image: tf:2\n  resources:\n   limits: {cpu: 500m, memory: 1.5Gi, nvidia.com/gpu: 2}"
    (role,) = parsed(text).roles
    assert (role.image, role.cpus, role.memory, role.gpus) == ("tf:2", 0.5, 3 << 29, 2)
    (note,) = parsed(text + "\n   requests: {cpu: 0.5, memory: 1G, nvidia.com/gpu: 2}").notes
    assert note.startswith("j:5: requests: of worker: ")


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


@pytest.mark.parametrize("command", ["python a.py && python b.py", "a.py | tee log", "a.py > log 2>&1"])
def test_an_operator_of_a_shell_in_a_command_is_noted(command: str):
    (note,) = parsed(f"command: {command}\nroles: {{worker: 1}}").notes
    assert note.startswith("j:1: the program gets") and "no shell reads it; [sh, -c, " in note
    assert parsed(f"command: [sh, -c, '{command} $X']\nroles: {{worker: 1}}").notes == ()
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
    assert (fault.where, fault.problem) == ("COMMAND", 'count of worker is "x"')


START = "command: a.py\nroles: {worker: 1}\n"


@pytest.mark.parametrize(
    "text",
    ["---\n{}", "---\n---\n# x\n{}", "# x\n---\n{}---\n", "{}...\n---\n---\n# x\n", "%YAML 1.1\n---\n{}"],
)
def test_empty_documents_do_not_matter(text: str):
    found = parse_job(text.format(START), "j")
    assert (found.faults, [role.name for role in found.roles]) == ((), ["worker"])


def test_faults(snapshot: SnapshotAssertion):
    wrong = faulty("wrong_jobs.txt")
    check_faults(wrong, lambda text: parse_job(text, "j", {}, sections()).faults, "j", snapshot)


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
