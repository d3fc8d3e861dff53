"""What travels with a job: ``--sync`` before it, ``--collect`` after it, for all hosts of a launch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.cli import itinerary, outputs
from launcher.cli.everywhere import Everywhere
from launcher.cli.places import is_here
from launcher.cli.request import Request
from launcher.cli.telling import tell
from launcher.errors import LaunchError
from launcher.job import Placed, Placement, Plan, RunPaths, TaskId
from launcher.luggage.packing import Packed, left_out, pack
from launcher.luggage.progress import Progress, Silent, shown
from launcher.luggage.requests import Wanted, parse_collects, parse_syncs, wanted_of
from launcher.luggage.sharing import sharing_remark
from launcher.luggage.sync import finish, sync
from launcher.text import listed

if TYPE_CHECKING:
    from launcher.luggage.base import Errands


class Trip:
    """The files of one launch.

    Made before any host is connected to: all that is wrong with what was asked is known then.

    Args:
        wanted, placement, args: the launch.

    Raises:
        JobError: something that is to travel is not there or can't be read.
    """

    def __init__(self, wanted: Request, placement: Placement, args: argparse.Namespace) -> None:
        self._wanted = wanted
        self._placement = placement
        self._remote = [host.name for host in placement.hosts() if not is_here(host)]
        self._fanout = args.fanout or 32
        self._progress: Progress = Silent() if args.quiet or args.json else shown()
        self._syncs = parse_syncs(args.sync, wanted.sync_source)
        counts = {role.name: role.count for role in wanted.job.roles}
        self._collects = parse_collects(args.collect, counts, wanted.collect_source)
        self._packed: Packed | None = None
        if self._syncs and self._remote:
            self._packed = pack(self._syncs, os.getcwd(), [args.run_dir] if args.run_dir else [])
        #: Where tasks have folders for what they make: containers of this machine can't be given others late.
        self._outputs = self._remote if args.docker is None else [host.name for host in placement.hosts()]
        if not wanted.job.output_dirs:
            self._outputs = []
        self._for_all = args.docker is not None and args.user is not None
        #: Hosts that have a folder of this run.
        self._arrived: set[str] = set()
        #: Hosts from which something that must be fetched was not; ``None``: nobody knows.
        self._failed: Sequence[str] | None = None
        #: Where the folder of this run is, by host, as far as something was to be fetched from there.
        self._run_folders: dict[str, str] = {}
        self._errands: Errands | None = None

    def errands(self, others: Errands | None) -> Errands:
        """Errands on all hosts of the launch; ``others`` runs those on other machines."""
        self._errands = Everywhere(self._placement.hosts(), others)
        return self._errands

    @property
    def remarks(self) -> Sequence[str]:
        """For the user."""
        if self._packed is None:
            return ()
        sharing = sharing_remark(self._collects, self._tasks_in_synced_folder(), _filled)
        return [*self._packed.remarks, *filter(None, [sharing])]

    @property
    def itinerary(self) -> Sequence[str]:
        """What would travel where, line by line, and what should be known of it: for a dry run."""
        tasks = [placed.task for placed in self._placement.tasks]
        return [
            *itinerary.syncs(self._syncs, self._packed, self._remote),
            *(left_out(self._packed) if self._packed is not None else ()),
            *itinerary.collects(self._collects, tasks, self._wanted.run_dir),
            *(itinerary.outputs(self._wanted.run_dir) if self._wanted.job.output_dirs else ()),
            *self.remarks,
        ]

    def expected(self) -> Placement:
        """The placement as `bring` would return it, as far as that is known before: for a dry run."""
        placement = self._placement
        if self._packed is not None:
            place = itinerary.place_of(self._packed.requests[0])
            folder = os.path.join(place, self._packed.subfolder).rstrip("/")
            placement = self._in(dict.fromkeys(self._remote, folder))
        return self._with_outputs(placement) if self._wanted.job.output_dirs else placement

    def _with_outputs(self, placement: Placement) -> Placement:
        """As far as their folders are known before."""
        there = frozenset(self._outputs)
        tasks = ((placed.task, placed.host.name in there) for placed in placement.tasks)
        run_dir = self._wanted.run_dir
        return outputs.told(
            placement, {task: itinerary.output_of(task, run_dir, remote) for task, remote in tasks}
        )

    def _tasks_in_synced_folder(self) -> list[tuple[TaskId, str, str]]:
        assert self._packed is not None
        top = itinerary.place_of(self._packed.requests[0]) + "/"
        there = ((placed, f"{placed.host.workdir or ''}/") for placed in self.expected().tasks)
        remote = frozenset(self._remote)
        return [
            (placed.task, placed.host.name, folder)
            for placed, folder in there
            if placed.host.name in remote and folder.startswith(top)
        ]

    def bring(self, errands: Errands, job: str) -> Placement:
        """Bring the code to all other machines.

        Returns:
            The placement, with the folders that its tasks run in there.

        Raises:
            TransportError: a host has no room for it, or was lost.
        """
        placement = self._placement
        if self._packed is not None:
            placement = self._in(self._sync(errands, self._packed, job))
        if self._outputs:
            placement = outputs.make_there(
                errands, self._outputs, placement, job, self._fanout, self._for_all
            )
            self._arrived.update(self._outputs)
        return placement

    def _sync(self, errands: Errands, packed: Packed, job: str) -> dict[str, str]:
        def arrived(host: str) -> None:
            if any(request.remote is None for request in packed.requests):
                self._arrived.add(host)

        return sync(errands, self._remote, packed, job, self._progress, self._fanout, arrived).workdirs

    def _in(self, workdirs: dict[str, str]) -> Placement:
        tasks = (self._settled(placed, workdirs) for placed in self._placement.tasks)
        return self._placement._replace(tasks=tuple(tasks))

    def _settled(self, placed: Placed, workdirs: dict[str, str]) -> Placed:
        """A task in the folder that came along, or in the one within it that it wants."""
        folder = workdirs.get(placed.host.name)
        if folder is None:
            return placed
        role = placed.role
        asked = role.workdir or (self._wanted.job.workdir if self._wanted.workdir_source else None)
        where = self._there(asked, folder) if asked else folder
        return placed._replace(
            role=role._replace(workdir=None, program=role.program._replace(name=self._name(placed))),
            host=placed.host._replace(workdir=where),
        )

    def _there(self, path: str, folder: str) -> str:
        """A folder of this machine as it is called there; one that did not travel is called the same."""
        assert self._packed is not None
        inside = None if path.startswith("~") else self._packed.requests[0].inside(path)
        if inside is None:
            return path
        top = folder.removesuffix(self._packed.subfolder).rstrip("/") if self._packed.subfolder else folder
        return os.path.join(top, inside).rstrip("/")

    def _name(self, placed: Placed) -> str:
        """A program that travels is found where it lies there, however it was written."""
        assert self._packed is not None
        name = placed.role.program.name
        if not os.path.isabs(name) or self._packed.requests[0].inside(name) is None:
            return name
        return os.path.relpath(os.path.realpath(name), os.path.realpath(os.getcwd()))

    def collect(self, errands: Errands, plan: Plan | None, paths: RunPaths, job: str) -> bool:
        """Fetch what was asked for; whether all that is there came.

        What was never made is remarked upon; it is no failure.
        """
        if plan is None or not (self._collects or self._outputs):
            return True
        from launcher.luggage.collect import collect

        wanted = self._wanted_of(plan, paths)
        self._run_folders.update((one.host, top) for one in wanted if (top := _run_folder(one.base, job)))
        try:
            done = collect(errands, wanted, job, self._progress, self._fanout)
        except LaunchError as error:
            self._say_of_fetching(str(error))
            return False
        for text in (*done.remarks, *done.failures):
            self._say_of_fetching(text)
        self._failed = done.failed
        return not done.failures

    def _wanted_of(self, plan: Plan, paths: RunPaths) -> list[Wanted]:
        tasks = [(task.task, task.host, task.workdir or "") for task in plan.tasks]
        theirs = outputs.wanted_from(self._outputs, plan, paths)
        sidecars = {str(placed.task) for placed in self._placement.tasks if placed.role.sidecar}
        spared = (one._replace(spare=one.task in sidecars) for one in theirs)
        return [*wanted_of(self._collects, tasks, paths.root, _filled), *spared]

    def _say_of_fetching(self, text: str) -> None:
        tell(f"{'--collect' if self._collects else '--output-dirs'}: {text}")

    @property
    def _with_folders(self) -> list[str]:
        """Hosts that have a folder of this run, if all went well."""
        synced = self._remote if self._packed is not None else []
        return list(dict.fromkeys([*synced, *self._outputs]))

    def keep(self, job: str) -> None:
        """Not everything could be fetched: what the job left on the machines where it is stays there."""
        if self._packed is None and not self._outputs:
            return
        kept = [host for host in self._with_folders if self._failed is None or host in self._failed]
        if kept:
            self._say_of_fetching(f"what was not fetched is still in {self._where(kept, job)}")
        if self._errands is not None:
            self._remove(self._errands, [host for host in self._with_folders if host not in kept], job)

    def _where(self, hosts: Sequence[str], job: str) -> str:
        """The folders of this run on these hosts, in words."""
        found: dict[str, list[str]] = {}
        for host in hosts:
            folder = self._run_folders.get(host, f"~/.cache/tf-launcher/work/{job}")
            found.setdefault(folder, []).append(host)
        return "; ".join(f"{folder} on {listed(names)}" for folder, names in found.items())

    def finish(self, errands: Errands, job: str) -> None:
        """Remove the run's folders from the other machines.

        Where nothing was brought nothing is to be missed: why that is was said before, or will be.
        """
        if self._packed is not None or self._outputs:
            self._remove(errands, self._with_folders, job)

    def _remove(self, errands: Errands, hosts: Sequence[str], job: str) -> None:
        for host, text in finish(errands, hosts, job, self._fanout).items() if hosts else ():
            if host in self._arrived:
                tell(f"the folder of this run could not be removed: {text}")


def _filled(path: str, task: TaskId) -> str:
    """The task's own words in a path."""
    return path.replace("{job_name}", task.role).replace("{task_index}", str(task.index))


def _run_folder(path: str, job: str) -> str:
    """The folder of a run that a path of its host is in; empty: it is in none."""
    head, found, _ = path.partition(f"/work/{job}/")
    return f"{head}{found}".rstrip("/") if found else ""
