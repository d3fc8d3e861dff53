"""The files of a launch: ``--sync`` before the job, ``--collect`` and ``--output-dirs`` after it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from launcher.agent.transfer import OUTPUTS
from launcher.errors import LaunchError
from launcher.files.collect import collect
from launcher.files.progress import Progress, shortened, shown
from launcher.files.requests import Item, items_of, parse_collects, parse_syncs
from launcher.files.sync import finish, make_outputs, sync
from launcher.files.walk import Packed, left_out, look
from launcher.job import OUTPUT_DIR, Placed, Placement, Plan, RunPaths, TaskId
from launcher.job_run.hosts import is_here
from launcher.job_run.interrupts import Interrupts
from launcher.job_run.notices import print_notice
from launcher.job_run.options import Options
from launcher.job_run.output_dirs import with_output_dirs
from launcher.text import byte_size, counted, listed
from launcher.transports.base import Hosts

#: Stands for the name of the run in a dry run.
_JOB = "JOB"


class Staging:
    """The files of one launch, as far as they travel.

    It is made before a host is connected to: all faults of what the user asks for are known then.

    Args:
        options, placement: the launch.

    Raises:
        JobError: a file or folder is not there, or can't be read.
    """

    def __init__(self, options: Options, placement: Placement) -> None:
        self._options = options
        self._placement = placement
        self._remote = [host.name for host in placement.hosts() if not is_here(host)]
        self._progress: Progress = Progress() if options.quiet or options.json else shown()
        self._syncs = parse_syncs(options.sync, options.sources.sync)
        counts = {role.name: role.count for role in options.job.roles}
        self._collects = parse_collects(options.collect, counts, options.sources.collect)
        self._packed: Packed | None = None
        if self._syncs and self._remote:
            self._packed = look(self._syncs, os.getcwd(), [options.run_dir] if options.run_dir else [])
        #: Hosts whose tasks have their output folders there, not in the run's folder: other machines, and
        #: containers on named hosts, which have their mounts before the run has a folder.
        self._output_hosts: list[str] = []
        if options.job.output_dirs:
            self._output_hosts = self._remote
            if options.docker is not None:
                self._output_hosts = [host.name for host in placement.hosts()] if options.hosts_named else []
        #: Hosts that have a folder of this run.
        self._arrived: set[str] = set()
        #: Everything that was to be collected is here; and the hosts where something failed, once known.
        self._complete = True
        self._failed: Sequence[str] | None = None
        #: Host -> folder of this run, as far as something was to be collected from it.
        self._run_folders: dict[str, str] = {}
        #: Set by `on_hosts`.
        self._commands: Hosts
        self._job = ""
        self._interrupts: Interrupts

    @property
    def notes(self) -> list[str]:
        """Remarks for the user."""
        return [] if self._packed is None else self._packed.remarks

    # ------------------------------------------------------------------ before the job

    @contextmanager
    def on_hosts(self, commands: Hosts, job: str, interrupts: Interrupts) -> Iterator[None]:
        """The launch itself; at its end the folders of the run are removed from the hosts.

        Args:
            commands: run programs of ours on the hosts.
            job: the name of the run.
            interrupts: limit the work after the job.
        """
        self._commands, self._job, self._interrupts = commands, job, interrupts
        try:
            yield
        finally:
            with interrupts.limited("removing the folders of this run"):
                self._remove()

    def send(self) -> Placement:
        """Bring the code to all other machines.

        Returns:
            The placement with the folders in which its tasks run there.

        Raises:
            TransportError: a host has no room for it, or is lost.
        """
        placement = self._placement
        if self._packed is not None:
            removable = any(tree.request.remote is None for tree in self._packed.trees)
            result = sync(
                self._commands,
                self._remote,
                self._packed,
                self._job,
                self._progress,
                self._options.ssh.fanout,
                self._arrived.add if removable else lambda _: None,
            )
            placement = self._in(self._packed, result.workdirs)
        if self._output_hosts:
            placement = self._make_output_dirs(placement)
            self._arrived.update(self._output_hosts)
        return placement

    def _in(self, packed: Packed, workdirs: Mapping[str, str]) -> Placement:
        tasks = (self._settled(placed, packed, workdirs) for placed in self._placement.tasks)
        return self._placement._replace(tasks=tuple(tasks))

    def _settled(self, placed: Placed, packed: Packed, workdirs: Mapping[str, str]) -> Placed:
        """A task in the folder that was synced, or in the folder within it that it asks for."""
        folder = workdirs.get(placed.host.name)
        if folder is None:
            return placed
        role, first = placed.role, packed.trees[0].request
        job_workdir = self._options.job.workdir if self._options.sources.workdir else None
        where, asked = folder, role.workdir or job_workdir
        if asked:
            inside = None if asked.startswith("~") else first.inside(asked)
            top = folder.removesuffix(packed.subfolder).rstrip("/") if packed.subfolder else folder
            where = asked if inside is None else os.path.join(top, inside).rstrip("/")
        name = role.program.name
        if os.path.isabs(name) and first.inside(name) is not None:
            name = os.path.relpath(os.path.realpath(name), os.path.realpath(os.getcwd()))
        return placed._replace(
            role=role._replace(workdir=None, program=role.program._replace(name=name)),
            host=placed.host._replace(workdir=where),
        )

    def _make_output_dirs(self, placement: Placement) -> Placement:
        docker = self._options.docker
        # A user that only the container knows must be able to write; no folder above is visible there.
        for_all = docker is not None and docker.user is not None
        tasks: dict[str, list[TaskId]] = {host: [] for host in self._output_hosts}
        for placed in placement.tasks:
            if placed.host.name in tasks:
                tasks[placed.host.name].append(placed.task)
        names = {host: [task.file_stem for task in of_host] for host, of_host in tasks.items()}
        made = make_outputs(self._commands, names, self._job, self._options.ssh.fanout, for_all)
        folders = {task: path for host in tasks for task, path in zip(tasks[host], made[host], strict=True)}
        return with_output_dirs(placement, folders)

    # ------------------------------------------------------------------ after the job

    def collect(self, plan: Plan | None, paths: RunPaths) -> bool:
        """Fetch what was asked for.

        Returns:
            Whether all that exists is here; a path that no task made is a remark, not a failure.
        """
        if plan is None or not (self._collects or self._output_hosts):
            return True
        self._complete = False  # until it is: Ctrl-C may come
        wanted = self._items_of(plan, paths)
        folders = ((one.host, _run_folder(one.base, self._job)) for one in wanted)
        self._run_folders.update((host, folder) for host, folder in folders if folder)
        try:
            with self._interrupts.limited("fetching what the job has left"):
                fanout = self._options.ssh.fanout
                done = collect(self._commands, wanted, self._job, self._progress, fanout)
        except LaunchError as error:
            self._say(str(error))
            return False
        for text in (*done.remarks, *done.failures):
            self._say(text)
        self._failed = done.failed
        self._complete = not done.failures
        return self._complete

    def _items_of(self, plan: Plan, paths: RunPaths) -> list[Item]:
        tasks = [(task.task, task.host, task.workdir or "") for task in plan.tasks]
        sidecars = {str(placed.task) for placed in self._placement.tasks if placed.role.sidecar}
        wanted = items_of(self._collects, tasks, paths.root, _filled)
        for task in plan.tasks:
            folder = task.env.get(OUTPUT_DIR)
            if folder and task.host in self._output_hosts:
                one = Item(task.task, task.host, folder, ".", paths.output(task.task))
                wanted.append(one._replace(spare=task.task in sidecars))
        return wanted

    def _remove(self) -> None:
        """Remove the folders of this run from the hosts, but where not everything could be collected."""
        synced = self._remote if self._packed is not None else []
        hosts = list(dict.fromkeys([*synced, *self._output_hosts]))
        if not self._complete:
            kept = [host for host in hosts if self._failed is None or host in self._failed]
            if kept:
                self._say(f"what was not fetched is still in {self._where(kept)}")
            hosts = [host for host in hosts if host not in kept]
        failed = finish(self._commands, hosts, self._job, self._options.ssh.fanout) if hosts else {}
        for host, text in failed.items():
            if host in self._arrived:
                print_notice(f"the folder of this run could not be removed: {text}")

    def _where(self, hosts: Sequence[str]) -> str:
        folders: dict[str, list[str]] = {}
        for host in hosts:
            folders.setdefault(self._run_folders.get(host, _work_folder(self._job)), []).append(host)
        return "; ".join(f"{folder} on {listed(names)}" for folder, names in folders.items())

    def _say(self, text: str) -> None:
        print_notice(f"{'--collect' if self._collects else '--output-dirs'}: {text}")

    # ------------------------------------------------------------------ dry run

    def expected(self) -> Placement:
        """The placement as `send` would return it, as far as this machine knows it."""
        placement = self._placement
        if self._packed is not None:
            folder = os.path.join(self._place(0), self._packed.subfolder).rstrip("/")
            placement = self._in(self._packed, dict.fromkeys(self._remote, folder))
        if not self._options.job.output_dirs:
            return placement
        folders = {}
        for placed in placement.tasks:
            there = placed.host.name in self._output_hosts
            top = f"{_work_folder(_JOB)}/{OUTPUTS}" if there else f"{self._run_folder}/output"
            folders[placed.task] = f"{top}/{placed.task.file_stem}"
        return with_output_dirs(placement, folders)

    def described(self) -> Iterator[str]:
        """What would travel where, line by line."""
        if self._packed is None:
            for request in self._syncs:
                yield f"--sync: {shortened(request.folder)} stays: all tasks run on this machine"
        else:
            for number, tree in enumerate(self._packed.trees):
                folder = shortened(tree.request.folder)
                what = f"{folder}, {counted(tree.files, 'file')} ({byte_size(tree.size)})"
                stays = "removed when the job is over" if tree.request.remote is None else "it stays there"
                yield f"--sync: {what}, goes to {self._place(number)} on {listed(self._remote)}; {stays}"
            yield from left_out(self._packed)
        for wanted in self._collects:
            tasks = listed([str(one.task) for one in self._placement.tasks if wanted.concerns(one.task)])
            top = f"{self._run_folder}/collected"
            if wanted.into is not None:
                top = shortened(os.path.abspath(wanted.into))
            into = top if wanted.into is not None and wanted.number is not None else f"{top}/TASK"
            yield f"--collect: {wanted.path} of {tasks} comes to {into} when the job is over"
        if self._options.job.output_dirs:
            where = f"{self._run_folder}/output/TASK"
            yield f"--output-dirs: what tasks put into OUTPUT_DIR is in {where} when the job is over"
        yield from self.notes

    @property
    def _run_folder(self) -> str:
        run_dir = self._options.run_dir
        return "RUN_DIR" if run_dir is None else shortened(os.path.abspath(run_dir))

    def _place(self, number: int) -> str:
        """Where a folder goes on the hosts; their homes are not known here."""
        request = self._syncs[number]
        if request.remote is None:
            return f"{_work_folder(_JOB)}/{request.name}"
        return request.remote if request.remote.startswith("/") else f"~/{request.remote}"


def _work_folder(job: str) -> str:
    """The folder of a run on another machine."""
    return f"~/.cache/tf-launcher/work/{job}"


def _filled(path: str, task: TaskId) -> str:
    """A path with the placeholders of a task."""
    return path.replace("{job_name}", task.role).replace("{task_index}", str(task.index))


def _run_folder(path: str, job: str) -> str:
    """The folder of a run that holds a path of its host; empty: none does."""
    head, found, _ = path.partition(f"/work/{job}/")
    return f"{head}{found}".rstrip("/") if found else ""
