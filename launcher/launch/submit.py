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
from launcher.backends.queued_runs import create_named
from launcher.common.errors import InputError, LaunchError
from launcher.common.record import replace
from launcher.common.text import escape_controls
from launcher.config.table import COLLECT, ON_END, ON_EVENT, REPORT, RUN_DIR, SYNC
from launcher.files.requests import parse_collects, parse_syncs
from launcher.job import RUN_FOLDER_VARIABLE, JobSpec, Placement, RunPaths
from launcher.launch.interrupts import Interrupts
from launcher.launch.options import LaunchOptions
from launcher.launch.programs import check_all_programs_here, check_packages
from launcher.launch.reports import publish_report, unstarted_report
from launcher.launch.session import Session, launch_request
from launcher.messages import say
from launcher.runs.end_command import find_user_command, run_left_commands
from launcher.runs.folder import discard, record_batch_job
from launcher.runs.run import BatchJob, Run, new_run_name
from launcher.storage.urls import is_url


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
    if options.backend.shares_files:  # A misspelled program must not cost hours in a queue.
        check_all_programs_here(options)
    end_command = None
    if queue.shares_files:  # Otherwise the launcher, which sees other files, looks for the programs itself.
        check_packages(options.settings)
        end_command = find_user_command(options.settings, ON_END)
        find_user_command(options.settings, ON_EVENT)
    batch = BatchJob(options.backend.name)
    run = create_named(options.settings[RUN_DIR], new_run_name(), (), batch, options.origin)
    options = replace(options, origin=run.origin)  # The name may have got a number.
    try:
        parcel = _Packer(options).parcel()
        # The launcher writes its messages to this file, which only this user may read.
        os.close(os.open(run.paths.messages, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        if end_command is not None:
            end_command.store(run.paths)
        interrupts = Interrupts()
        # A queue that shares the files needs no cleaning up, so Ctrl-C may exit at once.
        with nullcontext() if queue.shares_files else interrupts:
            request = launch_request(options, run.name, interrupts.ignore)
            submitted = queue.submit(options.backend_options, request, run, sys.argv[1:], parcel)
    except InputError:  # Nothing was started, so the run need not be listed.
        discard(run)
        raise
    except BaseException as error:
        _record_failed_start(run, options, error)
        raise
    # The code is None while the launcher waits or runs. A launcher that started tasks has left a report.
    if submitted.code is not None and not run.report():
        ended = LaunchError("its launcher has ended before the tasks started")
        ended.exit_code = submitted.code
        _record_failed_start(run, options, ended)
        return submitted.code
    if submitted.code is None:
        say(f"{submitted.text}; launch attach {run.name} shows it")
    if not submitted.code:  # A script that reads stdout gets a name only of a run that has not failed.
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
        record_batch_job(run, batch=None)  # No queue is asked about the run from now on.
    publish_report(unstarted_report(run.name, Placement(tasks=()), run.started_at, error), options, run.paths)
    run_left_commands([run])  # No launcher will do it.


class _Packer:
    """The packer of options for a launcher on a machine that does not see the files of this one.

    Args:
        options: The options of the launch.

    Raises:
        JobError: The value of ``--sync`` or ``--collect`` is wrong.
    """

    def __init__(self, options: LaunchOptions) -> None:
        """Parse the options about files, so that a wrong one is found before anything is packed."""
        self._options, settings = options, options.settings
        #: The parsed values of ``--sync``.
        self._syncs = parse_syncs(settings[SYNC], settings.source(SYNC))
        counts = {role.name: role.count for role in options.spec.roles}
        #: The parsed values of ``--collect``.
        self._collects = parse_collects(settings[COLLECT], counts, settings.source(COLLECT))
        #: The file of ``--report`` on this machine. None without that option, or if its value is a URL, which
        #: is the same on the launcher's machine.
        report = settings[REPORT]
        self._report = os.path.abspath(report) if report and not is_url(report) else None

    def parcel(self) -> Parcel:
        """Return what the launcher needs on its machine, and which folders on this machine get results."""
        results = {os.path.abspath(request.into) for request in self._collects if request.into is not None}
        if self._report:
            results.add(os.path.dirname(self._report))
        return Parcel(tuple(sync.text for sync in self._syncs), tuple(sorted(results)), self._pack)

    def _pack(self, remote_paths: Mapping[str, str], backend_options: Any) -> bytes:
        """Return what `run_submitted` reads: the options, the working directory and the command line.

        Args:
            remote_paths: The path on the launcher's machine of each synced folder, and of each folder for
                results.
            backend_options: The options of the backend on that machine.
        """
        report = self._options.settings[REPORT]
        if self._report:  # The launcher writes it into a folder there, whose files come to this machine.
            folder, name = os.path.split(self._report)
            report = f"{remote_paths[folder]}/{name}"
        syncs, collects = tuple(self._sync_texts(remote_paths)), tuple(self._collect_texts(remote_paths))
        # The value of ``--run-dir`` is a path of this machine. The launcher learns its folder in another way.
        values = {SYNC: syncs, COLLECT: collects, REPORT: report, RUN_DIR: None}
        settings = self._options.settings.with_values(values)
        spec = self._remote_spec(remote_paths)
        options = replace(self._options, settings=settings, spec=spec, backend_options=backend_options)
        return pickle.dumps((options, self._remote_path(os.getcwd(), remote_paths), sys.argv[1:]))

    def _sync_texts(self, remote_paths: Mapping[str, str]) -> Iterable[str]:
        """Yield the values of ``--sync`` for the launcher's machine, with the folders there."""
        for sync in self._syncs:
            yield remote_paths[sync.text] + ("" if sync.remote is None else f":{sync.remote}")

    def _collect_texts(self, remote_paths: Mapping[str, str]) -> Iterable[str]:
        """Yield the values of ``--collect`` for the launcher's machine, with folders for results there."""
        for text, request in zip(self._options.settings[COLLECT], self._collects, strict=True):
            if request.into is None:
                yield text
            else:  # The folder for results is the end of the value.
                yield text.removesuffix(request.into) + remote_paths[os.path.abspath(request.into)]

    def _remote_spec(self, remote_paths: Mapping[str, str]) -> JobSpec:
        """Return the job with the paths of its programs and working directories on the launcher's machine.

        Args:
            remote_paths: The path on that machine of each synced folder.
        """
        spec = self._options.spec
        roles = tuple(
            replace(
                role,
                workdir=role.workdir and self._remote_path(role.workdir, remote_paths),
                program=replace(role.program, name=self._remote_path(role.program.name, remote_paths)),
            )
            for role in spec.roles
        )
        workdir = spec.workdir and self._remote_path(spec.workdir, remote_paths)
        return replace(spec, roles=roles, workdir=workdir)

    def _remote_path(self, path: str, remote_paths: Mapping[str, str]) -> str:
        """Return the path of a file on the launcher's machine.

        It is the same if no synced folder contains the file.

        Args:
            path: The path on this machine.
            remote_paths: The path on the launcher's machine of each synced folder.
        """
        # The launcher starts in the copy of this working directory, so relative paths stay.
        for sync in self._syncs if os.path.isabs(path) else ():
            inside = sync.relative_path(path)
            if inside is not None:
                return f"{remote_paths[sync.text]}/{inside}".rstrip("/")
        return path


def run_submitted(path: str) -> int:
    """Run a job whose options were read by a launch on another machine. The queue of a cluster starts it.

    Args:
        path: The file that a `Parcel` of that launch has made, on this machine.

    Returns:
        The exit code of the job.

    Raises:
        LaunchError: The job could not be started, as in `Session.run`.
    """
    # The backend has added the name of the run to what `_Packer` has packed.
    with open(path, "rb") as file:
        name, packed = pickle.load(file)
    options, folder, sys.argv[1:] = pickle.loads(packed)
    with suppress(FileNotFoundError):  # No synced folder contains the working directory of the user.
        os.chdir(folder)
    # Tasks must not inherit the variable, so it is removed.
    paths = RunPaths(os.environ.pop(RUN_FOLDER_VARIABLE))
    run = Run(name, paths=paths, owner=None, started_at=0.0, origin=options.origin)
    return Session(replace(options, submitted=run)).run()
