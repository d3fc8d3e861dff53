"""What travels with a job: ``--sync`` before it, ``--collect`` after it, for all hosts of a launch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from launcher.cli.places import is_here
from launcher.cli.request import Request
from launcher.errors import LaunchError, TransportError
from launcher.luggage.progress import Progress, Silent, shown
from launcher.luggage.requests import parse_collects, parse_syncs, wanted_of
from launcher.luggage.sync import Packed, finish, pack, sync
from launcher.model.host import Host
from launcher.model.plan import Placed, Placement, Plan
from launcher.model.records import TYPE_CHECKING
from launcher.model.rundir import RunPaths
from launcher.model.task import TaskId
from launcher.transport.localerrand import LocalErrands

if TYPE_CHECKING:
    from launcher.transport.base import Errand, Errands


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
        syncs = parse_syncs(args.sync)
        self._collects = parse_collects(args.collect, (role.name for role in wanted.job.roles))
        self._packed: Packed | None = None
        if syncs and self._remote:
            self._packed = pack(syncs, os.getcwd(), [args.run_dir] if args.run_dir else [])

    def errands(self, others: Errands | None) -> Errands:
        """Errands on all hosts of the launch; ``others`` runs those on other machines."""
        return Everywhere([host for host in self._placement.hosts() if is_here(host)], others)

    @property
    def remarks(self) -> Sequence[str]:
        """For the user."""
        return () if self._packed is None else self._packed.remarks

    def bring(self, errands: Errands, job: str) -> Placement:
        """Bring the code to all other machines.

        Returns:
            The placement, with the folders that its tasks run in there.

        Raises:
            TransportError: a host has no room for it, or was lost.
        """
        if self._packed is None:
            return self._placement
        done = sync(errands, self._remote, self._packed, job, self._progress, self._fanout)
        tasks = (self._settled(placed, done.workdirs) for placed in self._placement.tasks)
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
        inside = self._packed.requests[0].inside(path)
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
        if not self._collects or plan is None:
            return True
        from launcher.luggage.collect import collect

        tasks = [(task.task, task.host, task.workdir or "") for task in plan.tasks]
        wanted = wanted_of(self._collects, tasks, paths.root, _filled)
        try:
            done = collect(errands, wanted, job, self._progress, self._fanout)
        except LaunchError as error:
            _say(f"--collect: {error}")
            return False
        for text in (*done.remarks, *done.failures):
            _say(f"--collect: {text}")
        return not done.failures

    def finish(self, errands: Errands, job: str) -> None:
        """Remove the run's folders from the other machines."""
        if self._packed is not None:
            for text in finish(errands, self._remote, job, self._fanout):
                _say(f"the folder of this run could not be removed: {text}")


def _filled(path: str, task: TaskId) -> str:
    """The task's own words in a path."""
    return path.replace("{job_name}", task.role).replace("{task_index}", str(task.index))


def _say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)


class Everywhere:
    """Errands on this machine and on others.

    Args:
        hosts: of this machine, by the names they have in the plan.
        others: runs errands on all others; ``None``: there are none.
    """

    def __init__(self, hosts: Sequence[Host], others: Errands | None) -> None:
        self._here = frozenset(host.name for host in hosts)
        self._local = LocalErrands()
        self._others = others

    def errand(self, host: str, entry: str, arguments: object) -> Errand:
        """See `launcher.transport.base.Errands`."""
        if host in self._here:
            return self._local.errand(host, entry, arguments)
        if self._others is None:
            raise TransportError(f"{host}: there is no connection to it")
        return self._others.errand(host, entry, arguments)


