"""Writes the file of ``--report``, and the report of a launch that ends before its job runs.

From the moment a run has a folder, every end of a launch leaves a report there: otherwise the run would look
as if its launcher had been killed. Without a folder there is a report only for those who asked for one.
"""

from __future__ import annotations

import json
from contextlib import suppress

from launcher.common import events
from launcher.common.errors import HostsError, LaunchError, TransportError
from launcher.common.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState
from launcher.config.table import DRY_RUN, JSON, REPORT
from launcher.job import Placement, RunPaths
from launcher.launch.options import LaunchOptions
from launcher.messages import say

_INTERRUPTED_EXIT_CODE = 130
_TIMED_OUT_EXIT_CODE = 124


def write_report(report: Report, path: str) -> bool:
    """Write the file of ``--report``.

    Args:
        report: The report of the job.
        path: The path of the file.

    Returns:
        Whether it was written. If not, the user was told why.
    """
    from launcher.output.renderers import record_as_dict
    from launcher.output.run_files import write_json_for_user

    try:
        write_json_for_user(path, record_as_dict(report))
    except OSError as error:
        say(f"can't write the report to {path!r}: {error.strerror}")
        return False
    return True


class Unstarted:
    """What is known of a launch until its job runs.

    The steps of the launch fill in the attributes as they learn them.

    Args:
        options: The options of the launch.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._began = events.now()
        self.run_name = ""
        #: None until the hosts are known.
        self.placement: Placement | None = None
        #: None until the run has a folder.
        self.paths: RunPaths | None = None
        #: Whether the supervisor has begun: it makes the report from then on.
        self.job_runs = False

    def write_report(self, error: BaseException) -> None:
        """Write the report if the job has not run, and someone may look for it.

        Args:
            error: What ended the launch: a fault, or a signal as `Interrupts` raises it.
        """
        if self.job_runs or self._options.settings[DRY_RUN] or not self.run_name:
            return
        if self.paths is None and isinstance(error, LaunchError) and not isinstance(error, TransportError):
            return  # the input is wrong: nothing was begun
        as_json, path = self._options.settings[JSON], self._options.settings[REPORT]
        if self.paths is None and path is None and not as_json:
            return
        from launcher.output.renderers import record_as_dict
        from launcher.output.run_files import write_json

        report = self._report(error)
        if as_json:
            with suppress(OSError):  # the reader has gone
                print(json.dumps({"event": "Report", **record_as_dict(report)}), flush=True)
        if self.paths is not None:
            with suppress(OSError):  # a full disk
                write_json(self.paths.report, record_as_dict(report))
        if path is not None:
            write_report(report, path)

    def _report(self, error: BaseException) -> Report:
        placed_tasks = () if self.placement is None else self.placement.tasks
        hosts = {placed.host.name for placed in placed_tasks}
        now = events.now()
        if isinstance(error, LaunchError):
            faults = error.faults if isinstance(error, HostsError) else (str(error),)
            first_word = faults[0].partition(": ")[0]
            host = first_word if first_word in hosts else None
            code = error.exit_code
            failure = Failure(Reason.LAUNCHER, None, host, now, "; ".join(faults))
        else:
            code = _INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else _exit_code(error)
            reason = Reason.TIMEOUT if code == _TIMED_OUT_EXIT_CODE else Reason.INTERRUPTED
            failure = Failure(reason, None, None, now, "stopped before its tasks were started")
        never, unknown = Reason.NEVER_STARTED, ExitStatus(None, None)
        tasks = tuple(
            TaskReport(placed.task, placed.host.name, "", None, TaskState.CANCELLED, never, unknown)
            for placed in placed_tasks
        )
        return Report(self.run_name, code, self._began, now, tasks, failure)


def _exit_code(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else None
    return code if isinstance(code, int) else LaunchError.exit_code
