"""A launch on other machines, or with files that travel: what has to be made ready before its journey."""

from __future__ import annotations

import argparse
import os
import sys

from launcher.cli.places import is_here
from launcher.cli.request import Request
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.voice import Voice
from launcher.errors import HostsError
from launcher.model.plan import Placement
from launcher.model.records import TYPE_CHECKING
from launcher.transport import Transport

if TYPE_CHECKING:
    from launcher.cli.trip import Trip
    from launcher.output.selection import Selection
    from launcher.transport.ssh.fleet import Fleet


def launch(
    wanted: Request, placement: Placement, args: argparse.Namespace, show: Selection | None, local: Transport
) -> int:
    """Run a job of which at least one host is another machine; see `launcher.cli.launching.launch`.

    Args:
        wanted, placement, args, show: as there.
        local: opens the links to the agents of this machine.

    Raises:
        LaunchError: a host can't be reached, or the code can't be brought there: nothing was started.
    """
    trip = _trip(wanted, placement, args)
    from launcher.transport.ssh.fleet import Fleet

    remote = [host for host in placement.hosts() if not is_here(host)]
    with Voice() as voice, Fleet(remote, ssh_settings(args), _tell) as fleet:
        fleet.begin()
        # Most of the launcher: it is imported while the hosts answer.
        from launcher.cli.journey import Journey
        from launcher.transport.ssh.bundle import bundle
        from launcher.transport.ssh.carrier import PORTER

        journey = Journey(wanted, args, show, local, voice, trip)
        bundle(PORTER)  # made once: it is there when it is wanted
        _connect(fleet, args.hosts)
        return journey.make(placement, fleet)


def _connect(fleet: Fleet, given: str | None) -> None:
    """Connect to all; a single word that is no host may have been meant for a file."""
    try:
        fleet.connect()
    except HostsError as error:
        if given is None or os.path.exists(given) or set(given) & set(",:@["):
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
    if not args.sync and not args.collect:
        return None
    from launcher.cli.trip import Trip

    trip = Trip(wanted, placement, args)
    for text in trip.remarks:
        _tell(text)
    return trip


def _tell(text: str) -> None:
    """Before the job has a console of its own."""
    print(f"launch: {text}", file=sys.stderr, flush=True)
