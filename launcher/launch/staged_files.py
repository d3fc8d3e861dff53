"""The files of a launch: ``--sync`` before the job, ``--collect`` and ``--output-dirs`` after it."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection, Mapping

from launcher.backends.connections import ProgramRunner
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.text import join_names
from launcher.config.table import FANOUT, JSON, QUIET
from launcher.event_loop import EventLoop
from launcher.files.requests import Item
from launcher.files.transfer import FileTransfer, OutputFolders, collect, finish, sync
from launcher.job import OUTPUT_DIR_VARIABLE, Placement, Plan, RunPaths
from launcher.launch.interrupts import Interrupts
from launcher.launch.requested_files import RequestedFiles, with_output_dirs, work_folder
from launcher.messages import say

#: Seconds that ``--collect`` may take at least, whatever ``--timeout`` says.
_MIN_COLLECT_SECONDS = 60.0
#: Seconds that the removal of the folders of the run may take.
_MAX_REMOVAL_SECONDS = 60.0


class StagedFiles:
    """Copies the files of one launch to its hosts, and back.

    Args:
        requested: The files.
        programs: Runs programs of ours on the hosts, which are connected.
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
        #: Hosts with a folder of this run, and those with files that could not be collected.
        self._folders = requested.hosts_with_folder
        self._incomplete: Collection[str] = ()
        self._sent = False
        #: Standby hosts that could not take the files.
        self._left_out: Collection[str] = ()
        #: Held while files are brought to a host that was lost; that copying; the folders are to be removed.
        self._bringing = threading.Lock()
        self._brought: FileTransfer | None = None
        self._over = False
        #: On each host: the copy of the first folder, and the folder of the output folders.
        self._tops: Mapping[str, str] = {}
        self._outputs: Mapping[str, str] = {}

    def _transfer(self, seconds: float = math.inf) -> FileTransfer:
        settings = self._requested.options.settings
        quiet = settings[QUIET] or settings[JSON]
        return FileTransfer(self._programs, settings[FANOUT], seconds, self._loop, quiet=quiet)

    @property
    def _timeout(self) -> float:
        """Seconds that a copy may take: as many as the job."""
        seconds = self._requested.options.spec.policy.timeout
        return math.inf if seconds is None else seconds

    # ------------------------------------------------------------------ before the job

    def send(self) -> None:
        """Copy the folders to all other machines, and make folders for results there.

        Raises:
            TransportError: the disk of a host is full, or a host is lost; ``--timeout`` is over.
        """
        requested = self._requested
        names = requested.tasks_for(requested.output_hosts)
        if requested.trees or names:
            # A user that only the container knows must be able to write to the folders for results.
            transfer = self._transfer(self._timeout)
            standby = {host.name for host in requested.placement.standby}
            outputs = OutputFolders(names, for_all_users=requested.runs_as_other_user)
            paths = sync(transfer, requested.remote, requested.trees, self._run_name, outputs, standby)
            self._left_out = {*requested.remote} - paths.keys()
            self._folders = [host for host in self._folders if host in paths]
            self._tops = {host: found[0] for host, found in paths.items() if requested.trees}
            self._outputs = {host: paths[host][-1] for host in names if host in paths}
        self._sent = True

    def copy_to(self, host: str) -> None:
        """Copy the folders to a host that was lost, and make folders for results there.

        Raises:
            TransportError: that is not possible now.
        """
        requested = self._requested
        names = requested.tasks_for([host] if host in requested.output_hosts else [])
        with self._bringing:
            self._brought = FileTransfer(self._programs, 1, self._timeout, quiet=True)
            if (requested.trees or names) and not self._over:
                outputs = OutputFolders(names, for_all_users=requested.runs_as_other_user)
                sync(self._brought, [host], requested.trees, self._run_name, outputs)

    def with_folders(self, placement: Placement) -> Placement:
        """Return a placement of this launch with the folders of its tasks on other machines."""
        standby = tuple(host for host in placement.standby if host.name not in self._left_out)
        placement = replace(placement, standby=standby)
        return self._requested.with_folders(placement, self._tops, self._outputs)

    def make_output_dirs(self, placement: Placement, paths: RunPaths) -> Placement:
        """Make a folder (``OUTPUT_DIR``) in the run's folder for every task that has none on its host.

        Raises:
            LaunchError: it cannot be made.
        """
        folders = {placed.task: paths.output(placed.task) for placed in placement.tasks}
        try:
            for folder in folders.values():
                os.makedirs(folder, mode=0o700, exist_ok=True)
                os.chmod(folder, 0o777 if self._requested.runs_as_other_user else 0o700)
        except OSError as error:
            raise LaunchError(f"cannot make the folder {error.filename!r}: {error.strerror}") from error
        there = {placed.task for placed in placement.tasks if OUTPUT_DIR_VARIABLE in dict(placed.env)}
        return with_output_dirs(placement, {t: path for t, path in folders.items() if t not in there})

    # ------------------------------------------------------------------ after the job

    def collect(self, plan: Plan | None, paths: RunPaths) -> bool:
        """Copy files of the tasks from their hosts.

        Args:
            plan: of the job; ``None``: nothing was started.
            paths: of the run.

        Returns:
            Whether all files that exist were copied; a path that no task made is not a failure.
        """
        if plan is None or not (self._requested.collects or self._requested.output_hosts):
            return True
        items = [
            request.item(task.task, task.host, task.workdir or "", paths.root)
            for request in self._requested.collects
            for task in plan.tasks
            if request.concerns(task.task)
        ]
        for task in plan.tasks:
            folder = task.env.get(OUTPUT_DIR_VARIABLE)
            if folder and task.host in self._requested.output_hosts:
                items.append(
                    Item(task.task, host=task.host, base=folder, path=".", into=paths.output(task.task))
                )
        self._incomplete = {item.host for item in items}  # until they are here: Ctrl-C may come
        option = "--collect" if self._requested.collects else "--output-dirs"
        try:
            with self._interrupts.limited("collecting the files of the job"):
                results = collect(self._transfer(max(self._timeout, _MIN_COLLECT_SECONDS)), items)
            for result in results.values():
                for text in (*result.notices, *result.failures):
                    say(f"{option}: {text}")
            self._incomplete = {host for host, result in results.items() if result.failures}
        except (KeyboardInterrupt, SystemExit):
            say(f"{option}: stopped before all files of {join_names(sorted(self._incomplete))} were here")
            raise
        finally:
            if kept := [host for host in self._folders if host in self._incomplete]:
                say(
                    f"files that were not fetched are still in {work_folder(self._run_name)} on "
                    f"{join_names(kept)}"
                )
        return not self._incomplete

    def remove(self) -> None:
        """Remove the folders of this run from the hosts, but where not everything could be collected."""
        hosts = [host for host in self._folders if host not in self._incomplete]
        with self._interrupts.limited():
            self._over = True
            if self._brought is not None:
                self._brought.cancel()
            with self._bringing:  # its remote command is closed then
                pass
            failed = finish(self._transfer(_MAX_REMOVAL_SECONDS), hosts, self._run_name) if hosts else {}
        for text in failed.values() if self._sent else ():
            say(f"the folder of this run could not be removed: {text}")
