"""A launch in containers on other machines: each host's own engine starts one, over the SSH connection."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from launcher.cli import travelling
from launcher.cli.containers import containers, job_in_image, with_output_mounts
from launcher.cli.dockerowner import labels
from launcher.cli.dockyards import Dockyards, engine_variables
from launcher.cli.everywhere import Everywhere
from launcher.cli.journey import Journey
from launcher.cli.request import Request
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.telling import tell
from launcher.errors import HostsError, TransportError
from launcher.job import Host, Placed, Placement
from launcher.scheduler.placement import place
from launcher.transport import Transport
from launcher.transport.docker.command import run_command
from launcher.transport.docker.settings import JOB, KEPT, Container, Mount, container_name

if TYPE_CHECKING:
    from typing import NoReturn

    from launcher.output.selection import Selection
    from launcher.transport.docker.remote import Berth
    from launcher.transport.ssh.fleet import Fleet

#: What names of containers are made of.
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


def launch(
    wanted: Request,
    args: argparse.Namespace,
    selection: Callable[[str | None, Placement], Selection | None],
) -> int:
    """Run a job in containers, one on each host; see `launcher.cli.indocker.launch`."""
    seen = {host.name: host.gpus or () for host in wanted.hosts}
    wanted = wanted._replace(job=job_in_image(wanted, args), hosts=tuple(map(_renumbered, wanted.hosts)))
    placement = place(wanted.job, wanted.hosts)
    given = {host.name: seen[host.name] for host in placement.hosts() if _uses_gpus(placement, host)}
    made = containers(wanted, args, placement, given, [], here=False)
    if args.dry_run:
        return _dry_run(wanted, args, placement)
    show = selection(args.show, placement)
    journey = partial(DockerJourney, made)
    return travelling.launch(wanted, placement, args, show, _Nowhere(), journey)


def _renumbered(host: Host) -> Host:
    """In its container the GPUs of a host have numbers of their own."""
    return host._replace(gpus=host.gpus and tuple(map(str, range(len(host.gpus)))))


def _uses_gpus(placement: Placement, host: Host) -> bool:
    return any(placed.gpus for placed in placement.tasks if placed.host.name == host.name)


def _dry_run(wanted: Request, args: argparse.Namespace, placement: Placement) -> int:
    from launcher.cli import dryrun

    where = f"each host starts a container of {args.docker}, by its own engine: all runs in there"
    if not args.sync and not args.collect and not wanted.job.output_dirs:
        return dryrun.show(wanted.job, _of_image(placement), args.json, [where])
    from launcher.cli.trip import Trip

    trip = Trip(wanted, placement, args)
    return dryrun.show(wanted.job, _of_image(trip.expected()), args.json, [where, *trip.itinerary])


def _of_image(placement: Placement) -> Placement:
    """The Python and the environment of a host are not those of its container."""
    tasks = (placed._replace(host=placed.host._replace(python=None, venv=None)) for placed in placement.tasks)
    return placement._replace(tasks=tuple(tasks))


class _Nowhere:
    """No agent runs outside of a container."""

    def open(self, host: Host) -> NoReturn:
        """See `launcher.transport.base.Transport.open`."""
        raise TransportError(f"{host.name}: its agent belongs into a container")


class DockerJourney(Journey):
    """One launch; see `Journey`.

    Args:
        made: the containers, but for what only their hosts know.
    """

    def __init__(self, made: Sequence[Container], *others: object) -> None:
        super().__init__(*others)  # type: ignore[arg-type]  # as they came
        self._made = {container.host: container for container in made}
        self._berths: dict[str, Berth] = {}
        self._ways: Everywhere
        self._yards: Dockyards

    def make(self, placement: Placement, fleet: Fleet | None) -> int:
        """See `Journey.make`; the engines are looked at before anything is brought anywhere."""
        assert fleet is not None
        hosts = placement.hosts()
        self._ways = Everywhere(hosts, fleet)
        with Dockyards(hosts, self._ways, tell) as self._yards:
            self._yards.look()
            self._yards.sweep()
            remarks = self._yards.provide(self._args.docker, self._args.pull or "missing")
            self._made = {host: self._there(one, remarks[host]) for host, one in self._made.items()}
            code = super().make(placement, fleet)
        for remark in self._voice.take():  # of the very end: the job's own console was closed by then
            tell(remark)
        if self._args.keep:
            self._tell_kept()
        return code

    def _there(self, container: Container, remark: str) -> Container:
        """Files that a task writes to a mount are to belong to whoever we are there."""
        seen = self._yards.seen[container.host]
        user = self._args.user or ("0:0" if seen.rootless else seen.user)
        return container._replace(user=user, architecture=remark)

    def _launch(self, placement: Placement, fleet: Fleet | None) -> int:
        paths = {host.name: self._paths(placement, host) for host in placement.hosts()}
        there = self._yards.folders(paths)
        self._yards.close()  # a host that is cut off from us would keep them
        self._moor(placement, there)
        tasks = (_settled(placed, self._workdir(placed), there) for placed in placement.tasks)
        return super()._launch(_of_image(placement._replace(tasks=tuple(tasks))), fleet)

    def _workdir(self, placed: Placed) -> str | None:
        return placed.role.workdir or placed.host.workdir or self._wanted.job.workdir

    def _paths(self, placement: Placement, host: Host) -> list[str]:
        """What may be mounted on a host, by the names that we know."""
        return [*self._workdirs(placement, host), *(it.source for it in self._made[host.name].mounts)]

    def _workdirs(self, placement: Placement, host: Host) -> list[str]:
        """Where tasks of a host run."""
        here = (self._workdir(placed) for placed in placement.tasks if placed.host.name == host.name)
        return list(dict.fromkeys(filter(None, here)))

    def _moor(self, placement: Placement, there: Mapping[str, Mapping[str, str]]) -> None:
        """Know how each container is started.

        Raises:
            HostsError: something that is to be mounted is not there.
        """
        from launcher.transport.docker.remote import Berth

        faults: list[str] = []
        marks = {**labels(), JOB: self._job, **({KEPT: "1"} if self._args.keep else {})}
        for host in placement.hosts():
            found, one = there[host.name], self._made[host.name]
            faults += [
                f"{host.name}: there is no {it.source} to mount"
                for it in one.mounts
                if it.source not in found
            ]
            folders = [] if self._args.no_mount else self._workdirs(placement, host)
            one = one._replace(mounts=self._mounts(one, folders, found))
            one = with_output_mounts(one, placement)
            name = self._name(host.name)
            run = run_command(one, name, marks, self._args.keep)
            self._berths[host.name] = Berth(one, run, name, engine_variables(host))
        if faults:
            raise HostsError(faults)

    def _mounts(
        self, container: Container, folders: Sequence[str], found: Mapping[str, str]
    ) -> tuple[Mount, ...]:
        here = [found[it] for it in folders if found.get(it, "/") != "/"]
        usual = [Mount(it, it, self._args.read_only) for it in here]
        asked = [_full(mount, found) for mount in container.mounts if mount.source in found]
        return tuple({mount.target: mount for mount in (*usual, *asked)}.values())

    def _name(self, host: str) -> str:
        return container_name(self._job, _UNFIT.sub("-", host))

    def _over(self, fleet: Fleet) -> Transport:
        from launcher.transport.docker.remote import RemoteTransport

        lease = ssh_settings(self._args).lease
        job = self._job if self._args.sync or self._wanted.job.output_dirs else ""
        return RemoteTransport(self._berths, self._ways, self._voice.tell, lease, job)

    def _is_local(self, host: Host) -> bool:
        """No host is served by an agent without a container."""
        return False

    def _tell_kept(self) -> None:
        names = ", ".join(f"{berth.there['name']} on {host}" for host, berth in self._berths.items())
        tell(f"kept, as --keep asks: {names}")
        tell("remove them:          launch clean --hosts ...")


def _full(mount: Mount, found: Mapping[str, str]) -> Mount:
    """With the home that is the host's."""
    source = found[mount.source]
    return mount._replace(source=source, target=source if mount.target == mount.source else mount.target)


def _settled(placed: Placed, workdir: str | None, there: Mapping[str, Mapping[str, str]]) -> Placed:
    """A task in its folder, with the home that is the host's."""
    found = there[placed.host.name].get(workdir or "")
    if found is None or found == workdir:
        return placed
    role = placed.role._replace(workdir=None)
    return placed._replace(role=role, host=placed.host._replace(workdir=found))
