"""What a notebook shows of a report: the page of ``launch report --html``, if the run has its folder."""

from __future__ import annotations

from launcher.common.errors import LaunchError
from launcher.common.report import Report


def page_of(report: Report) -> str:
    """Return the body of the page of a run as HTML, for a notebook.

    Returns:
        The HTML. Empty if the folder of the run is gone or belongs to a later run, or if the page cannot be
        made, as without jinja2. The notebook then shows the table of the report instead.
    """
    from launcher.runs.run import RunState, load  # noqa: PLC0415 - only notebooks need it, as the next
    from launcher.runs.view import view_from_files  # noqa: PLC0415

    run = load(report.run_dir) if report.run_dir else None
    if run is None or run.name != report.job:
        return ""
    try:
        from launcher.page.report import report_body  # noqa: PLC0415 - imports jinja2, which may be missing

        return report_body(view_from_files(run, report, RunState.ENDED))
    except (ImportError, LaunchError, OSError, ValueError, OverflowError):
        return ""
