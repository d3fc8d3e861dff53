"""A launch in containers on other machines: each host's own engine starts one, over the SSH connection."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from launcher.cli import travelling
from launcher.cli.containers import job_in_image
from launcher.cli.everywhere import Everywhere
from launcher.cli.journey import Journey
from launcher.cli.request import Request
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.telling import tell
from launcher.errors import TransportError
from launcher.job import Host, Placed, Placement
from launcher.scheduler.placement import place
from launcher.transport import Transport
from launcher.transports import bootstrap
from launcher.transports.docker.container import HOST_NETWORK, Container, container_name, labels, run_words
from launcher.transports.docker.hosts import Engine, Engines
from launcher.transports.docker.options import containers, renumbered, with_folders, with_output_mounts

if TYPE_CHECKING:
    from typing import NoReturn

    from launcher.output.selection import Selection
    from launcher.transport.docker.remote import Berth
    from launcher.transport.ssh.fleet import Fleet


def launch(
    wanted: Request,
    args: argparse.Namespace,
    selection: Callable[[str | None, Placement], Selection | None],
) -> int:
    """Run a job in containers, one on each host; see `launcher.cli.indocker.launch`."""
    seen = {host.name: host.gpus or () for host in wanted.hosts}
    docker = args.containers
    wanted = wanted._replace(job=job_in_image(wanted, docker), hosts=tuple(map(renumbered, wanted.hosts)))
    placement = place(wanted.job, wanted.hosts)
    given = {host.name: seen[host.name] for host in placement.hosts() if _uses_gpus(placement, host)}
    made = containers(docker, wanted.job, placement, given, [], here=False)
    if args.dry_run:
        return _dry_run(wanted, args, placement)
    show = selection(args.show, placement)
    journey = partial(DockerJourney, made)
    return travelling.launch(wanted, placement, args, show, _Nowhere(), journey)


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
        self._made = list(made)
        self._berths: dict[str, Berth] = {}
        self._ways: Everywhere
        self._there: dict[str, dict[str, str]] = {}

    def make(self, placement: Placement, fleet: Fleet | None) -> int:
        """See `Journey.make`; the engines are looked at before anything is brought anywhere."""
        assert fleet is not None
        hosts = placement.hosts()
        self._ways = Everywhere(hosts, fleet)
        self._engines = Engines(hosts, self._ways, tell)
        self._made = self._engines.ready(self._made, self._args.containers)
        code = super().make(placement, fleet)
        for remark in self._voice.take():  # of the very end: the job's own console was closed by then
            tell(remark)
        if self._args.keep:
            self._tell_kept()
        return code

    def _launch(self, placement: Placement, fleet: Fleet | None) -> int:
        from launcher.transport.docker.remote import Berth

        docker = self._args.containers
        folders = {host.name: self._workdirs(placement, host) for host in placement.hosts()}
        there = self._engines.folders(folders)
        marks = labels(self._job, docker.keep)
        for one in self._made:
            mine = [] if docker.no_mount else there[one.host].values()
            one = with_output_mounts(with_folders(one, mine, docker.read_only), placement)
            name = container_name(self._job, one.host)
            words = run_words(one, name, HOST_NETWORK, marks, bootstrap.loader(one.python))
            host = next(host for host in placement.hosts() if host.name == one.host)
            self._berths[one.host] = Berth(one, ["docker", *words], name, Engine(host, self._ways).env)
        tasks = (_settled(placed, self._workdir(placed), there) for placed in placement.tasks)
        return super()._launch(_of_image(placement._replace(tasks=tuple(tasks))), fleet)

    def _workdir(self, placed: Placed) -> str | None:
        return placed.role.workdir or placed.host.workdir or self._wanted.job.workdir

    def _workdirs(self, placement: Placement, host: Host) -> list[str]:
        """Where tasks of a host run."""
        here = (self._workdir(placed) for placed in placement.tasks if placed.host.name == host.name)
        return list(dict.fromkeys(filter(None, here)))

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


def _settled(placed: Placed, workdir: str | None, there: Mapping[str, Mapping[str, str]]) -> Placed:
    """A task in its folder, with the home that is the host's."""
    found = there[placed.host.name].get(workdir or "")
    if found is None or found == workdir:
        return placed
    role = placed.role._replace(workdir=None)
    return placed._replace(role=role, host=placed.host._replace(workdir=found))
