"""``--detach``: the launcher goes on without a terminal; the command returns when all tasks run.

The command forks before anything is started: the child is the launcher, in a session of its own. It prints on
the command's streams until the run has a folder, then into the file `RunPaths.messages`; the command shows
what comes there. A pipe from the launcher carries that folder and the run's name, each with a zero byte, and
one more zero byte when all tasks run. The end of the pipe means that the launcher has ended.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

from launcher.agent.processes import nothing_on
from launcher.backends.batch_queue import BatchQueue, Parcel
from launcher.common.errors import InputError, LaunchError
from launcher.common.events import TaskMoved
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.common.text import escape_controls, signal_name, why_not_started
from launcher.config.table import COLLECT, REPORT, RUN_DIR, SYNC
from launcher.files.requests import parse_collects, parse_syncs
from launcher.job import RUN_FOLDER_VARIABLE, Placement, RunPaths
from launcher.launch.interrupts import STOP_SIGNALS, Interrupts
from launcher.launch.options import LaunchOptions
from launcher.launch.programs import check_programs_here
from launcher.launch.reports import publish_report, unstarted_report
from launcher.launch.session import Session, launch_request
from launcher.messages import say
from launcher.output.logs import GrowingLog
from launcher.output.renderers import DisplayEvent, RunInfo
from launcher.runs.folder import create, discard, with_batch_job
from launcher.runs.run import BatchJob, Run, load, new_run_name

#: Seconds between two looks at the launcher's messages.
_POLL_SECONDS = 0.05


class Detached:
    """A renderer in the launcher: tells the command when all tasks run.

    Args:
        pipe: to the command.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def use_folder(self, paths: RunPaths, run_name: str) -> None:
        """See `launcher.output.renderers.Background.use_folder`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        try:
            fd = os.open(paths.messages, flags, 0o600)
        except OSError as error:
            raise LaunchError(f"can't write {paths.messages!r}: {error.strerror}") from error
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        self._tell(f"{paths.root}\0{run_name}\0")

    def begin(self, run_info: RunInfo) -> None:
        """See `Renderer.begin`."""
        self._not_started = {placed.task for placed in run_info.placement.tasks}

    def on(self, event: DisplayEvent) -> None:
        """Tell the command when the last task has started for the first time."""
        if isinstance(event, TaskMoved) and event.pid is not None and self._not_started:
            self._not_started.discard(event.task)
            if not self._not_started:
                self._tell("\0")

    def tick(self, now: float) -> float | None:
        """See `Renderer.tick`."""
        return None

    def close(self, report: Report) -> None:
        """See `Renderer.close`."""

    def _tell(self, text: str) -> None:
        with suppress(BrokenPipeError):  # the command was killed
            os.write(self._pipe, os.fsencode(text))


class _PassOn:
    """A handler of signals that passes them on to the launcher, which ignores SIGHUP and gets SIGTERM for it.

    Args:
        launcher: Its pid.
    """

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        #: SIGHUP or SIGTERM, whichever came first. They are different requests (`launcher.stop_requests`),
        #: but the launcher gets SIGTERM for both. So only this one is passed on.
        self._sigterm_is_for: int | None = None

    def __call__(self, number: int, _: object) -> None:
        if number in (signal.SIGHUP, signal.SIGTERM):
            self._sigterm_is_for = self._sigterm_is_for or number
            if self._sigterm_is_for != number:
                return
        os.kill(self._launcher, signal.SIGTERM if number == signal.SIGHUP else number)


def run_detached(options: LaunchOptions) -> int:
    """Run a job in a child process that goes on; return when all tasks run.

    Signals that end a launch are passed on to the child until then.

    If the backend has a queue that starts launchers, submit this one there, and return.

    Returns:
        In this process 0, or the exit code of a job that has ended before; in the child that of the job.

    Raises:
        LaunchError: the launcher was killed; or as `Session.run`, in the child.
    """
    queue = options.backend.batch_queue()
    folder = os.environ.pop(RUN_FOLDER_VARIABLE, "")
    if queue is not None and folder and (submitted := load(folder)):
        return Session(replace(options, submitted=submitted)).run()
    if queue is not None and queue.can_submit():
        return _submit(options, queue)
    reading, writing = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError(f"the job can't be started: {why_not_started(error)}") from error
    if pid == 0:
        os.close(reading)
        os.setsid()
        nothing_on(0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return Session(options, detached=Detached(writing)).run()
    os.close(writing)
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _PassOn(pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    run_name, runs = _wait(reading)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # too late to pass them on
    code = 0 if runs else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        raise LaunchError(f"the launcher was killed by {signal_name(-code)} before all tasks ran")
    if code == 0:
        print(run_name)
    return code


def _submit(options: LaunchOptions, queue: BatchQueue) -> int:
    """Let the queue of a cluster start the launcher, and print the name of the run.

    Returns:
        0, or the exit code of a job that has ended before all of its tasks started.

    Raises:
        InputError: the options are wrong.
        LaunchError: the queue does not take it; its folder can't be made.
    """
    if options.backend.shares_files:
        check_programs_here(options)
    parcel = _parcel(options)
    paths = create(options.settings[RUN_DIR], new_run_name(), (), BatchJob(options.backend.name))
    run = load(paths.root)
    assert run is not None
    try:
        os.close(os.open(paths.messages, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        interrupts = Interrupts()
        with nullcontext() if queue.shares_files else interrupts:  # else Ctrl-C exits at once
            request = launch_request(options, run.name, interrupts.ignore)
            submitted = queue.submit(options.backend_options, request, run, sys.argv[1:], parcel)
    except InputError:  # nothing was begun
        discard(run)
        raise
    except BaseException as error:
        _leave(run, options, error)
        raise
    if submitted.code is not None and not run.report():
        ended = LaunchError("its launcher has ended before the tasks started")
        ended.exit_code = submitted.code
        _leave(run, options, ended)
        return submitted.code
    if submitted.code is None:
        say(f"{submitted.text}; launch attach {run.name} shows it")
    if not submitted.code:
        print(run.name)
    return submitted.code or 0


def _leave(run: Run, options: LaunchOptions, error: BaseException) -> None:
    """Leave a run whose launcher was not started, or has ended at once: it is the newest run, and has failed.

    Otherwise `launch attach` would show the run before it, which may have succeeded.
    """
    with suppress(OSError, LaunchError):  # a full disk
        with open(run.paths.messages, "a", encoding="utf-8") as messages:
            messages.writelines(f"launch: {escape_controls(line)}\n" for line in str(error).splitlines())
        with_batch_job(run, None)  # so that no queue is asked about it
    publish_report(unstarted_report(run.name, Placement(()), run.started_at, error), options, run.paths)


def _parcel(options: LaunchOptions) -> Parcel:
    """What a launcher of these options needs on a machine that does not see the files of this one.

    Raises:
        JobError: ``--sync`` or ``--collect`` are wrong.
    """
    settings = options.settings
    syncs = parse_syncs(settings[SYNC], settings.source(SYNC))
    counts = {role.name: role.count for role in options.spec.roles}
    collects = parse_collects(settings[COLLECT], counts, settings.source(COLLECT))
    report = os.path.abspath(settings[REPORT] or "") if settings[REPORT] else None
    results = {os.path.abspath(request.into) for request in collects if request.into is not None}
    results |= {os.path.dirname(report)} if report else set()

    def pack(places: Mapping[str, str], backend_options: Any) -> bytes:
        def moved(path: str) -> str:
            for sync in syncs if os.path.isabs(path) else ():
                inside = sync.inside(path)
                if inside is not None:
                    return f"{places[sync.text]}/{inside}".rstrip("/")
            return path

        roles = (
            replace(
                role,
                workdir=role.workdir and moved(role.workdir),
                program=replace(role.program, name=moved(role.program.name)),
            )
            for role in options.spec.roles
        )
        collected = (
            text if request.into is None
            else text.removesuffix(request.into) + places[os.path.abspath(request.into)]
            for text, request in zip(settings[COLLECT], collects, strict=True)
        )  # fmt: skip
        spec = replace(
            options.spec, roles=tuple(roles), workdir=options.spec.workdir and moved(options.spec.workdir)
        )
        there = replace(
            options,
            settings=settings.with_values(
                {
                    SYNC: tuple(
                        places[sync.text] + (f":{sync.remote}" if sync.remote is not None else "")
                        for sync in syncs
                    ),
                    COLLECT: tuple(collected),
                    REPORT: report and f"{places[os.path.dirname(report)]}/{os.path.basename(report)}",
                    RUN_DIR: None,
                }
            ),
            spec=spec,
            backend_options=backend_options,
        )
        return pickle.dumps((there, moved(os.getcwd()), sys.argv[1:]))

    return Parcel(tuple(sync.text for sync in syncs), tuple(sorted(results)), pack)


def run_submitted(path: str) -> int:
    """Run a job whose options a launch on another machine has read.

    Args:
        path: of the file that a `Parcel` has made.

    Returns:
        The exit code of the job.

    Raises:
        LaunchError: as `Session.run`.
    """
    with open(path, "rb") as file:
        name, packed = pickle.load(file)
    options, folder, sys.argv[1:] = pickle.loads(packed)
    with suppress(FileNotFoundError):
        os.chdir(folder)
    run = Run(name, paths=RunPaths(os.environ.pop(RUN_FOLDER_VARIABLE)), owner=None, started_at=0.0)
    return Session(replace(options, submitted=run)).run()


def _wait(pipe: int) -> tuple[str, bool]:
    """Show the messages of the launcher until all tasks run, or it has ended.

    Returns:
        The name of the run, and whether all tasks run.
    """
    received, log, ended = b"", None, False
    while received.count(b"\0") < 3 and not ended:
        if select.select([pipe], [], [], _POLL_SECONDS)[0]:
            data = os.read(pipe, 65536)
            received, ended = received + data, not data
        if log is None and received:
            log = GrowingLog(RunPaths(os.fsdecode(received.partition(b"\0")[0])).messages)
        while log is not None and log.write(sys.stderr.buffer):
            sys.stderr.buffer.flush()
    return os.fsdecode(received.split(b"\0")[1] if received else b""), not ended
