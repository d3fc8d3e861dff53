"""Reports beside those of the supervisor, which the session writes.

They are the file of ``--report``, the report of a launch that an error or a signal ends, and what the report
of an earlier launcher of the run says. A report that cannot be written never changes how a launch ends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from launcher.common import events
from launcher.common.errors import HostsError, LaunchError, ProtocolError
from launcher.common.record import replace
from launcher.common.report import (
    ExitStatus,
    Failure,
    ProgressPoint,
    Reason,
    Report,
    TaskReport,
    TaskState,
    report_from_json,
)
from launcher.common.trusted_io import open_regular
from launcher.config.table import JSON, REPORT
from launcher.event_loop import EventLoop
from launcher.job import JobSpec, Placement, RunPaths
from launcher.launch.options import LaunchOptions
from launcher.messages import say
from launcher.output.renderers import record_as_dict
from launcher.output.run_files import json_text, write_for_user, write_json
from launcher.runs.run import Run, json_of
from launcher.runs.samples import Sample, SampleReader, max_bytes_of
from launcher.stop_requests import TIMED_OUT_EXIT_CODE

_INTERRUPTED_EXIT_CODE = 130
#: The largest number of steps of one task, and of all tasks, in a report: together at most about 400 kB.
_MAX_POINTS_OF_TASK = 200
_MAX_POINTS = 4000
#: How long a report may take to be copied to a URL.
_COPY_SECONDS = 120.0
#: `launcher.common.report.report_from_json` accepts numbers below it.
_MAX_NUMBER = 1e18


def write_run_report(report: Report, paths: RunPaths) -> None:
    """Write ``report.json`` of a run. If the disk is full, there is none."""
    with suppress(OSError):
        write_json(paths.report, record_as_dict(report))


def write_report_for_user(
    report: Report, path: str, loop: EventLoop | None = None, *, quiet: bool = True
) -> bool:
    """Write the file of ``--report``.

    Args:
        report: The report of the job.
        path: The path of the file, or its URL.
        quiet: Whether the user is not told how a copy to a URL goes.
        loop: The event loop, which runs while a file is copied to a URL. None if there is none.

    Returns:
        Whether it was written. If not, the user was told why.
    """
    try:
        if "://" in path:
            return _write_to_url(report, path, loop, quiet=quiet)
        write_for_user(path, json_text(record_as_dict(report)))
    except OSError as error:
        say(f"cannot write the report to {path!r}: {error.strerror}")
        return False
    return True


def _write_to_url(report: Report, url: str, loop: EventLoop | None, *, quiet: bool) -> bool:
    """Write the file of ``--report`` at a URL, as `write_report_for_user` does."""
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - few launches have a URL

    from launcher.files.targets import FileTarget, copy_out  # noqa: PLC0415 - few launches have a URL
    from launcher.files.transfer import FileTransfer  # noqa: PLC0415 - few launches have a URL

    with TemporaryDirectory(prefix="tf-launcher-") as folder:
        write_for_user(f"{folder}/report.json", json_text(record_as_dict(report)))
        transfer = FileTransfer(None, 1, _COPY_SECONDS, loop, quiet=quiet)
        failures = copy_out(transfer, [FileTarget(f"{folder}/report.json", url, named=url)])
    for _, why in failures:
        say(f"cannot write the report: {why}")
    return not failures


def publish_report(report: Report, options: LaunchOptions, paths: RunPaths | None) -> None:
    """Write a report to all places where someone may look for it, for a launch without a display.

    Args:
        report: The report of the launch.
        options: The options of the launch.
        paths: The files of the run. None if it has no folder.
    """
    if options.settings[JSON]:
        with suppress(OSError):  # The reader may have exited.
            print(json.dumps({"event": "Report", **record_as_dict(report)}), flush=True)
    if paths is not None:
        write_run_report(report, paths)
    if (file := options.settings[REPORT]) is not None:
        write_report_for_user(report, file)


def with_progress(report: Report, paths: RunPaths) -> Report:
    """Return a report with a selection of the steps and metrics that the samples of its tasks contain."""
    samples = SampleReader(paths)
    # Without any step, reading the samples of thousands of tasks would be in vain.
    if not _contains(paths.samples, b'"step":', max_bytes_of(len(report.tasks))) or not samples.read():
        return report
    count = max(1, min(_MAX_POINTS_OF_TASK, _MAX_POINTS // len(report.tasks)))
    tasks = [
        replace(task, progress=tuple(_points(samples.series.get(task.task, ()), count)))
        for task in report.tasks
    ]
    return replace(report, tasks=tuple(tasks))


def _contains(path: str, word: bytes, size: int) -> bool:
    """Return whether the first bytes of a file, `size` at most, contain a word."""
    try:
        with open_regular(path, links=False) as file:
            return word in file.read(size)
    except OSError:
        return False


def _points(samples: Sequence[Sample], count: int) -> Iterator[ProgressPoint]:
    """Yield the steps that samples contain, `count` of them at most, evenly spread, with the last one."""
    firsts: dict[tuple[int, float], Sample] = {}
    for sample in samples:
        if sample.step is not None and abs(sample.step) < _MAX_NUMBER:
            firsts.setdefault((sample.attempt, sample.step), sample)
    every = max(1, math.ceil(len(firsts) / count))
    # They are selected from the end, so that the last one is among them.
    for (attempt, step), sample in [*firsts.items()][::-every][::-1]:
        metrics = {name: value for name, value in sample.metrics.items() if abs(value) < _MAX_NUMBER}
        yield ProgressPoint(sample.at, attempt, step, metrics)


def unstarted_report(run_name: str, placement: Placement, started_at: float, error: BaseException) -> Report:
    """Return the report of a launch that has ended before its tasks were started.

    Args:
        run_name: The name of the run.
        placement: The tasks, as far as they are known.
        started_at: When the launch began, in seconds since the epoch.
        error: What has ended the launch: a fault, or a signal as `Interrupts` raises it.
    """
    address, port, never = "", None, Reason.NEVER_STARTED
    tasks = tuple(
        TaskReport(each.task, each.host.name, address, port, TaskState.CANCELLED, never, ExitStatus())
        for each in placement.tasks
    )
    # The error decides about the exit code, the time of the end, and the failure.
    report = Report(run_name, exit_code=0, started_at=started_at, ended_at=0.0, tasks=tasks, failure=None)
    return report_with_error(report, error)


def report_with_error(report: Report, error: BaseException) -> Report:
    """Return a report of a launch that an error or a signal ends now.

    Args:
        report: The report without the error.
        error: The fault, or the signal as `Interrupts` raises it.
    """
    now = events.now()
    if isinstance(error, LaunchError):
        faults = error.faults if isinstance(error, HostsError) else (str(error),)
        # A fault of a host starts with the name of the host.
        first_word = faults[0].partition(": ")[0]
        host = first_word if first_word in {task.host for task in report.tasks} else None
        code = error.exit_code
        failure = Failure(Reason.LAUNCHER, task=None, host=host, at=now, text="; ".join(faults))
    else:
        code = _INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else _exit_code(error)
        reason = Reason.TIMEOUT if code == TIMED_OUT_EXIT_CODE else Reason.INTERRUPTED
        failure = Failure(reason, task=None, host=None, at=now, text="stopped before its tasks were started")
    return replace(report, exit_code=code, ended_at=now, failure=failure)


def _exit_code(error: BaseException) -> int:
    """Return the exit code with which a signal ends the launch, or 125 for any other exception."""
    code = error.code if isinstance(error, SystemExit) else None
    return code if isinstance(code, int) else LaunchError.exit_code


def with_earlier_attempts(spec: JobSpec, run: Run | None, requeued: int) -> JobSpec:
    """Return a job that continues to count the attempts and restarts of the launchers before this one.

    Args:
        spec: The job that continues.
        run: Its run. None if nothing is known of the launchers before this one.
        requeued: How often a queue has started it again.
    """
    # The report of the last launcher counts the attempts and restarts of all launchers up to it. A launcher
    # that was killed has written none. Then it counts as one attempt of each task.
    attempts, restarts = requeued, requeued
    fields = None if run is None else json_of(run.paths.report) or json_of(run.paths.earlier)
    if fields is not None:
        with suppress(ValueError, ProtocolError):  # It is damaged, or of another version of launch.
            report = report_from_json(fields)
            attempts = max(attempts, *(task.attempt for task in report.tasks))
            restarts = max(restarts, report.restarts + 1)  # This launcher starts all tasks again.
    policy = replace(spec.policy, attempts_before=attempts, restarts_before=restarts)
    return replace(spec, policy=policy)
