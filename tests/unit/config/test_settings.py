"""Settings: what a row reads, how levels are merged, and that the table fits itself."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.backends import rows, sections
from launcher.backends.containers import MEMORY, PULL
from launcher.backends.docker.rows import DOCKER, MOUNTS
from launcher.backends.slurm.rows import NO_SLURM, NODES, SLURM, SLURM_OPTIONS
from launcher.cli.arguments import parse_launch, parse_options
from launcher.common.errors import InputError
from launcher.config import table
from launcher.config.jobfile import parse_job
from launcher.config.settings import (
    COMMAND_LINE,
    EVERYWHERE,
    Given,
    Level,
    Setting,
    Settings,
    SourceKind,
    merge,
    switch,
)
from launcher.config.values import whole
from launcher.job import Host

ROWS = rows()
GIB = 1 << 30
H1, H2 = Host("h1", slots=2, source="job.yaml:3"), Host("h2", gpus=("0",), source="job.yaml:3")


def read(*words: str) -> tuple[Settings, list[tuple[str, str]]]:
    """Return the settings of a command line, and the places and problems of its faults."""
    line = parse_launch([*words, "true"])
    settings, more = merge([line.level], ROWS)
    return settings, [(fault.where, fault.problem) for fault in [*line.faults, *more]]


def job_level(text: str) -> Level:
    """Return the level of a job file."""
    file = f"command: a\nroles: {{worker: 1}}\n{text}"
    found = parse_job(file, "job.yaml", {}, sections(), "/job")
    assert found.faults == ()
    return found.level


# ---------------------------------------------------------------------- the table


def test_names_flags_and_keys_are_unique():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    flags = [flag for row in ROWS if COMMAND_LINE in row.given_in for flag in row.flags]
    assert len(set(flags)) == len(flags)
    for section in sections():
        keys = [row.key for row in section.rows]
        assert len(set(keys)) == len(keys)


def test_every_row_of_a_module_is_in_a_group():
    found = {id(row) for row in vars(table).values() if isinstance(row, Setting)}
    assert found == {id(row) for row in table.ROWS}


def test_what_nobody_gives_has_its_default():
    settings, faults = merge([], ROWS)
    assert not faults
    for row in ROWS:
        assert settings[row] == row.default
        assert (settings.source(row), settings.source_kind(row), settings.text(row)) == ("", None, "")
        assert not settings.is_given(row)


# ---------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("words", "row", "value", "text"),
    [
        ("--workers 2", table.WORKERS, 2, "2"),
        ("--workers 2 --workers 3", table.WORKERS, 3, "3"),
        ("--chief", table.CHIEF, True, "True"),
        ("--timeout 5m", table.TIMEOUT, 300.0, "5m"),
        ("--tensorboard", table.TENSORBOARD, "", ""),
        ("--tensorboard=logs", table.TENSORBOARD, "logs", "logs"),
        ("--docker tf:1", DOCKER, "tf:1", "tf:1"),
        ("-x A=1,2 -x B", table.VARIABLES, ("A=1,2", "B"), "A=...,B"),
        ("--mount /a --mount /b:ro", MOUNTS, ("/a", "/b:ro"), "/a,/b:ro"),
        ("--memory 1g --memory ps=2g", MEMORY, (("", GIB), ("ps", 2 * GIB)), "1g,ps=2g"),
        ("--env lab", table.VENV, "lab", "lab"),
        ("-N 3", NODES, 3, "3"),
        ("--preload a,b.c", table.PRELOAD, ("a", "b.c"), "a,b.c"),
        ("--hosts a --hosts a", table.HOSTS, "a", "a,a"),
        ("--workdir=-odd", table.WORKDIR, "-odd", "-odd"),
    ],
)
def test_values_of_a_command_line(words: str, row: Setting[object], value: object, text: str):
    settings, faults = read(*words.split())
    assert not faults
    assert settings[row] == value
    assert (settings.source(row), settings.source_kind(row)) == (row.flag, COMMAND_LINE)
    assert settings.text(row) == text
    # What the folder of the run keeps sets the same, without values that may be secret.
    again = parse_options(parse_launch([*words.split(), "true"]).options)
    secret = {"variables": ["A=...", "B"]} if row is table.VARIABLES else {}
    assert again == {**parse_options(words.split()), **secret}


@pytest.mark.parametrize(
    ("words", "answer"), [("-n 4 --zzz", "--workers 4"), ("--wrokers 2 --zzz", "--workers?")]
)
def test_options_that_do_not_exist_are_reported_one_at_a_time(words: str, answer: str):
    with pytest.raises(InputError) as error:
        parse_launch(words.split())
    assert len(error.value.faults) == 1 and answer in str(error.value)


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("text", "row", "value"),
    [
        ("restarts: 3", table.RESTARTS, 3),
        ("flags: off", table.FLAGS, False),
        ("timeout: 5m", table.TIMEOUT, 300.0),
        ("tensorboard: true", table.TENSORBOARD, ""),
        ("tensorboard: logs", table.TENSORBOARD, "logs"),
        ("grace: 1.5m", table.GRACE, 90.0),
        ("on_failure: continue", table.ON_FAILURE, "continue"),
        ("env: {A: 010}", table.ENV, (("A", "010"),)),
        ("preload: [a, b]", table.PRELOAD, ("a", "b")),
        ("preload: a, b", table.PRELOAD, ("a", "b")),
        ("sync: [., 'lib:/opt/lib']", table.SYNC, ("/job/.", "/job/lib:/opt/lib")),
        ("run_dir: ~/out", table.RUN_DIR, os.path.expanduser("~/out")),
        ("collect: [a, b]", table.COLLECT, ("a", "b")),
        ("collect: model", table.COLLECT, ("model",)),
        ("python: bin/python3.11", table.PYTHON, "/job/bin/python3.11"),
        ("workdir: ~/x", table.WORKDIR, "~/x"),
        ("workdir: x", table.WORKDIR, "/job/x"),
        ("venv: lab", table.VENV, "lab"),
        ("venv: ./lab", table.VENV, "/job/./lab"),
        ("hosts: lab.yaml", table.HOSTS, "/job/lab.yaml"),
        ("hosts: 'a,b'", table.HOSTS, "a,b"),
        ("hosts: [h1:2, {name: h2, gpus: 1}]", table.HOSTS, (H1, H2)),
        ("docker: tf:1", DOCKER, "tf:1"),
        ("docker: {image: tf:1}", DOCKER, "tf:1"),
        ("docker: {pull: never}", DOCKER, ""),
        ("docker: {pull: never}", PULL, "never"),
        ("kubernetes: {memory: {worker: 1g}}", MEMORY, (("worker", GIB),)),
        ("docker: {mounts: [a, '~/b']}", MOUNTS, ("/job/a", "~/b")),
        ("slurm: {}", SLURM, True),
        ("slurm: {options: --qos=a}", SLURM_OPTIONS, "--qos=a"),
    ],
)
def test_values_of_a_file(text: str, row: Setting[object], value: object):
    settings, faults = merge([job_level(text)], ROWS)
    assert not faults
    assert settings[row] == value
    assert (settings.source(row), settings.source_kind(row)) == ("job.yaml:3", SourceKind.JOB_FILE)


# ---------------------------------------------------------------------- merge


def at(kind: SourceKind, **values: Any) -> Level:
    """Return a level with these values."""
    return {
        name: Given(value, source=f"{kind.name}:{name}", kind=kind, text=str(value))
        for name, value in values.items()
    }


FILE, LINE = SourceKind.JOB_FILE, COMMAND_LINE


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ({"restarts": 3}, {}, {table.RESTARTS: 3}),
        ({"restarts": 3}, {"restarts": 0}, {table.RESTARTS: 0}),
        ({"python": "a"}, {"venv": "b"}, {table.PYTHON: None, table.VENV: "b"}),
        ({"venv": "a"}, {"python": "b"}, {table.PYTHON: "b", table.VENV: None}),
        ({"slurm": True}, {"no_slurm": True}, {SLURM: False, NO_SLURM: True}),
        ({"mounts": ("a",)}, {"mounts": ("b",)}, {MOUNTS: ("a", "b")}),
        ({"sync": ("a",)}, {"sync": ("b",)}, {table.SYNC: ("b",)}),
        ({"docker": "a"}, {"docker": ""}, {DOCKER: "a"}),
        ({"docker": "a"}, {"docker": "b"}, {DOCKER: "b"}),
        ({"memory": (("a", 1),)}, {"memory": (("b", 2),)}, {MEMORY: (("a", 1), ("b", 2))}),
        ({"memory": (("a", 1),)}, {"memory": (("", 2),)}, {MEMORY: (("", 2),)}),
        ({"slurm_options": "-a"}, {"slurm_options": "-b"}, {SLURM_OPTIONS: "-a -b"}),
    ],
)
def test_two_levels(
    file: Mapping[str, Any], line: Mapping[str, Any], found: Mapping[Setting[object], object]
):
    settings, faults = merge([at(FILE, **file), at(LINE, **line)], ROWS)
    assert not faults
    assert {row: settings[row] for row in found} == found


@pytest.mark.parametrize("names", [("python", "venv"), ("slurm", "no_slurm")])
def test_one_level_gives_only_one_of_two_that_exclude_each_other(names: Sequence[str]):
    _, faults = merge([at(LINE, **dict.fromkeys(names, True))], ROWS)
    assert [fault.where for fault in faults] == [f"COMMAND_LINE:{names[1]}"]


#: Rows of a table of every kind.
A = Setting("a", whole(0, 9), default=0, given_in=EVERYWHERE)
B = Setting("b", whole(0, 9), default=0, given_in=EVERYWHERE, excludes=("a",))
SUM: Setting[tuple[int, ...]] = Setting(
    "sum", whole(0, 9), default=(), repeatable=True, join=lambda weaker, stronger: weaker + stronger
)
ON = Setting("on", switch, default=False)
SMALL = (A, B, SUM, ON)
NUMBERS = st.integers(0, 9)
LEVELS = st.fixed_dictionaries(
    {}, optional={"a": NUMBERS, "b": NUMBERS, "sum": st.lists(NUMBERS).map(tuple), "on": st.booleans()}
)


def numbered(values: Sequence[Mapping[str, Any]]) -> list[Level]:
    """Return levels whose sources are their numbers."""
    return [
        {name: Given(value, f"{number}", LINE) for name, value in level.items()}
        for number, level in enumerate(values)
    ]


@given(st.lists(LEVELS, max_size=4))
def test_laws_of_merge(values: Sequence[Mapping[str, Any]]):
    found = numbered(values)
    settings, faults = merge(found, SMALL)
    for row in (A, B, ON):
        giving = [level for level in found if row.name in level]
        rival = {A: B, B: A}.get(row)
        later = found[found.index(giving[-1]) + 1 :] if giving else []
        dropped = rival is not None and any(rival.name in level for level in later)
        if dropped or not giving:
            assert not settings.is_given(row)
        else:
            last = giving[-1][row.name]
            assert (settings[row], settings.source(row)) == (last.value, last.source)
    assert settings[SUM] == tuple(number for level in values for number in level.get("sum", ()))
    assert [part.source for part in settings.parts(SUM)] == [
        str(number) for number, level in enumerate(values) if "sum" in level
    ]
    both = settings.is_given(A) and settings.is_given(B)
    assert [fault.where for fault in faults] == ([settings.source(B)] if both else [])


@given(st.lists(LEVELS, max_size=3), st.integers(0, 3))
def test_a_level_that_gives_nothing_changes_nothing(values: Sequence[Mapping[str, Any]], index: int):
    found = numbered(values)
    with_empty: list[Level] = [*found[:index], {}, *found[index:]]
    assert vars(merge(found, SMALL)[0]) == vars(merge(with_empty, SMALL)[0])


@given(st.lists(LEVELS, max_size=3))
def test_settings_travel(values: Sequence[Mapping[str, Any]]):
    settings = merge(numbered(values), SMALL)[0]
    copy = pickle.loads(pickle.dumps(settings))
    assert {row: (copy[row], copy.source(row)) for row in SMALL} == {
        row: (settings[row], settings.source(row)) for row in SMALL
    }
    moved = copy.with_values({A: 7, SUM: (7,)})
    assert (moved[A], moved[SUM], moved[B]) == (7, (7,), settings[B])
    assert moved.source(A) == settings.source(A)
