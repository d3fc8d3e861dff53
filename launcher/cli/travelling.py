"""A launch on other machines, or with files that travel: what has to be made ready before its journey."""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import TYPE_CHECKING

from launcher.cli.places import is_here
from launcher.cli.request import Request
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.telling import tell
from launcher.cli.voice import Voice
from launcher.errors import HostsError, TransportError
from launcher.job import Placement
from launcher.text import listed
from launcher.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.cli.journey import Journey
    from launcher.cli.trip import Trip
    from launcher.output.selection import Selection
    from launcher.transport.ssh.fleet import Fleet

#: File descriptors that a host may take here.
_DESCRIPTORS = 16
#: And that many more if its tasks can connect to us.
_WAYS = 64


def launch(
    wanted: Request,
    placement: Placement,
    args: argparse.Namespace,
    show: Selection | None,
    local: Transport,
    travel: Callable[..., Journey] | None = None,
) -> int:
    """Run a job of which at least one host is another machine; see `launcher.cli.launching.launch`.

    Args:
        wanted, placement, args, show: as there.
        local: opens the links to the agents of this machine.
        travel: makes the journey; ``None``: a plain one.

    Raises:
        LaunchError: a host can't be reached, or the code can't be brought there: nothing was started.
    """
    began = time.time()
    trip = _trip(wanted, placement, args)
    from launcher.transport.ssh import lean

    lean.fetch()
    from launcher.transport.bundle import bundle
    from launcher.transport.ssh.entries import PORTER
    from launcher.transport.ssh.fleet import Fleet

    _make_room(len(placement.hosts()), _DESCRIPTORS + (0 if args.relay is None else _WAYS))
    idle = [host.name for host in wanted.hosts if host not in placement.hosts()]
    if idle:
        tell(f"{listed(idle)} will have nothing to do: the job has {_tasks(placement)}")
    remote = [host for host in placement.hosts() if not is_here(host)]
    plain = trip is None and travel is None and not wanted.job.output_dirs
    with Voice() as voice, Fleet(remote, ssh_settings(args), tell, PORTER if plain else "") as fleet:
        fleet.begin()
        if plain:
            bundle(PORTER)  # made once, and then it is there when the first host is
        # Most of the launcher: it is imported while the hosts answer.
        from launcher.cli.journey import Journey

        journey = (travel or Journey)(wanted, args, show, local, voice, trip)
        try:
            _connect(fleet, args.hosts)
            return journey.make(placement, fleet)
        except TransportError as error:
            from launcher.cli.unstarted import tell_programs

            tell_programs(error, placement, args, began)
            raise


def _tasks(placement: Placement) -> str:
    count = len(placement.tasks)
    return "1 task (--workers N gives it more)" if count == 1 else f"{count} tasks"


def _make_room(hosts: int, each: int) -> None:
    """Each connection takes some descriptors, and the usual limit of 1024 is for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = each * (hosts + 16)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _connect(fleet: Fleet, given: str | None) -> None:
    """Connect to all; a single word that is no host may have been meant for a file."""
    try:
        fleet.connect()
    except KeyboardInterrupt:
        tell("Ctrl-C: nothing was started")
        raise
    except HostsError as error:
        no_file = given is not None and not os.path.exists(given) and not set(given) & set(",:@[")
        if not no_file or "was not found" not in str(error):
            raise
        raise HostsError([*error.faults, f"--hosts {given}: there is no file of that name either"]) from error


def launch_here(
    wanted: Request, placement: Placement, args: argparse.Namespace, show: Selection | None, local: Transport
) -> int:
    """The same where all hosts are this machine, and results are to be put in a place of their own."""
    from launcher.cli.journey import Journey

    with Voice() as voice:
        return Journey(wanted, args, show, local, voice, _trip(wanted, placement, args)).make(placement, None)


def _trip(wanted: Request, placement: Placement, args: argparse.Namespace) -> Trip | None:
    if not args.sync and not args.collect and not wanted.job.output_dirs:
        return None
    from launcher.cli.trip import Trip

    trip = Trip(wanted, placement, args)
    for text in trip.remarks:
        tell(text)
    return trip
