"""Placeholders in arguments, and the misspelt ones."""

from __future__ import annotations

import pytest

from launcher.errors import JobError
from launcher.job import JobSpec, Program, ProgramKind, Role
from launcher.planning import check_program_args
from launcher.planning.commands import command, filled, role_values

VALUES = {
    **role_values(["data-reader"], {"ps": ("a:1",), "worker": ("b:2", "c:3"), "data-reader": ("d:4",)}),
    "job_name": "{task_index}",
    "task_index": "1",
    "rank": "2",
    "cluster_spec": '{"ps":["a:1"]}',
}


def job(*args: str, role: str = "worker", source: str = "") -> JobSpec:
    return JobSpec((Role(role, 1, Program(ProgramKind.SCRIPT, "t.py", args), source=source),))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("--ps={ps_hosts}", "--ps=a:1"),
        ("{worker_hosts}", "b:2,c:3"),
        ("{chief_hosts}|{evaluator_hosts}", "|"),
        ("{data_reader_hosts} {num_data_reader}", "d:4 1"),
        ("{num_ps} {num_workers} {num_worker} {num_chief}", "1 2 2 0"),
        ("{rank}{rank}", "22"),
        ("{cluster_spec}", '{"ps":["a:1"]}'),
        # in one pass: what comes out is not looked at again
        ("{job_name}", "{task_index}"),
        # the text itself
        ("{{rank}}", "{rank}"),
        ("{{rank}} is {rank}", "{rank} is 2"),
        ("{{ranks}}", "{ranks}"),
        # somebody else's braces
        ("{}", "{}"),
        ("{0}", "{0}"),
        ("{unknown}", "{unknown}"),
        ("{{unknown}}", "{{unknown}}"),
        ("{{ rank }}", "{{ rank }}"),
        ("{ rank }", "{ rank }"),
        ("{rank:d}", "{rank:d}"),
        ("${rank} ${{rank}} $rank", "${rank} ${{rank}} $rank"),
        ("${RANK:-{rank}}", "${RANK:-2}"),
        ('{"rank": {rank}}', '{"rank": 2}'),
        ('{"lr":{"rank":1}}', '{"lr":{"rank":1}}'),
        ("{print $1}", "{print $1}"),
        ("{RANK}", "{RANK}"),
        ("{rank", "{rank"),
        ("rank}", "rank}"),
        ("node{1..3}", "node{1..3}"),
    ],
)
def test_placeholders(written, expected):
    assert filled(written, VALUES) == expected


def test_a_role_called_workers_keeps_its_number():
    assert role_values(["workers"], {"worker": ("a:1",), "workers": ("b:2", "c:3")})["num_workers"] == "2"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ProgramKind.SCRIPT, ("py", "train", "-i", "1", "--x={x}")),
        (ProgramKind.MODULE, ("py", "-m", "train", "-i", "1", "--x={x}")),
        (ProgramKind.CODE, ("py", "-c", "train", "-i", "1", "--x={x}")),
        (ProgramKind.EXECUTABLE, ("train", "-i", "1", "--x={x}")),
    ],
)
def test_how_a_program_is_started(kind, expected):
    program = Program(kind, "train", ("-i", "{task_index}", "--x={x}"))
    assert command(program, "py", VALUES) == expected


def test_braces_in_code_are_the_code_s_own():
    code = "print({'rank': '{rank}'})"
    assert command(Program.of(["-c", code, "{rank}"]), "py", VALUES) == ("py", "-c", code, "2")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--w={worker_host}", "worker_hosts"),
        ("{task_id}", "task_index"),
        ("{jobname}", "job_name"),
        ("{clusterspec}", "cluster_spec"),
        ("{num_worker_}", "num_worker"),
        ("{ranks}", "rank"),
        ("{data_raeder_hosts}", "data_reader_hosts"),
    ],
)
def test_a_near_miss_is_a_fault(written, meant):
    with pytest.raises(JobError) as caught:
        check_program_args(job(written, role="data-reader", source="job.yaml:3"))
    (fault,) = caught.value.faults
    name = written[written.index("{") :]
    assert str(fault) == (
        f"job.yaml:3: argument {written!r}: there is no placeholder {name};"
        f" did you mean {{{meant}}}? ({{{name}}} stands for the text itself)"
    )


@pytest.mark.parametrize(
    "written",
    ["{job_name}", "{index}", "{}", "{{ranks}}", "${ranks}", '{"ranks": 1}', "{worker}", "{name}", "{host}"],
)
def test_what_is_right_or_not_ours_is_no_fault(written):
    check_program_args(job(written))


def test_all_misspelt_placeholders_are_told_at_once_and_once():
    program = Program(ProgramKind.SCRIPT, "t.py", ("{ranks}", "{ps_host}{task_prot}"))
    with pytest.raises(JobError) as caught:
        check_program_args(JobSpec((Role("ps", 1, program), Role("worker", 0, program))))
    assert [fault.what.split()[-1] for fault in caught.value.faults] == [
        "{ranks}",
        "{ps_host}",
        "{task_prot}",
    ]
