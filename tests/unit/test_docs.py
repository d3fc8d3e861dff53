"""The messages and variables that the documents name are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from launcher.common import events
from launcher.common.report import Attempt, Failure, Reason, Report, TaskReport, TaskState
from launcher.output.renderers import DisplayEvent

TOP = Path(__file__).resolve().parents[2]
#: Events that are not in ``events.jsonl``: output has its logs, the others are answers within the launcher.
NOT_WRITTEN = {
    "TaskOutput",
    "Measured",
    "OutputDelayed",
    "StepsRead",
    "TaskStarted",
    "TaskNotStarted",
    "TaskExited",
    "TaskGone",
}
SOURCES = sorted((TOP / "launcher").rglob("*.py"))


def page(name: str) -> str:
    return (TOP / "docs" / name).read_text()


def texts_of_the_code() -> Iterator[str]:
    """Every text in the sources; a line feed stands for each value in an f-string."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\n" for part in node.values]
                yield "".join(map(str, parts))


def test_the_messages_of_launch_in_troubleshooting_exist():
    cells = re.findall(r"^\| (`[^|]*) \|", page("troubleshooting.md"), re.M)
    parts = [part for cell in cells for span in re.findall("`(.*?)`", cell) for part in span.split("...")]
    fragments = {part.strip(" ;") for part in parts if re.search(r"[A-Za-z]{3}", part)}
    assert len(fragments) > 40
    texts = "\0".join(texts_of_the_code())
    assert not {fragment for fragment in fragments if fragment not in texts}


def test_all_variables_of_launch_are_in_the_page_about_the_environment():
    sources = "".join(path.read_text() for path in SOURCES)
    names = set(re.findall(r"\b(?:TF_LAUNCHER|LAUNCH)_[A-Z_]+\b", sources))
    assert names
    assert not {name for name in names if f"`{name}`" not in page("environment.md")}


def test_all_events_are_in_the_page_about_the_environment():
    text = page("environment.md").split("\n## events.jsonl\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|", text, re.M))
    assert set(rows) == {kind.__name__ for kind in get_args(DisplayEvent)} - NOT_WRITTEN
    for name, fields in rows.items():
        described = {*re.findall(r"`(\w+)`", fields), "host", "at", "task", "attempt"}
        assert set(getattr(events, name)._fields) <= described, name


def test_every_field_and_value_of_the_report_is_in_its_page():
    text = page("report.md")
    fields = {name for record in (Report, TaskReport, Failure, Attempt) for name in record._fields}
    ends = {state.value for state in list(TaskState)[5:]}
    words = fields | ends | {reason.value for reason in Reason}
    assert not {word for word in words if f"`{word}`" not in text}
