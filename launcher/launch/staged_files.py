"""The files of a launch: ``--sync`` before the job, ``--collect`` and ``--output-dirs`` after it.

A session makes `StagedFiles` when it is connected to the hosts; `launcher.launch.requested_files` has checked
the options before. The folders of a run on other machines must not outlive the launch, except those with
files that could not be collected.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from launcher.backends.connections import ProgramRunner, with_tilde
from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.text import join_names
from launcher.config.table import FANOUT, JSON, QUIET
from launcher.event_loop import EventLoop
from launcher.files.requests import Item
from launcher.files.targets import FileTarget, copy_out
from launcher.files.transfer import Collected, FileTransfer, OutputFolders, collect, finish, sync
from launcher.job import OUTPUT_DIR_VARIABLE, Placement, Plan, RunPaths, TaskPlan
from launcher.launch.interrupts import Interrupts
from launcher.launch.requested_files import RequestedFiles, with_output_dirs, work_folder
from launcher.messages import say
from launcher.storage.urls import joined

#: ``--collect`` may take this long, even if ``--timeout`` is shorter.
_MIN_COLLECT_SECONDS = 60.0
#: The removal of the folders of the run may take this long.
_MAX_REMOVAL_SECONDS = 60.0


class _SideTransfers:
    """Transfers that another thread than that of the loop makes, one after another, while the job runs.

    Args:
        make: Makes a transfer.
    """

    def __init__(self, make: Callable[[], FileTransfer]) -> None:
        self._make = make
        #: Held during a transfer.
        self._lock = threading.Lock()
        self._last: FileTransfer | None = None
        #: Whether `end` was called, so that every transfer fails.
        self._are_over = False

    @contextmanager
    def next(self) -> Iterator[FileTransfer]:
        """Return a context with a new transfer. All that it does fails once `end` was called."""
        with self._lock:
            self._last = self._make()
            if self._are_over:
                self._last.cancel()
            yield self._last

    def end(self) -> None:
        """Make the present transfer fail, and each later one, and wait until the other thread is done."""
        self._are_over = True
        if self._last is not None:
            self._last.cancel()
        with self._lock:
            pass


class StagedFiles:
    """The files of one launch, which it copies to its hosts and back.

    Args:
        requested: The files.
        programs: Runs programs of ours on the hosts.
        run_name: The name of the run.
        interrupts: Limits the work after the job.
        loop: Drives the links to the hosts.
    """

    def __init__(
        self,
        requested: RequestedFiles,
        programs: ProgramRunner,
        run_name: str,
        interrupts: Interrupts,
        loop: EventLoop,
    ) -> None:
        self._requested, self._programs, self._run_name = requested, programs, run_name
        self._interrupts, self._loop = interrupts, loop
        #: Hosts that get a folder of this run, which is removed at the end.
        self._hosts_with_folder = requested.hosts_with_folder
        #: Hosts with files that could not be collected.
        self._incomplete_hosts: Collection[str] = ()
        #: Whether `send` has succeeded.
        self._has_sent = False
        #: Standby hosts to which the files could not be copied.
        self._hosts_without_files: Collection[str] = ()
        #: The copies to hosts that were lost, until the folders are removed. Each is to one host only.
        self._recoveries = _SideTransfers(lambda: FileTransfer(self._programs, 1, self._timeout, quiet=True))
        #: The copies of results before the next attempt of tasks, until the job has ended.
        self._savings = _SideTransfers(lambda: self._transfer(self._timeout, in_loop=False))
        #: The copy of the first folder of ``--sync``, in which the tasks run, by the name of the host.
        self._first_copies: Mapping[str, str] = {}
        #: The folder that contains the tasks' output folders, by the name of the host.
        self._output_folders: Mapping[str, str] = {}

    def _transfer(self, seconds: float = math.inf, *, in_loop: bool = True) -> FileTransfer:
        """Return a transfer for files of this launch.

        Args:
            seconds: How long it may take.
            in_loop: Whether it runs the loop, because the caller is the thread of the loop.
        """
        settings = self._requested.options.settings
        quiet = settings[QUIET] or settings[JSON]  # Whether no progress is shown.
        loop = self._loop if in_loop else None
        return FileTransfer(self._programs, settings[FANOUT], seconds, loop, quiet=quiet)

    @property
    def _timeout(self) -> float:
        """How many seconds a copy may take: as long as the whole job (``--timeout``), or any time."""
        seconds = self._requested.options.spec.policy.timeout
        return math.inf if seconds is None else seconds

    # ------------------------------------------------------------------ before the job

    def send(self) -> None:
        """Copy the folders to all other machines, and make output folders on them.

        Raises:
            TransportError: The disk of a host is full, a host is lost, or ``--timeout`` is over.
        """
        requested = self._requested
        names = requested.tasks_for(requested.output_hosts)  # The output folders to make on each host.
        if requested.trees or names:
            # A user that only the container knows must be able to write to the output folders.
            transfer = self._transfer(self._timeout)
            standby = {host.name for host in requested.placement.standby}
            outputs = OutputFolders(names, for_all_users=requested.runs_as_other_user)
            # Each host has the paths of the copies, then that of the output folders. Standby hosts, which run
            # no task as long as no host is lost, may fail.
            paths = sync(transfer, requested.remote, requested.trees, self._run_name, outputs, standby)
            self._hosts_without_files = {*requested.remote} - paths.keys()
            self._hosts_with_folder = [host for host in self._hosts_with_folder if host in paths]
            self._first_copies = {host: on_host[0] for host, on_host in paths.items() if requested.trees}
            self._output_folders = {host: paths[host][-1] for host in names if host in paths}
        self._has_sent = True

    def copy_to(self, host: str) -> None:
        """Copy the folders to a host that was lost, and make output folders on it.

        Args:
            host: The name of the host.

        Raises:
            TransportError: That is not possible now.
        """
        requested = self._requested
        # The output folders to make, for every task that may run on the host.
        names = requested.tasks_for([host] if host in requested.output_hosts else [])
        with self._recoveries.next() as transfer:
            if requested.trees or names:
                outputs = OutputFolders(names, for_all_users=requested.runs_as_other_user)
                sync(transfer, [host], requested.trees, self._run_name, outputs)

    def with_folders(self, placement: Placement) -> Placement:
        """Return a placement of this launch with the folders of its tasks on other machines.

        Standby hosts (those that get tasks only when a host is lost) that have not got the files are left
        out.
        """
        standby = tuple(host for host in placement.standby if host.name not in self._hosts_without_files)
        placement = replace(placement, standby=standby)
        return self._requested.with_folders(placement, self._first_copies, self._output_folders)

    def make_output_dirs(self, placement: Placement, paths: RunPaths) -> Placement:
        """Make an output folder in the run's folder for every task that has none on its host.

        Args:
            placement: The tasks, each with its host.
            paths: The files of the run.

        Returns:
            The placement, in which the tasks know these folders by a variable.

        Raises:
            LaunchError: A folder cannot be made.
        """
        folders = {placed.task: paths.output(placed.task) for placed in placement.tasks}
        try:
            for folder in folders.values():
                os.makedirs(folder, mode=0o700, exist_ok=True)
                # mkdir(2) obeys the umask. A user that only the container knows must be able to write there.
                os.chmod(folder, 0o777 if self._requested.runs_as_other_user else 0o700)
        except OSError as error:
            raise LaunchError(f"cannot make the folder {error.filename!r}: {error.strerror}") from error
        on_hosts = {placed.task for placed in placement.tasks if OUTPUT_DIR_VARIABLE in dict(placed.env)}
        here = {task: folder for task, folder in folders.items() if task not in on_hosts}
        return with_output_dirs(placement, here)

    # ------------------------------------------------------------------ after the job

    def collect(self, plan: Plan | None, paths: RunPaths) -> bool:
        """Copy the files that ``--collect`` and ``--output-dirs`` ask for from the hosts of the tasks.

        If not all files of a host could be copied, or a signal stops the copying, the folder of the run on
        that host is not removed later, and the user is told where it is.

        Args:
            plan: The plan of the job. None if nothing was started.
            paths: The files of the run.

        Returns:
            Whether all files that exist were copied. It is no failure that a task made no file of this name.
        """
        self._savings.end()  # What it copies is copied once more.
        if plan is None:
            return True
        items, targets = [*self._output_items(plan.tasks, paths)], []
        for number, request in enumerate(self._requested.collects):
            for task in (task for task in plan.tasks if request.concerns(task.task)):
                item = request.item(task.task, task.host, task.workdir or "", paths.root)
                if request.url:  # Files of the same name may go to different URLs.
                    item = replace(item, into=f"{item.into}/url-{number}")
                    # Each task has a folder of its own, unless the user names a single one.
                    url = joined(request.url, *([task.task.file_stem] if request.number is None else []))
                    targets.append(FileTarget(item.into, url, named=request.url))
                items.append(item)
        is_fetched = self._fetch(items) if items else True
        try:
            with self._interrupts.limited("copying the files of the job"):
                transfer = self._transfer(max(self._timeout, _MIN_COLLECT_SECONDS))
                is_copied = self._copy_out(transfer, [*targets, *self._output_targets(plan.tasks, paths)])
        except (KeyboardInterrupt, SystemExit):
            say(f"stopped before all files were copied to URLs; all are still in {with_tilde(paths.root)}")
            raise
        if is_copied:
            for target in targets:
                shutil.rmtree(target.path, ignore_errors=True)
                # The folder of the task may contain more, and so may that of all tasks.
                with suppress(OSError):
                    os.removedirs(os.path.dirname(target.path))
        return is_fetched and is_copied

    def _output_items(self, tasks: Sequence[TaskPlan], paths: RunPaths) -> Iterator[Item]:
        """Yield what is fetched from the output folders of these tasks on other machines."""
        for task in tasks:
            folder = task.env.get(OUTPUT_DIR_VARIABLE)
            if folder and task.host in self._requested.output_hosts:
                yield Item(task.task, host=task.host, base=folder, path=".", into=paths.output(task.task))

    def _output_targets(self, tasks: Sequence[TaskPlan], paths: RunPaths) -> list[FileTarget]:
        """Return where ``--output-to`` copies the results of these tasks, which are on this machine."""
        url = self._requested.options.spec.output_to
        if not url:
            return []
        return [
            FileTarget(paths.output(task.task), joined(url, task.task.file_stem), named=url) for task in tasks
        ]

    def _copy_out(self, transfer: FileTransfer, targets: Sequence[FileTarget]) -> bool:
        """Copy files to URLs, and return whether all were copied. If not, the user is told why."""
        failures = copy_out(transfer, targets) if targets else []
        for path, why in () if transfer.is_cancelled else failures:
            say(f"not copied: {with_tilde(path)}: {why}" if path else f"not copied: {why}")
        return not failures

    def save(self, paths: RunPaths, plan: Plan, tasks: Collection[TaskId]) -> None:
        """Copy the results of tasks to the URL of ``--output-to``, before the tasks start again.

        Another thread than that of the loop calls this. A failure, of which the user is told, changes nothing
        else: what is still there is copied at the end.

        Args:
            paths: The files of the run.
            plan: The plan of the job.
            tasks: The tasks, of which no process is left.
        """
        plans = [task for task in plan.tasks if task.task in tasks]
        items = [*self._output_items(plans, paths)]
        with self._savings.next() as transfer:
            try:
                results = collect(transfer, items) if items else {}
                if not transfer.is_cancelled:
                    self._report_problems("--output-to", results)
                    self._copy_out(transfer, self._output_targets(plans, paths))
            except (LaunchError, OSError) as error:  # Such as no free descriptor.
                say(f"--output-to: {error}")

    def _report_problems(self, option: str, results: Mapping[str, Collected]) -> None:
        """Tell the user what could not be fetched from hosts, or does not exist there."""
        for result in results.values():
            for text in (*result.notices, *result.failures):
                say(f"{option}: {text}")

    def _fetch(self, items: Sequence[Item]) -> bool:
        """Fetch files from the hosts, and return whether that has failed for none of them."""
        # Until the files are here, which Ctrl-C may prevent, no host may lose its folder.
        self._incomplete_hosts = {item.host for item in items}
        option = "--collect" if self._requested.collects else "--output-dirs"
        try:
            with self._interrupts.limited("collecting the files of the job"):
                results = collect(self._transfer(max(self._timeout, _MIN_COLLECT_SECONDS)), items)
            self._report_problems(option, results)
            self._incomplete_hosts = {host for host, result in results.items() if result.failures}
        except (KeyboardInterrupt, SystemExit):
            missing = join_names(sorted(self._incomplete_hosts))
            say(f"{option}: stopped before all files of {missing} were here")
            raise
        finally:
            # `remove` leaves the folders of these hosts.
            if hosts := [host for host in self._hosts_with_folder if host in self._incomplete_hosts]:
                where = f"{work_folder(self._run_name)} on {join_names(hosts)}"
                say(f"files that were not fetched are still in {where}")
        return not self._incomplete_hosts

    def remove(self) -> None:
        """Remove the folders of this run from all hosts where everything could be collected."""
        self._savings.end()
        hosts = [host for host in self._hosts_with_folder if host not in self._incomplete_hosts]
        with self._interrupts.limited():
            self._recoveries.end()  # Then no remote program of theirs is open.
            failed = finish(self._transfer(_MAX_REMOVAL_SECONDS), hosts, self._run_name) if hosts else {}
        # If the copy before the job failed, the user knows about a host that cannot be reached.
        for text in failed.values() if self._has_sent else ():
            say(f"the folder of this run could not be removed: {text}")
