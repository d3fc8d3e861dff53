"""The report of a run in the form of JUnit, which systems for continuous integration show: a case a task.

``launch report --junit`` writes it.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from xml.etree import ElementTree

from launcher.common.report import Report, TaskReport, TaskState
from launcher.output.logs import last_lines

#: How many last lines of a task that failed the file contains.
_MAX_LINES = 40
#: The element for a task that did not end well, by its state.
_ELEMENTS = {TaskState.FAILED: "failure", TaskState.LOST: "error", TaskState.CANCELLED: "skipped"}
#: The attributes of a suite that count cases, with the element that such a case has.
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}
#: Characters that XML does not allow, not even escaped.
_NOT_XML = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def junit_xml(report: Report) -> str:
    """Return the report of a run that has ended as a file of JUnit.

    Each task is a case, whose class is its role. One that failed has its last lines, which are read from its
    log. A failure that no case of a task contains, as that of a host or of the time limit, is a case of its
    own, ``job``.
    """
    suite = ElementTree.Element("testsuite", name=_xml_text(report.job))
    suite.extend([_task_case(task, report) for task in report.tasks])
    failure = report.failure
    if report.exit_code and (failure is None or failure.task is None or not suite.findall("testcase/*")):
        case = ElementTree.SubElement(suite, "testcase", classname="launch", name="job", time="0")
        text = f"exit code {report.exit_code}" if failure is None else failure.text
        kind = "launcher" if failure is None else failure.reason.value
        ElementTree.SubElement(case, "error", message=_xml_text(text), type=kind)
    suite.set("tests", str(len(suite)))
    for count, element in _COUNTED.items():
        suite.set(count, str(len(suite.findall(f"testcase/{element}"))))
    suite.set("time", f"{report.ended_at - report.started_at:.3f}")
    began = datetime.fromtimestamp(report.started_at, timezone.utc)
    suite.set("timestamp", f"{began:%Y-%m-%dT%H:%M:%S}")
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _task_case(task: TaskReport, report: Report) -> ElementTree.Element:
    """Return the case of a task in this report."""
    case = ElementTree.Element(
        "testcase", classname=task.task.role, name=str(task.task), time=f"{task.seconds or 0:.3f}"
    )
    element = _ELEMENTS.get(task.state)
    if element is not None and not task.sidecar:
        fault = ElementTree.SubElement(case, element, message=_xml_text(task.detail or task.state.value))
        if element != "skipped":
            fault.set("type", task.reason.value if task.reason else task.state.value)
            fault.text = _xml_text("\n".join(last_lines(report.run_dir, task.task, _MAX_LINES)))
    return case


def _xml_text(text: str) -> str:
    """Return a text with question marks in place of characters that XML does not allow."""
    return re.sub(_NOT_XML, "?", text)
