"""The files that ``--sync``, ``--collect`` and ``--output-dirs`` of a launch ask for.

A session makes `RequestedFiles` before it connects to a host, so that all faults of these options are known
before anything is started. `launcher.launch.staged_files` copies the files; nothing here does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from launcher.agent.transfer import OUTPUTS_FOLDER
from launcher.backends.backend import Allocation
from launcher.backends.connections import with_tilde
from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.text import byte_size, join_names, plural
from launcher.config.table import COLLECT, RUN_DIR, SYNC, WORKDIR
from launcher.files.requests import parse_collects, parse_syncs
from launcher.files.walk import SourceTree, left_out, read_trees
from launcher.job import OUTPUT_DIR_VARIABLE, PlacedTask, Placement
from launcher.launch.options import LaunchOptions
from launcher.storage.urls import joined, shown

#: Stands for the name of the run in a dry run.
_EXAMPLE_RUN_NAME = "JOB"


class RequestedFiles:
    """The files that one launch copies to its hosts and back.

    It is made before a host is connected to, so that all faults of the options are known then.

    Args:
        options: The options of the launch.
        allocation: The hosts.
        placement: The tasks, each with its host.

    Raises:
        JobError: A file or folder does not exist, or cannot be read.
    """

    def __init__(self, options: LaunchOptions, allocation: Allocation, placement: Placement) -> None:
        """Read the options, and list what the folders of ``--sync`` contain. Nothing is copied yet.

        Args:
            options: The options of the launch.
            allocation: The hosts of the job, with those that are this machine or see its files.
            placement: The host of each task.
        """
        self.options, self.placement = options, placement
        #: Whether tasks run as another user than launch, as in some containers.
        self.runs_as_other_user = allocation.runs_as_other_user
        hosts = [host.name for host in placement.agent_hosts()]
        #: Hosts that do not see the files of this machine.
        self.remote = [host for host in hosts if host not in allocation.sharing_files]
        settings = options.settings
        #: The folders to copy to the hosts, as ``--sync`` names them.
        self._syncs = parse_syncs(settings[SYNC], settings.source(SYNC))
        counts = {role.name: role.count for role in options.spec.roles}
        #: The files to copy from the hosts after the job, as ``--collect`` names them.
        self.collects = parse_collects(settings[COLLECT], counts, settings.source(COLLECT))
        #: Notes for the user.
        self.notes: list[str] = []
        #: The folders of ``--sync`` with what they contain. Empty if nothing is copied.
        self.trees: list[SourceTree] = []
        #: The path of the current folder within the first of them, from which tasks start.
        self._subfolder = ""
        if self._syncs and self.remote:
            self.trees, self._subfolder = read_trees(self._syncs, os.getcwd(), settings[RUN_DIR])
        elif self._syncs:
            here = allocation.local.issuperset(hosts)
            why = "all tasks run on this machine" if here else "all hosts have the files of this machine"
            self.notes.append(f"--sync: nothing is copied: {why}")
        #: Hosts whose tasks write into output folders on the host, and not in the run's folder.
        self.output_hosts = self.remote if options.spec.output_dirs else []
        #: Hosts on which this run gets a folder.
        self.hosts_with_folder = self.remote if self._syncs or options.spec.output_dirs else []

    def tasks_for(self, hosts: Iterable[str]) -> dict[str, list[str]]:
        """Return the names of the output folders to make on each host, one for each task that may run there.

        Args:
            hosts: The names of the hosts.
        """
        by_host, all_tasks = self.placement.by_host(), self.placement.tasks
        may_move = bool(self.options.spec.policy.restarts)  # Then any task may run on any host later.
        names = {}
        for host in hosts:
            names[host] = [task.task.file_stem for task in (all_tasks if may_move else by_host.get(host, ()))]
        return names

    def with_folders(
        self, placement: Placement, tops: Mapping[str, str], outputs: Mapping[str, str]
    ) -> Placement:
        """Return a placement of this launch with the folders of its tasks on other machines.

        Args:
            placement: The placement.
            tops: The copy of the first synced folder, by the name of the host.
            outputs: The folder of the output folders, by the name of the host.
        """
        tasks = tuple(
            self._in_copy(placed, tops[placed.host.name]) if placed.host.name in tops else placed
            for placed in placement.tasks
        )
        folders = {}
        for placed in tasks:
            if placed.host.name in outputs:
                folders[placed.task] = f"{outputs[placed.host.name]}/{placed.task.file_stem}"
        return with_output_dirs(replace(placement, tasks=tasks), folders)

    def _in_copy(self, placed: PlacedTask, top: str) -> PlacedTask:
        """Return a task that runs in the copy of the first synced folder.

        If the task or ``--workdir`` names a folder within it, the task runs in the copy of that one. A folder
        elsewhere is used as the user wrote it.

        Args:
            placed: The task and its host.
            top: The copy on that host.
        """
        role, synced = placed.role, self._syncs[0]
        workdir = role.workdir
        if not workdir and self.options.settings.is_given(WORKDIR):
            workdir = self.options.spec.workdir
        # The working folder relative to the synced folder, or None if that does not contain it.
        inside: str | None = self._subfolder
        if workdir:
            # On the host ``~`` is its own home, which the copy does not contain.
            inside = None if workdir.startswith("~") else synced.relative_path(workdir)
        name = role.program.name
        # An absolute path of this machine does not exist on the host, but the copy may contain the same file.
        # The program is then named by its path there, relative to the working folder if the copy contains it.
        if os.path.isabs(name) and (copied := synced.relative_path(name)) is not None:
            name = os.path.join(top, copied) if inside is None else os.path.relpath(copied, inside or ".")
        if inside is not None:
            workdir = os.path.join(top, inside).rstrip("/")
        # The copy is elsewhere on each host, so the host names the folder. That of a role would override it.
        role = replace(role, workdir=None, program=replace(role.program, name=name))
        return replace(placed, role=role, host=replace(placed.host, workdir=workdir))

    # ------------------------------------------------------------------ dry run

    def expected(self) -> Placement:
        """Return the placement that a dry run shows: as `StagedFiles` would complete it.

        The homes on other machines are not known here, so their folders are shown with ``~``.
        """
        outputs = {}  # The folder of the tasks' output folders, by the name of the host.
        if self.options.spec.output_dirs:
            hosts = [host.name for host in self.placement.hosts()]
            outputs = dict.fromkeys(hosts, f"{self._run_folder}/output")
            remote_folder = f"{work_folder(_EXAMPLE_RUN_NAME)}/{OUTPUTS_FOLDER}"
            outputs.update(dict.fromkeys(self.output_hosts, remote_folder))
        # All hosts have the copy of the first synced folder at the same place.
        tops = dict.fromkeys(self.remote, self._place(0)) if self.trees else {}
        return self.with_folders(self.placement, tops, outputs)

    def described(self) -> Iterator[str]:
        """Yield lines about the files that would be copied (``--dry-run``)."""
        for number, tree in enumerate(self.trees):
            folder = with_tilde(tree.request.folder)
            text = f"{folder}, {plural(tree.files, 'file')} ({byte_size(tree.size)})"
            stays = "removed when the job is over" if tree.request.remote is None else "it stays there"
            yield f"--sync: {text}, is copied to {self._place(number)} on {join_names(self.remote)}; {stays}"
        yield from left_out(self.trees)  # What is not copied, such as files that .gitignore names.
        for request in self.collects:
            tasks = [placed.task for placed in self.placement.tasks if request.concerns(placed.task)]
            into = f"{self._run_folder}/collected"
            if request.into is not None:
                into = with_tilde(os.path.abspath(request.into))
            elif request.url:
                into = shown(request.url.rstrip("/"))
            # Only the files of a single task go into the folder itself.
            into += "/TASK" if not (request.into or request.url) or request.number is None else ""
            yield f"--collect: {request.path} of {join_names(tasks)} is copied to {into} when the job is over"
        if self.options.spec.output_dirs:
            where = f"{self._run_folder}/output/TASK"
            yield f"--output-dirs: what tasks put into OUTPUT_DIR is in {where} when the job is over"
        if url := self.options.spec.output_to:
            when = "before they start again, and " if self.options.spec.policy.restarts else ""
            yield f"--output-to: it is copied to {shown(joined(url, 'TASK'))} {when}when the job is over"
        yield from self.notes

    @property
    def _run_folder(self) -> str:
        """The folder of the run, as a dry run shows it. Without ``--run-dir`` its name is not known yet."""
        run_dir = self.options.settings[RUN_DIR]
        return "RUN_DIR" if run_dir is None else with_tilde(os.path.abspath(run_dir))

    def _place(self, number: int) -> str:
        """Return where a synced folder goes on the hosts, whose homes are not known here.

        Args:
            number: The number of the folder among those of ``--sync``.
        """
        request = self._syncs[number]
        if request.remote is None:
            return f"{work_folder(_EXAMPLE_RUN_NAME)}/{request.name}"
        return request.remote if request.remote.startswith("/") else f"~/{request.remote}"


def work_folder(run_name: str) -> str:
    """Return the folder of a run on another machine."""
    return f"~/.cache/tf-launcher/work/{run_name}"


def with_output_dirs(placement: Placement, folders: Mapping[TaskId, str]) -> Placement:
    """Return a placement whose tasks get these output folders in a variable."""
    return placement.with_env({task: {OUTPUT_DIR_VARIABLE: folder} for task, folder in folders.items()})
