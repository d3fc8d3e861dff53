"""Command lines of ``launch``, and job files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.api.wanted import Place, command_line, goes_on
from launcher.errors import JobError
from launcher.feed.remote.arrival import KNOCK

_HERE = Place()


def words(roles: dict[str, Any], place: Place = _HERE, folder: str = "/no/such") -> list[str]:
    return command_line(roles, place, ["SECRET"], folder)


def test_what_options_can_say_needs_no_file():
    roles = {"ps": {"count": 1}, "chief": {"count": 1}, "worker": {"count": 2}}
    counts = ["--ps", "1", "--chief", "--workers", "2"]
    assert words(roles) == ["--output-dirs", "--no-last-lines", "-x", "SECRET", *counts, "-c", KNOCK]


def test_no_value_of_the_environment_is_among_them():
    said = words({"worker": {"count": 1}}, Place(env={"TOKEN": "s3cret"}, hosts="a,b", grace=2.5, quiet=True))
    assert "TOKEN" in said and not any("s3cret" in word for word in said)
    assert said[: said.index("-x")] == [
        "--output-dirs",
        "--no-last-lines",
        "-q",
        "--hosts",
        "a,b",
        "--grace",
        "2.5",
    ]


def test_other_roles_need_a_file(tmp_path: Path):
    roles = {"worker": {"count": 1}, "board": {"count": 1, "sidecar": True, "command": ["-m", "board"]}}
    job = json.loads(Path(words(roles, folder=str(tmp_path))[-1]).read_text())
    assert job["roles"]["worker"] == {"count": 1, "command": ["-c", KNOCK]}
    assert job["roles"]["board"]["command"] == ["-m", "board"]


def test_a_job_file_of_the_program(tmp_path: Path):
    theirs = tmp_path / "theirs" / "job.yaml"
    theirs.parent.mkdir()
    (theirs.parent / "lab.txt").write_text("node1\n")
    theirs.write_text(
        "command: [train.py]\nhosts: lab.txt\nworkdir: there\nsync: .\non_failure: continue\n"
        "roles:\n  worker: {count: 9, gpus: 1, command: [other.py]}\n"
        "  data: {count: 1, command: [serve.py]}\n  ps: 3\n"
    )
    place = Place(job=theirs)
    job = json.loads(Path(words({"worker": {"count": 2}}, place, str(tmp_path))[-1]).read_text())
    assert job["roles"] == {
        "worker": {"count": 2, "gpus": 1, "command": ["-c", KNOCK]},
        "data": {"count": 1, "command": ["serve.py"]},
    }
    folder = theirs.parent
    assert (job["hosts"], job["workdir"], job["sync"]) == (
        f"{folder}/lab.txt",
        f"{folder}/there",
        [f"{folder}/."],
    )
    assert "command" not in job
    assert goes_on(place) and not goes_on(place._replace(on_failure="stop"))


@pytest.mark.parametrize("text", ["- a list", "{", "\xff\xfe"])
def test_a_job_file_that_is_none(tmp_path: Path, text: str):
    path = tmp_path / "job.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(JobError, match=r"job\.yaml"):
        words({"worker": {"count": 1}}, Place(job=path), str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("workdir", "~/project", "~/project"),
        ("python", "~/venv/bin/python", "~/venv/bin/python"),
        ("python", "venv/bin/python", "{}/venv/bin/python"),
        ("python", "python3.11", "python3.11"),
        ("run_dir", "runs/one", "{}/runs/one"),
    ],
)
def test_paths_of_a_job_file_are_relative_to_it(tmp_path: Path, setting: str, value: str, expected: str):
    theirs = tmp_path / "theirs" / "job.yaml"
    theirs.parent.mkdir()
    theirs.write_text(f"{setting}: {value}\nroles: {{worker: 1}}\n")
    job = json.loads(Path(words({"worker": {"count": 2}}, Place(job=theirs), str(tmp_path))[-1]).read_text())
    assert job[setting] == expected.format(theirs.parent)
