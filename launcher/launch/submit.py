"""``--detach`` on a cluster: the cluster's queue starts the launcher.

`submit` runs on the machine of the user, and `run_submitted` is what the queue starts. A launcher on a
machine that does not see the files of this one gets them with its options.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

from launcher.backends.batch_queue import BatchQueue, Parcel
from launcher.common.errors import InputError, LaunchError
from launcher.common.record import replace
from launcher.common.text import escape_controls
from launcher.config.table import COLLECT, REPORT, RUN_DIR, SYNC
from launcher.files.requests import parse_collects, parse_syncs
from launcher.job import RUN_FOLDER_VARIABLE, JobSpec, Placement, RunPaths
from launcher.launch.interrupts import Interrupts
from launcher.launch.options import LaunchOptions
from launcher.launch.programs import check_all_programs_here
from launcher.launch.reports import publish_report, unstarted_report
from launcher.launch.session import Session, launch_request
from launcher.messages import say
from launcher.runs.folder import create, discard, with_batch_job
from launcher.runs.run import BatchJob, Run, load, new_run_name


def submit(options: LaunchOptions, queue: BatchQueue) -> int:
    """Ask the queue of a cluster to start the launcher, and print the name of the run.

    Args:
        options: The options of the launch.
        queue: The queue.

    Returns:
        0, or the exit code of a job that has ended before all of its tasks started.

    Raises:
        InputError: The options are wrong. No run exists.
        LaunchError: The queue refuses the launcher, or the folder of the run cannot be made.
    """
    if options.backend.shares_files:
        check_all_programs_here(options)
    parcel = _Packer(options).parcel()
    paths = create(options.settings[RUN_DIR], new_run_name(), (), BatchJob(options.backend.name))
    run = load(paths.root)
    assert run is not None
    try:
        os.close(os.open(paths.messages, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        interrupts = Interrupts()
        # A queue that shares the files needs no cleaning up, so that Ctrl-C may exit at once.
        with nullcontext() if queue.shares_files else interrupts:
            request = launch_request(options, run.name, interrupts.ignore)
            submitted = queue.submit(options.backend_options, request, run, sys.argv[1:], parcel)
    except InputError:  # Nothing was started.
        discard(run)
        raise
    except BaseException as error:
        _record_failed_start(run, options, error)
        raise
    if submitted.code is not None and not run.report():
        ended = LaunchError("its launcher has ended before the tasks started")
        ended.exit_code = submitted.code
        _record_failed_start(run, options, ended)
        return submitted.code
    if submitted.code is None:
        say(f"{submitted.text}; launch attach {run.name} shows it")
    if not submitted.code:
        print(run.name)
    return submitted.code or 0


def _record_failed_start(run: Run, options: LaunchOptions, error: BaseException) -> None:
    """Let a run whose launcher was not started, or has exited at once, be the newest run, which has failed.

    Otherwise `launch attach` would show the run before it, which may have succeeded.

    Args:
        run: The run.
        options: The options of the launch.
        error: Why the launcher does not run.
    """
    with suppress(OSError, LaunchError):  # The disk may be full.
        with open(run.paths.messages, "a", encoding="utf-8") as messages:
            messages.writelines(f"launch: {escape_controls(line)}\n" for line in str(error).splitlines())
        with_batch_job(run, None)  # No queue is asked about the run from now on.
    publish_report(unstarted_report(run.name, Placement(()), run.started_at, error), options, run.paths)


class _Packer:
    """The packer of options for a launcher on a machine that does not see the files of this one.

    Args:
        options: The options of the launch.

    Raises:
        JobError: The value of ``--sync`` or ``--collect`` is wrong.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self._options, settings = options, options.settings
        self._syncs = parse_syncs(settings[SYNC], settings.source(SYNC))
        counts = {role.name: role.count for role in options.spec.roles}
        self._collects = parse_collects(settings[COLLECT], counts, settings.source(COLLECT))
        report = settings[REPORT]
        self._report = os.path.abspath(report) if report else None

    def parcel(self) -> Parcel:
        """Return what the launcher needs on its machine, and which folders on this machine get results."""
        results = {os.path.abspath(request.into) for request in self._collects if request.into is not None}
        if self._report:
            results.add(os.path.dirname(self._report))
        return Parcel(tuple(sync.text for sync in self._syncs), tuple(sorted(results)), self._pack)

    def _pack(self, places: Mapping[str, str], backend_options: Any) -> bytes:
        """Return what `run_submitted` reads: the options, the working directory and the command line.

        Args:
            places: The path on the launcher's machine of each synced folder and of each folder for results.
            backend_options: The options of the backend on that machine.
        """
        settings = self._options.settings.with_values(
            {
                SYNC: tuple(
                    places[sync.text] + (f":{sync.remote}" if sync.remote is not None else "")
                    for sync in self._syncs
                ),
                COLLECT: tuple(self._collected(places)),
                REPORT: self._report
                and f"{places[os.path.dirname(self._report)]}/{os.path.basename(self._report)}",
                RUN_DIR: None,
            }
        )
        options = replace(
            self._options, settings=settings, spec=self._spec(places), backend_options=backend_options
        )
        return pickle.dumps((options, self._moved(os.getcwd(), places), sys.argv[1:]))

    def _collected(self, places: Mapping[str, str]) -> Iterable[str]:
        for text, request in zip(self._options.settings[COLLECT], self._collects, strict=True):
            if request.into is None:
                yield text
            else:
                yield text.removesuffix(request.into) + places[os.path.abspath(request.into)]

    def _spec(self, places: Mapping[str, str]) -> JobSpec:
        """Return the job with the paths of its programs and working directories on the launcher's machine.

        Args:
            places: The path on that machine of each synced folder.
        """
        spec = self._options.spec
        roles = tuple(
            replace(
                role,
                workdir=role.workdir and self._moved(role.workdir, places),
                program=replace(role.program, name=self._moved(role.program.name, places)),
            )
            for role in spec.roles
        )
        return replace(spec, roles=roles, workdir=spec.workdir and self._moved(spec.workdir, places))

    def _moved(self, path: str, places: Mapping[str, str]) -> str:
        """Return the path of a file on the launcher's machine.

        It is the same if no synced folder contains the file.

        Args:
            path: The path on this machine.
            places: The path on the launcher's machine of each synced folder.
        """
        for sync in self._syncs if os.path.isabs(path) else ():
            inside = sync.inside(path)
            if inside is not None:
                return f"{places[sync.text]}/{inside}".rstrip("/")
        return path


def run_submitted(path: str) -> int:
    """Run a job whose options were read by a launch on another machine.

    Args:
        path: The file that a `Parcel` has made.

    Returns:
        The exit code of the job.

    Raises:
        LaunchError: The job could not be started, as in `Session.run`.
    """
    with open(path, "rb") as file:
        name, packed = pickle.load(file)
    options, folder, sys.argv[1:] = pickle.loads(packed)
    with suppress(FileNotFoundError):
        os.chdir(folder)
    run = Run(name, paths=RunPaths(os.environ.pop(RUN_FOLDER_VARIABLE)), owner=None, started_at=0.0)
    return Session(replace(options, submitted=run)).run()
