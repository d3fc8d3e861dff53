"""The files of a launch: ``--sync`` before the job, ``--collect`` and ``--output-dirs`` after it."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping

from launcher.agent.transfer import OUTPUTS_FOLDER
from launcher.backends.backend import Allocation
from launcher.backends.connections import ProgramRunner, with_tilde
from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.text import byte_size, join_names, plural
from launcher.config.table import COLLECT, FANOUT, JSON, QUIET, RUN_DIR, SYNC, WORKDIR
from launcher.event_loop import EventLoop
from launcher.files.requests import Item, parse_collects, parse_syncs
from launcher.files.transfer import FileTransfer, OutputFolders, collect, finish, sync
from launcher.files.walk import SourceTree, left_out, read_trees
from launcher.job import OUTPUT_DIR_VARIABLE, PlacedTask, Placement, Plan, RunPaths
from launcher.launch.interrupts import Interrupts
from launcher.launch.options import LaunchOptions
from launcher.messages import say

#: Stands for the name of the run in a dry run.
_EXAMPLE_RUN_NAME = "JOB"
#: Seconds that ``--collect`` may take at least, whatever ``--timeout`` says.
_MIN_COLLECT_SECONDS = 60.0
#: Seconds that the removal of the folders of the run may take.
_MAX_REMOVAL_SECONDS = 60.0


class StagedFiles:
    """The files that one launch copies.

    It is made before a host is connected to: all faults of the options are known then.

    Args:
        options: of the launch.
        allocation: the hosts.
        placement: the tasks, each with its host.

    Raises:
        JobError: a file or folder is not there, or can't be read.
    """

    # begin
    _commands: ProgramRunner
    _run_name: str
    _interrupts: Interrupts
    _loop: EventLoop

    def __init__(self, options: LaunchOptions, allocation: Allocation, placement: Placement) -> None:
        self._options, self._placement = options, placement
        self._other_user = allocation.runs_as_other_user
        hosts = [host.name for host in placement.agent_hosts()]
        self._remote = [host for host in hosts if host not in allocation.sharing_files]
        settings = options.settings
        self._syncs = parse_syncs(settings[SYNC], settings.source(SYNC))
        counts = {role.name: role.count for role in options.spec.roles}
        self._collects = parse_collects(settings[COLLECT], counts, settings.source(COLLECT))
        #: For the user.
        self.notes: list[str] = []
        self._trees: list[SourceTree] = []
        self._subfolder = ""
        if self._syncs and self._remote:
            self._trees, self._subfolder = read_trees(self._syncs, os.getcwd(), settings[RUN_DIR])
        elif self._syncs:
            here = allocation.local.issuperset(hosts)
            why = "all tasks run on this machine" if here else "all hosts have the files of this machine"
            self.notes.append(f"--sync: nothing is copied: {why}")
        #: Hosts whose tasks have their output folders there, not in the run's folder.
        self._output_hosts = self._remote if options.spec.output_dirs else []
        #: Hosts with a folder of this run, and those with files that could not be collected.
        self._folders = self._remote if self._syncs or options.spec.output_dirs else []
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
        settings = self._options.settings
        quiet = settings[QUIET] or settings[JSON]
        return FileTransfer(self._commands, settings[FANOUT], seconds, self._loop, quiet=quiet)

    @property
    def _timeout(self) -> float:
        """Seconds that a copy may take: as many as the job."""
        seconds = self._options.spec.policy.timeout
        return math.inf if seconds is None else seconds

    # ------------------------------------------------------------------ before the job

    def begin(self, commands: ProgramRunner, run_name: str, interrupts: Interrupts, loop: EventLoop) -> None:
        """The hosts are connected.

        Args:
            commands: run programs of ours on the hosts.
            run_name: the name of the run.
            interrupts: limit the work after the job.
            loop: of the links to the hosts.
        """
        self._commands, self._run_name, self._interrupts, self._loop = commands, run_name, interrupts, loop

    def send(self) -> None:
        """Copy the folders to all other machines, and make folders for results there.

        Raises:
            TransportError: the disk of a host is full, or a host is lost; ``--timeout`` is over.
        """
        names = self._tasks_for(self._output_hosts)
        if self._trees or names:
            # A user that only the container knows must be able to write to the folders for results.
            transfer, standby = self._transfer(self._timeout), {host.name for host in self._placement.standby}
            outputs = OutputFolders(names, for_all_users=self._other_user)
            paths = sync(transfer, self._remote, self._trees, self._run_name, outputs, standby)
            self._left_out = {*self._remote} - paths.keys()
            self._folders = [host for host in self._folders if host in paths]
            self._tops = {host: found[0] for host, found in paths.items() if self._trees}
            self._outputs = {host: paths[host][-1] for host in names if host in paths}
        self._sent = True

    def copy_to(self, host: str) -> None:
        """Copy the folders to a host that was lost, and make folders for results there.

        Raises:
            TransportError: that is not possible now.
        """
        names = self._tasks_for([host] if host in self._output_hosts else [])
        with self._bringing:
            self._brought = FileTransfer(self._commands, 1, self._timeout, quiet=True)
            if (self._trees or names) and not self._over:
                outputs = OutputFolders(names, for_all_users=self._other_user)
                sync(self._brought, [host], self._trees, self._run_name, outputs)

    def _tasks_for(self, hosts: Iterable[str]) -> dict[str, list[str]]:
        """The names of folders for the tasks that may run on each of these hosts."""
        on_hosts, tasks = self._placement.by_host(), self._placement.tasks
        may_move = bool(self._options.spec.policy.restarts)
        return {
            host: [placed.task.file_stem for placed in (tasks if may_move else on_hosts.get(host, ()))]
            for host in hosts
        }

    def with_folders(self, placement: Placement) -> Placement:
        """A placement of this launch with the folders of its tasks on other machines."""
        return self._with_folders(placement, self._tops, self._outputs)

    def _with_folders(
        self, placement: Placement, tops: Mapping[str, str], outputs: Mapping[str, str]
    ) -> Placement:
        """The placement with the folders of its tasks.

        Args:
            placement: of this launch.
            tops: where the first folder is, by host.
            outputs: where the folders for results are, by host.
        """
        standby = tuple(host for host in placement.standby if host.name not in self._left_out)
        tasks = tuple(
            self._in_copy(placed, tops[placed.host.name]) if placed.host.name in tops else placed
            for placed in placement.tasks
        )
        folders = {
            p.task: f"{outputs[p.host.name]}/{p.task.file_stem}" for p in tasks if p.host.name in outputs
        }
        return _with_output_dirs(replace(placement, tasks=tasks, standby=standby), folders)

    def _in_copy(self, placed: PlacedTask, top: str) -> PlacedTask:
        """The task, run in the copy of the first folder, or in the folder within that copy that it names."""
        role, first = placed.role, self._syncs[0]
        workdir = role.workdir
        if not workdir and self._options.settings.is_given(WORKDIR):
            workdir = self._options.spec.workdir
        inside: str | None = self._subfolder
        if workdir:
            inside = None if workdir.startswith("~") else first.inside(workdir)
        name = role.program.name
        if os.path.isabs(name) and first.inside(name) is not None:
            name = os.path.relpath(os.path.realpath(name), os.path.realpath(os.getcwd()))
        return replace(
            placed,
            role=replace(role, workdir=None, program=replace(role.program, name=name)),
            host=replace(
                placed.host, workdir=workdir if inside is None else os.path.join(top, inside).rstrip("/")
            ),
        )

    def make_output_dirs(self, placement: Placement, paths: RunPaths) -> Placement:
        """Make a folder (``OUTPUT_DIR``) in the run's folder for every task that has none on its host.

        Raises:
            LaunchError: it can't be made.
        """
        folders = {placed.task: paths.output(placed.task) for placed in placement.tasks}
        try:
            for folder in folders.values():
                os.makedirs(folder, mode=0o700, exist_ok=True)
                os.chmod(folder, 0o777 if self._other_user else 0o700)
        except OSError as error:
            raise LaunchError(f"can't make the folder {error.filename!r}: {error.strerror}") from error
        there = {placed.task for placed in placement.tasks if OUTPUT_DIR_VARIABLE in dict(placed.env)}
        return _with_output_dirs(placement, {t: path for t, path in folders.items() if t not in there})

    # ------------------------------------------------------------------ after the job

    def collect(self, plan: Plan | None, paths: RunPaths) -> bool:
        """Copy files of the tasks from their hosts.

        Args:
            plan: of the job; ``None``: nothing was started.
            paths: of the run.

        Returns:
            Whether all files that exist were copied; a path that no task made is not a failure.
        """
        if plan is None or not (self._collects or self._output_hosts):
            return True
        items = [
            request.item(task.task, task.host, task.workdir or "", paths.root)
            for request in self._collects
            for task in plan.tasks
            if request.concerns(task.task)
        ]
        for task in plan.tasks:
            folder = task.env.get(OUTPUT_DIR_VARIABLE)
            if folder and task.host in self._output_hosts:
                items.append(
                    Item(task.task, host=task.host, base=folder, path=".", into=paths.output(task.task))
                )
        self._incomplete = {item.host for item in items}  # until they are here: Ctrl-C may come
        option = "--collect" if self._collects else "--output-dirs"
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
                    f"files that were not fetched are still in {_work_folder(self._run_name)} on "
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

    # ------------------------------------------------------------------ dry run

    def expected(self) -> Placement:
        """The placement as `send` would return it, as far as this machine knows it."""
        outputs = {}
        if self._options.spec.output_dirs:
            hosts = [host.name for host in self._placement.hosts()]
            outputs = {
                **dict.fromkeys(hosts, f"{self._run_folder}/output"),
                **dict.fromkeys(self._output_hosts, f"{_work_folder(_EXAMPLE_RUN_NAME)}/{OUTPUTS_FOLDER}"),
            }
        tops = dict.fromkeys(self._remote, self._place(0)) if self._trees else {}
        return self._with_folders(self._placement, tops, outputs)

    def described(self) -> Iterator[str]:
        """Lines about the files that would be copied."""
        for number, tree in enumerate(self._trees):
            folder = with_tilde(tree.request.folder)
            text = f"{folder}, {plural(tree.files, 'file')} ({byte_size(tree.size)})"
            stays = "removed when the job is over" if tree.request.remote is None else "it stays there"
            yield f"--sync: {text}, is copied to {self._place(number)} on {join_names(self._remote)}; {stays}"
        yield from left_out(self._trees)
        for request in self._collects:
            tasks = [placed.task for placed in self._placement.tasks if request.concerns(placed.task)]
            into = f"{self._run_folder}/collected"
            if request.into is not None:
                into = with_tilde(os.path.abspath(request.into))
            into += "/TASK" if request.into is None or request.number is None else ""
            yield f"--collect: {request.path} of {join_names(tasks)} is copied to {into} when the job is over"
        if self._options.spec.output_dirs:
            where = f"{self._run_folder}/output/TASK"
            yield f"--output-dirs: what tasks put into OUTPUT_DIR is in {where} when the job is over"
        yield from self.notes

    @property
    def _run_folder(self) -> str:
        run_dir = self._options.settings[RUN_DIR]
        return "RUN_DIR" if run_dir is None else with_tilde(os.path.abspath(run_dir))

    def _place(self, number: int) -> str:
        """Where a folder goes on the hosts; their homes are not known here."""
        request = self._syncs[number]
        if request.remote is None:
            return f"{_work_folder(_EXAMPLE_RUN_NAME)}/{request.name}"
        return request.remote if request.remote.startswith("/") else f"~/{request.remote}"


def _work_folder(run_name: str) -> str:
    """The folder of a run on another machine."""
    return f"~/.cache/tf-launcher/work/{run_name}"


def _with_output_dirs(placement: Placement, folders: Mapping[TaskId, str]) -> Placement:
    return placement.with_env({task: {OUTPUT_DIR_VARIABLE: folder} for task, folder in folders.items()})
