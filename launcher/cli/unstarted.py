"""The report of a job of which nothing was started, because hosts can't be reached: for who asked for one."""

from __future__ import annotations

import argparse
import json
import os
import time

from launcher import runs
from launcher.cli.launching import write_report
from launcher.errors import HostsError, TransportError
from launcher.job import Placed, Placement
from launcher.output.jsonl import report_as_dict
from launcher.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState


def tell_programs(
    error: TransportError, placement: Placement, args: argparse.Namespace, began: float
) -> None:
    """Write what ``--report`` and ``--json`` promise; people are told elsewhere.

    Args:
        error: why nothing was started.
        placement: who would have run where.
        args: the options.
        began: when, seconds since the epoch.
    """
    if args.report is None and not args.json:
        return
    report = _report(error, placement, began)
    if args.json:
        line = json.dumps({"event": "Report", **report_as_dict(report)})
        try:
            os.write(1, f"{line}\n".encode())
        except OSError:  # nobody reads it
            pass
    if args.report is not None:
        write_report(report, args.report)


def _report(error: TransportError, placement: Placement, began: float) -> Report:
    faults = error.faults if isinstance(error, HostsError) else (str(error),)
    now = time.time()
    failure = Failure(Reason.LAUNCHER, None, _host_of(faults[0], placement), now, "; ".join(faults))
    tasks = tuple(_never_started(placed) for placed in placement.tasks)
    return Report(runs.new_job_id(), error.exit_code, began, now, tasks, failure)


def _host_of(fault: str, placement: Placement) -> str | None:
    """The host that a line begins with."""
    name = fault.partition(": ")[0]
    return name if name in {host.name for host in placement.hosts()} else None


def _never_started(placed: Placed) -> TaskReport:
    state, reason = TaskState.CANCELLED, Reason.NEVER_STARTED
    return TaskReport(placed.task, placed.host.name, "", None, state, reason, ExitStatus(None, None))
